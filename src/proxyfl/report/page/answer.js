// What was run, in words; then the answer: what each client gains over training alone, at which epsilon of which kind.

const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
const listed = (values) =>
  values.length < 2 ? values.join("") : `${values.slice(0, -1).join(", ")} and ${values.at(-1)}`;

function described(group) {
  const runs = runsOf(group),
    run = runs[0],
    set = run.settings;
  const clients = run.clients.length || set["partition.clients"];
  const sizes = unique(run.clients.map((client) => client.examples));
  const each =
    sizes.length === 1
      ? ` with ${sizes[0]} training examples each`
      : sizes.length
        ? ` with ${Math.min(...sizes)} to ${Math.max(...sizes)} training examples`
        : "";
  const deals = {
    majority: `${100 * set["partition.p_major"]} % of them from one class`,
    iid: "dealt evenly",
    dirichlet: `dealt by a Dirichlet law of concentration ${set["partition.concentration"]}`,
    site: "each site its own",
  };
  const seeds =
    runs.length > 1 ? `${runs.length} runs (seeds ${listed(runs.map((one) => one.seed))})` : `seed ${run.seed}`;
  const names = Object.keys(run.methods);
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
    `${run.name} (${runName(run)}) did not finish: ${open.join(", ") || "it has no complete record"}. ` +
      "Shown is what was recorded; final numbers are those of the last scored round.",
  );
}

// All that a card says about one method in one group of runs.
function verdict(group, method) {
  const runs = runsOf(group);
  const perClient = new Map();
  for (const run of runs) {
    for (const client of clientsOf(run).keys()) {
      const value = gain(run, method, client);
      if (value !== null) perClient.set(client, [...(perClient.get(client) ?? []), value]);
    }
  }
  const gains = [...perClient.values()].map(mean);
  const shares = runs.some((run) => (run.methods[method]?.exchange ?? "none") !== "none");
  return {
    gains,
    shares,
    cost: worst(runs, method),
    average: gains.length ? mean(gains) : null,
    better: gains.filter((one) => one > 0).length,
  };
}

function card(group, method) {
  const { gains, cost, average, better } = verdict(group, method);
  const measure = MEASURES[chosen.measure];
  const [word, kind] =
    Math.abs(average) < 0.0005
      ? ["neither gains nor loses", ""]
      : average > 0
        ? ["gains", "gains"]
        : ["loses", "loses"];
  const size = word.startsWith("n") ? "" : ` ${(100 * Math.abs(average)).toFixed(1)} points`;
  return element(
    "li",
    { "data-method": method, "data-gain": average },
    element(
      "p",
      { class: `verdict ${kind}` },
      swatch(method),
      ` ${method}: joining ${word}${size}`,
      element("span", { class: "quiet" }, " on average"),
    ),
    element(
      "p",
      {},
      `${better} of ${plural(gains.length, "client")} end above training alone (${span(gains)} points of ${measure}).`,
    ),
    element(
      "p",
      {},
      cost.kind === "none" ? `With ${costWords(cost)}.` : `At ${costWords(cost)}, largest over clients.`,
    ),
    cost.epsilon > 10 && cost.kind !== "none"
      ? element("p", { class: "loses" }, "A weak guarantee: above 10 an epsilon rules out very little.")
      : null,
  );
}

function answerCards(holder) {
  holder.replaceChildren();
  for (const group of page.groups) {
    const runs = runsOf(group);
    if (page.groups.length > 1) holder.append(element("h3", {}, groupName(group)));
    holder.append(element("p", {}, described(group)), ...runs.map(unfinished).filter(Boolean));
    if (runs.every((run) => !("alone" in run.methods))) {
      holder.append(
        element(
          "p",
          { class: "notice" },
          "Not compared with training alone: add alone to the methods to see what joining is worth.",
        ),
      );
      continue;
    }
    const ready = shown().filter((method) => {
      const one = verdict(group, method);
      return one.shares && one.gains.length;
    });
    holder.append(
      ready.length
        ? element("ul", { class: "cards" }, ...ready.map((method) => card(group, method)))
        : element("p", { class: "quiet" }, "No shown method that shares a model has been scored yet."),
    );
    if (runs.length === 1 && ready.length)
      holder.append(element("p", { class: "quiet" }, "One seed only: a difference of a few points may be chance."));
  }
  const kinds = unique(
    page.runs.flatMap((run) =>
      Object.values(run.series).flatMap((series) => Object.values(series.clients).map((client) => client.kind)),
    ),
  );
  for (const kind of kinds.filter((one) => one !== "none"))
    holder.append(element("p", { class: "quiet" }, `${kind}: ${KINDS[kind]}.`));
  if (page.runs.some((run) => run.simulation)) {
    holder.append(
      element(
        "p",
        { class: "quiet" },
        "A simulation: its noise can be recomputed from the seed, so these epsilons say what a real run would cost.",
      ),
    );
  }
}

function drawGains() {
  const measure = MEASURES[chosen.measure];
  const rows = [],
    panels = [];
  for (const group of page.groups) {
    const runs = runsOf(group),
      names = new Map(runs.flatMap((run) => [...clientsOf(run)]));
    const traces = shown()
      .filter((method) => method !== "alone")
      .map((method) => {
        const { colour, symbol, size } = look(method);
        const found = { x: [], y: [], low: [], high: [], text: [] };
        for (const [client, name] of names) {
          const gains = runs.map((run) => gain(run, method, client)).filter((value) => value !== null);
          if (!gains.length) continue;
          const average = mean(gains),
            cost = worst(runs, method);
          found.x.push(100 * average);
          found.y.push(name);
          found.low.push(100 * (average - Math.min(...gains)));
          found.high.push(100 * (Math.max(...gains) - average));
          found.text.push(
            `${method}, ${name}: ${points(average)} points of ${measure}<br>${costWords(cost)}` +
              (gains.length > 1 ? `<br>${gains.length} seeds, ${span(gains)}` : ""),
          );
          rows.push([
            groupName(group),
            method,
            name,
            mean(runs.map((run) => kept(run, method, client)).filter((v) => v !== null)),
            average,
            Math.min(...gains),
            Math.max(...gains),
            gains.length,
            Number.isFinite(cost.epsilon) ? cost.epsilon : "infinite",
            cost.kind,
            cost.delta,
          ]);
        }
        return {
          type: "scatter",
          mode: "markers",
          name: method,
          x: found.x,
          y: found.y,
          text: found.text,
          hoverinfo: "text",
          marker: {
            color: colour,
            symbol,
            size: size(10),
            line: { width: symbol === "x" || symbol === "cross" ? 0 : 1, color: style("--ground") },
          },
          error_x: {
            type: "data",
            array: found.high,
            arrayminus: found.low,
            visible: runs.length > 1,
            color: faint(colour, 0.5),
            thickness: 1.5,
            width: 3,
          },
        };
      })
      .filter((trace) => trace.x.length);
    if (!traces.length) continue;
    panels.push({
      title: page.groups.length > 1 ? groupName(group) : "",
      traces,
      height: 90 + 34 * names.size,
      layout: {
        xaxis: {
          title: `gain over alone, points of ${measure}`,
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
      measure,
      "gain over alone",
      "lowest",
      "highest",
      "seeds",
      "epsilon (largest over clients)",
      "kind",
      "delta",
    ],
    note:
      "Each mark is the model that a client keeps; the line at 0 is the same client training alone, without DP. " +
      "Left of it, joining loses." +
      (page.runs.length > page.groups.length ? " Whiskers: lowest to highest over seeds." : ""),
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
