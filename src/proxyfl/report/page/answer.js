// What was run, in words; then the answer: what each client gains over training alone, at which epsilon of which kind.

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
  const unsure = answer.within_noise || size === "0.0";
  const said = answer.within_noise
    ? `makes no difference beyond noise (${points(average)} points)`
    : size === "0.0"
      ? "neither gains nor loses"
      : `${kind} ${size} points`;
  const interval = answer.interval && ` 95 % interval of the average: ${between(...answer.interval)}.`;
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
      ` ${answer.method}: joining ${said}`,
      element("span", { class: "quiet" }, ` on average${when}`),
    ),
    element("p", {}, `${above} (${range} points of ${measureName()}).${interval ?? ""}`),
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
  const quiet = (text) => element("p", { class: "quiet" }, text);
  for (const group of page.groups) {
    const runs = runsOf(group);
    if (page.groups.length > 1) holder.append(element("h3", {}, groupName(group)));
    holder.append(element("p", {}, described(group)), ...runs.map(unfinished).filter(Boolean));
    if (runs.every((run) => !("alone" in run.methods))) {
      const told = "Not compared with training alone: add alone to the methods to see what joining is worth.";
      holder.append(element("p", { class: "notice" }, told));
      continue;
    }
    const ready = shown()
      .map((method) => answerOf(group, method))
      .filter((answer) => answer?.shares && answer.mean_gain !== null);
    holder.append(
      ready.length
        ? element("ul", { class: "cards" }, ...ready.map((answer) => card(group, answer)))
        : quiet("No shown method that shares a model has been scored yet."),
    );
    for (const run of runs) for (const warning of run.warnings) holder.append(quiet(warning));
    if (runs.length === 1 && ready.length)
      holder.append(quiet("One seed only: a difference of a few points may be chance."));
  }
  const kinds = unique(page.groups.flatMap((group) => Object.values(group.epsilons).map((one) => one.kind)));
  for (const kind of kinds.filter((one) => one !== "none" && one in page.kinds)) holder.append(quiet(page.kinds[kind]));
  const units = unique(page.groups.flatMap((group) => Object.values(group.epsilons).map((one) => one.unit)));
  for (const unit of units.filter((one) => one in page.units)) holder.append(quiet(page.units[unit]));
  if (page.runs.some((run) => run.simulation)) {
    const told = "A simulation: its noise can be recomputed from the seed, so these epsilons say what ";
    holder.append(quiet(`${told}a real run would cost.`));
  }
}

// From [value, low, high] to the lengths that plotly wants, in points.
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
      size: size(10),
      line: { width: symbol === "x" || symbol === "cross" ? 0 : 1, color: style("--ground") },
    },
    error_x: {
      type: "data",
      ...whiskers(clients.map((one) => [one.gain, ...(one.interval ?? [one.low, one.high])])),
      visible: group.runs.length > 1 || clients.some((one) => one.interval),
      color: faint(colour, 0.5),
      thickness: 1.5,
      width: 3,
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
          zeroline: true,
          zerolinewidth: 2,
          zerolinecolor: style("--quiet"),
        },
        yaxis: { autorange: "reversed", type: "category", showgrid: true },
        shapes: [
          { type: "line", x0: 0, x1: 0, yref: "paper", y0: 0, y1: 1, line: { color: style("--quiet"), width: 2 } },
        ],
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
      " Whiskers: the 95 % interval over test persons where it is known, else lowest to highest over seeds.",
  };
}

function answerSection() {
  const cards = element("div", { id: "answer-cards" });
  section(
    "answer",
    "What joining is worth",
    cards,
    figure({ id: "gains", title: "What each client gains over training alone", draw: drawGains }).node,
  );
  return () => answerCards(cards);
}
