// What was run, in words; every method against training alone, at which epsilon of which kind; the gains as a chart.

const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
const listed = (values) =>
  values.length < 2 ? values.join("") : `${values.slice(0, -1).join(", ")} and ${values.at(-1)}`;

function described(group) {
  const runs = runsOf(group),
    run = runs[0],
    set = run.settings;
  const clients = run.clients.length || set["partition.clients"];
  const sizes = unique(run.clients.map((client) => client.examples)).sort((a, b) => a - b);
  const each =
    sizes.length === 1
      ? ` with ${sizes[0]} training examples each`
      : sizes.length
        ? ` with ${sizes[0]} to ${sizes.at(-1)} training examples`
        : "";
  const deals = {
    majority: `${100 * set["partition.p_major"]} % of them from one class`,
    iid: "dealt evenly",
    dirichlet: `dealt by a Dirichlet law of concentration ${set["partition.concentration"]}`,
    site: "each site its own",
  };
  const seeds =
    runs.length > 1
      ? `${runs.length} runs (seeds ${listed(unique(runs.map((one) => one.seed)))})`
      : `seed ${run.seed}`;
  const names = unique(runs.flatMap((one) => Object.keys(one.methods)));
  const given = (key) => [set[`privacy.${key}`]].flat().join("/");
  const dp =
    set["privacy.enabled"] === false
      ? "No method trained with differential privacy."
      : "What is shared was trained with DP-SGD: " +
        `noise multiplier ${given("noise_multiplier")}, clipping norm ${given("clip_norm")}.`;
  return (
    `${plural(clients, "client")}${each} of ${set["data.source"]}, ${deals[set["partition.kind"]] ?? ""}; ` +
    `${plural(run.rounds, "round")}; ${names.length > 1 ? "methods" : "method"} ${listed(names)}; ${seeds}. ${dp}`
  );
}

function unfinished(run) {
  if (run.finished || page.live) return null;
  const open = Object.entries(run.progress)
    .filter(([, done]) => done < run.rounds)
    .map(([name, done]) => `${name} ${done} of ${run.rounds} rounds`);
  return element(
    "p",
    { class: "notice" },
    `${run.name} (${runName(run)}) did not finish: ${open.join(", ") || "it was not summed up"}. ` +
      "Shown is what was recorded; methods are compared after the last round in which both were scored.",
  );
}

function card(group, answer) {
  const average = answer.mean_gain;
  const size = (100 * Math.abs(average)).toFixed(1);
  const kind = average > 0 ? "gains" : "loses";
  const unchanged = answer.by_client.every((one) => one.unchanged);
  const unsure = answer.within_noise || size === "0.0";
  const said = unchanged
    ? "changed nothing"
    : answer.within_noise
    ? `makes no difference beyond noise (${points(average)} points)`
    : size === "0.0"
      ? "neither gains nor loses"
      : `${kind} ${size} points`;
  const interval = answer.interval && !unchanged && ` 95 % interval of the average: ${between(...answer.interval)}.`;
  const seeds = group.runs.length > 1 ? " (clients times seeds)" : "";
  const above = `${answer.gaining} of ${plural(answer.clients, "client")}${seeds} end above training alone`;
  const range = between(answer.lowest_gain, answer.highest_gain);
  const when = answer.after === null ? "" : ` after ${plural(answer.after, "round")}`;
  return element(
    "li",
    { "data-method": answer.method, "data-gain": average, "data-epsilon": answer.epsilon },
    element(
      "p",
      { class: unsure ? "verdict" : `verdict ${kind}` },
      swatch(answer.method),
      element("span", {}, `${answer.method}: joining ${said}`, element("span", { class: "quiet" }, ` on average${when}`)),
    ),
    element("p", {}, `${above} (${range} points of ${measureName()}).${interval || ""}`),
    element(
      "p",
      {},
      answer.epsilon_kind === "none" ? `With ${costWords(answer)}.` : `At ${costWords(answer)}, largest over clients.`,
    ),
    answer.weak
      ? element("p", { class: "loses" }, "A weak guarantee: above 10 an epsilon rules out very little.")
      : null,
  );
}

function answerCards(holder) {
  holder.replaceChildren();
  for (const group of page.groups) {
    if (page.groups.length > 1) holder.append(element("h3", { class: "sec" }, groupName(group)));
    const ready = shown()
      .map((method) => answerOf(group, method))
      .filter((answer) => answer?.shares && answer.mean_gain !== null);
    if (ready.length) holder.append(element("ul", { class: "cards" }, ...ready.map((answer) => card(group, answer))));
    else holder.append(element("p", { class: "quiet" }, "No shown method that shares a model has been compared yet."));
  }
}

// From [value, low, high] to the lengths on either side, in points.
const whiskers = (values) => ({
  array: values.map(([value, , high]) => 100 * (high - value)),
  arrayminus: values.map(([value, low]) => 100 * (value - low)),
});

function gainTrace(group, answer, rows) {
  const { colour, symbol, size } = look(answer.method);
  const clients = answer.by_client;
  for (const one of clients)
    rows.push([
      groupName(group),
      answer.method,
      one.name,
      one.score,
      one.gain,
      one.low,
      one.high,
      one.n,
      one.interval?.[0] ?? null,
      one.interval?.[1] ?? null,
      answer.epsilon ?? "infinite",
      answer.epsilon_kind,
      answer.delta,
    ]);
  const hover = (one) =>
    `${answer.method}, ${one.name}: ${points(one.gain)} points of ${measureName()}<br>${costWords(answer)}` +
    (one.n > 1 ? `<br>${one.n} seeds, ${between(one.low, one.high)}` : "") +
    (one.interval ? `<br>95 % interval ${between(...one.interval)}` : "");
  return {
    type: "scatter",
    mode: "markers",
    name: answer.method,
    x: clients.map((one) => 100 * one.gain),
    y: clients.map((one) => one.name),
    text: clients.map(hover),
    hoverinfo: "text",
    marker: {
      color: colour,
      symbol,
      size: size(11),
    },
    error_x: {
      type: "data",
      ...whiskers(clients.map((one) => [one.gain, ...(one.interval ?? [one.low, one.high])])),
      visible: group.runs.length > 1 || clients.some((one) => one.interval),
      color: colour,
    },
  };
}

function drawGains() {
  const rows = [],
    panels = [];
  for (const group of page.groups) {
    const traces = shown()
      .filter((method) => method !== "alone")
      .map((method) => answerOf(group, method))
      .filter((answer) => answer?.by_client.length)
      .map((answer) => gainTrace(group, answer, rows));
    if (!traces.length) continue;
    panels.push({
      title: panelTitle(group),
      traces,
      height: 90 + 34 * Object.keys(group.clients).length,
      layout: {
        xaxis: {
          title: `gain over alone, points of ${measureName()}`,
        },
        yaxis: { autorange: "reversed", type: "category" },
        verticals: [{ x: 0, colour: style("--quiet") }],
        showlegend: page.groups.length === 1,
      },
    });
  }
  sameRange(panels, "x");
  return {
    panels,
    rows,
    columns: [
      "group",
      "method",
      "client",
      measureName(),
      "gain over alone",
      "lowest",
      "highest",
      "seeds",
      "95 % from",
      "to",
      "epsilon (largest over clients)",
      "kind",
      "delta",
    ],
    note:
      "Each mark is the model that a client keeps; the line at 0 is the same client training alone, without DP. " +
      "Left of it, joining loses." +
      " Bands: the 95 % interval over test persons where it is known, else lowest to highest over seeds.",
  };
}

function answerSection() {
  const hero = element("div", { id: "hero" });
  document.getElementById("main").append(element("section", { id: "answer", "aria-labelledby": "headline" }, hero, element("h2", { class: "sec" }, "Every method against training alone"), element("div", { id: "answer-cards" })));
  const gains = figure({ id: "gains", title: "What each client gains over training alone", draw: drawGains, span: 12 });
  document.getElementById("answer").append(element("div", { class: "grid" }, gains.node));
  return () => {
    fillHero(hero);
    answerCards(document.getElementById("answer-cards"));
  };
}
