// The first screen: the verdict as a sentence, a dot and an arrow per site, the privacy gauge, whether `alone` was a fair
// opponent, what stays and what leaves. Every sentence and number comes ready from Python.

const MOST_ROWS = 24;
const score3 = (value) => value.toFixed(3);

// The methods that a headline can be about, the one that readers came for first.
function answered(group) {
  const ready = (group.answers[chosen.measure] ?? []).filter((one) => one.shares && one.said);
  const order = ["proxyfl", "proxysum"];
  const rank = (one) => (order.includes(one.method) ? order.indexOf(one.method) : order.length);
  return ready.filter((one) => !chosen.hidden.has(one.method)).sort((a, b) => rank(a) - rank(b));
}
function headlined(group) {
  const ready = answered(group);
  return ready.find((one) => one.method === chosen.method) ?? ready[0] ?? null;
}

function kick(group) {
  const runs = runsOf(group),
    run = runs[0];
  const records = run.clients.reduce((sum, client) => sum + client.examples, 0);
  const seeds = unique(runs.map((one) => one.seed));
  const clients = Object.keys(group.clients).length || run.settings["partition.clients"] || 1;
  return [
    `${plural(clients, group.noun)}`,
    records ? `${records.toLocaleString("en")} records in training` : null,
    plural(run.rounds, "round"),
    runs.length > 1 ? `${runs.length} runs (seeds ${listed(seeds)})` : `seed ${seeds[0]}`,
    panelTitle(group) || null,
    run.simulation ? "simulation" : null,
  ]
    .filter(Boolean)
    .join(" \u00b7 ");
}

// The sentence with its number in the colour of a gain or of a loss.
function headline(said) {
  const at = said.claim ? said.headline.indexOf(said.claim) : -1;
  if (at < 0) return [said.headline];
  const colour = said.kind === "gain" ? "gains" : "loses";
  return [
    said.headline.slice(0, at),
    element("span", { class: colour }, said.claim),
    said.headline.slice(at + said.claim.length),
  ];
}

function fillHero(holder) {
  const group = chosenGroup();
  const answer = headlined(group);
  const runs = runsOf(group);
  const top = [element("p", { class: "kick" }, kick(group))];
  if (!answer) {
    const alone = runs.some((run) => "alone" in run.methods);
    const missing = alone
      ? "No method that shares a model has been scored yet."
      : "Not compared with training alone.";
    top.push(element("h1", { id: "headline" }, missing));
    if (!alone)
      top.push(element("p", { class: "lede" }, "Add alone to the methods to see what joining is worth."));
    holder.replaceChildren(...top, ...runs.map(unfinished).filter(Boolean));
    return;
  }
  const { said } = answer;
  top.push(element("h1", { id: "headline", "data-kind": said.kind }, ...headline(said)));
  const [first, ...rest] = said.lede;
  top.push(element("p", { class: "lede" }, element("b", {}, first ?? ""), ` ${rest.join(" ")}`));
  top.push(...runs.map(unfinished).filter(Boolean));
  if (said.advice.length) top.push(element("ul", { class: "todo" }, ...said.advice.map((text) => element("li", {}, ...coded(text)))));
  const cards = element(
    "div",
    { class: "grid hero" },
    arrowsCard(group, answer),
    element("div", { class: "c4 stack" }, gaugeCard(group, answer), opponentCard(group, answer)),
    wallCard(group, answer),
  );
  holder.replaceChildren(...top, cards);
}

// What is to be typed looks like it.
function coded(text) {
  const at = text.search(/proxyfl |models\./);
  return at < 0 ? [text] : [text.slice(0, at), element("code", {}, text.slice(at))];
}

function arrowsCard(group, answer) {
  const rows = [...answer.by_client].filter((one) => one.alone !== null).sort((a, b) => b.gain - a.gain);
  const finish = group.finish[chosen.measure];
  const way = isLower() ? -1 : 1;
  const sizes = new Map(runsOf(group)[0].clients.map((client) => [client.name, client.examples]));
  const mean = {
    name: `Mean of ${rows.length}`,
    alone: answer.alone,
    score: answer.alone + way * answer.mean_gain,
    gain: answer.mean_gain,
    interval: answer.interval,
    within_noise: answer.within_noise,
    unchanged: rows.every((one) => one.unchanged),
    mean: true,
  };
  const edges = [...rows, mean].flatMap((one) => [
    one.alone,
    one.score,
    ...(rows.length <= MOST_ROWS && one.interval ? one.interval.map((gain) => one.alone + way * gain) : []),
  ]);
  if (finish) edges.push(finish.score);
  let low = Math.min(...edges),
    high = Math.max(...edges);
  const room = 0.07 * (high - low || 0.1);
  // Room for the words next to a dot, on the side away from its arrow.
  const back = rows.some((one) => one.score < one.alone);
  [low, high] = [low - 2.6 * room, high + (back ? 2.6 : 1) * room];
  const at = (value) => `${(100 * (value - low)) / (high - low)}%`;
  const many = rows.length > MOST_ROWS;
  const shownRows = many ? [...rows.slice(0, 10), null, ...rows.slice(-10)] : rows;
  const body = shownRows.map((one, i) =>
    one ? arrowRow(one, i === 0, at, sizes.get(one.name), way) : betweenRow(rows.slice(10, -10), at),
  );
  if (rows.length > 1) body.push(arrowRow(mean, false, at, null, way));
  const over = element("div", { class: "over", "aria-hidden": "true" });
  for (const [value, text] of roundTicks(low, high, 4)) {
    const line = element("i");
    const label = element("span", { class: "tick" }, text);
    line.style.left = label.style.left = at(value);
    over.append(line, label);
  }
  if (finish) {
    const line = element("i", { class: "finish" });
    const label = element("span", { class: "finish-name" }, `\u25c7 ${finish.method}, no privacy ${score3(finish.score)}`);
    line.style.left = label.style.left = at(finish.score);
    over.append(line, label);
  }
  const title = `From training alone to joining, ${group.noun} by ${group.noun}`;
  const columns = [group.noun, "alone", answer.method, "gain over alone", "95 % from", "to"];
  const table = rows.map((one) => [one.name, one.alone, one.score, one.gain, one.interval?.[0] ?? null, one.interval?.[1] ?? null]);
  const save = element(
    "button",
    {
      type: "button",
      "aria-label": `Download ${title} as CSV`,
      onclick: () => download("arrows.csv", "text/csv", csv(columns, table)),
    },
    "CSV",
  );
  return element(
    "div",
    { class: "card c8 tall" },
    element("div", { class: "ch" }, element("h2", {}, title), element("div", { class: "actions" }, save)),
    element(
      "p",
      { class: "sub" },
      `From what a ${group.noun} has by itself \u25cf to what it has after joining \u25b6. Open arrowhead: the interval contains zero.`,
    ),
    element(
      "div",
      { class: "arrows", role: "img", "aria-label": `${said(answer)} ${rows.map(rowWords).join("; ")}` },
      over,
      ...body,
      element(
        "div",
        { class: "axis" },
        element("span", {}, `${measureName()} on the test set ${isLower() ? "\u2190" : "\u2192"} better`),
        element("span", {}, "shaded: 95 % interval of the gain"),
      ),
    ),
  );
}
const said = (answer) => answer.said.headline;
const rowWords = (one) => `${one.name} ${score3(one.alone)} to ${score3(one.score)}, ${points(one.gain)} points`;

function arrowRow(one, first, at, examples, way) {
  const ahead = (one.score - one.alone) * 1 >= 0; // the arrow points to the right
  const down = one.gain < 0;
  const place = (node, value) => {
    node.style.left = at(value);
    return node;
  };
  const track = element("div", { class: "track" });
  if (one.interval) {
    const ends = one.interval.map((gain) => one.alone + way * gain).sort((a, b) => a - b);
    const band = place(element("i", { class: "band" }), ends[0]);
    band.style.right = `calc(100% - ${at(ends[1])})`;
    track.append(band);
  }
  const shaft = place(element("i", { class: "shaft" }), Math.min(one.alone, one.score));
  shaft.style.right = `calc(100% - ${at(Math.max(one.alone, one.score))})`;
  const svg = shape("svg", {
    viewBox: "0 0 14 16",
    class: `head${one.within_noise ? " open" : ""}${ahead ? "" : " back"}`,
  });
  svg.append(shape("path", { d: "M2 2l10 6-10 6z" }));
  svg.style.left = at(one.score);
  const alone = element("span", { class: `value ${ahead ? "left" : "right"}` }, first ? element("span", { class: "opt" }, "alone ") : "", score3(one.alone));
  const joined = element("span", { class: "value joined" }, first ? element("span", { class: "opt" }, "joined ") : "", score3(one.score));
  track.append(shaft, place(element("i", { class: "dot" }), one.alone), svg, place(alone, one.alone), place(joined, one.score));
  // an interval without width says nothing
  if (one.unchanged) return unchangedRow(one, track, examples);
  const noise = one.interval ? (one.within_noise ? "within noise" : "beyond noise") : "no interval";
  const tone = one.within_noise || !one.interval ? "" : down ? "down" : "up";
  const gained = [
    element("b", { class: tone }, points(one.gain)),
    element("span", {}, one.interval ? between(...one.interval) : ""),
    element("em", {}, noise),
  ];
  return namedRow(one, track, examples, gained, down);
}

// A site that keeps a model with the answers it had alone.
function unchangedRow(one, track, examples) {
  return namedRow(one, track, examples, [element("b", {}, "no change"), element("em", {}, "the same answers as alone")], false);
}

function namedRow(one, track, examples, gained, down) {
  return element(
    "div",
    { class: `arow${one.mean ? " mean" : ""}${down ? " down" : ""}` },
    element(
      "div",
      { class: "aname" },
      element("b", { title: one.name }, one.name),
      examples ? element("span", {}, `${examples.toLocaleString("en")} records`) : null,
    ),
    track,
    element("div", { class: one.unchanged ? "again same" : "again" }, ...gained),
  );
}

// Those in the middle, as a strip of ticks.
function betweenRow(rows, at) {
  const track = element("div", { class: "track strip" });
  for (const one of rows) {
    const tick = element("i");
    tick.style.left = at(one.score);
    track.append(tick);
  }
  return element(
    "div",
    { class: "arow between" },
    element("div", { class: "aname" }, element("span", {}, `and ${rows.length} between`)),
    track,
    element("div", { class: "again" }, element("span", {}, `${points(rows.at(-1).gain)} to ${points(rows[0].gain)}`)),
  );
}

function gaugeCard(group, answer) {
  const title = element("h2", {}, "Privacy spent");
  if (answer.epsilon_kind === "none")
    return element(
      "div",
      { class: "card" },
      title,
      element("p", { class: "alone-number weak" }, "none"),
      element("p", { class: "say" }, "Trained without differential privacy: nothing bounds what the shared models give away."),
    );
  const budgets = Object.values(group.budget?.epsilon ?? {});
  const budget = budgets.length ? Math.min(...budgets) : null;
  const facts = element(
    "dl",
    { class: "facts" },
    element("dt", {}, "Kind"),
    element("dd", {}, element("span", { class: `badge ${answer.epsilon_kind === "end-to-end" ? "good" : "warn"}` }, answer.epsilon_kind)),
    element("dt", {}, "Protects"),
    element("dd", {}, `one ${answer.epsilon_noun}`),
    element("dt", {}, "Delta"),
    element("dd", {}, answer.delta.toExponential(1)),
  );
  const number = answer.shown;
  const picture =
    budget === null
      ? element(
          "div",
          {},
          element("p", { class: answer.weak ? "alone-number weak" : "alone-number" }, number),
          element("p", { class: "sub" }, "epsilon; no budget was set"),
        )
      : gauge(answer, budget);
  const lines = element("dl", { class: "lines" });
  const worst = answer.epsilon_all_others;
  const line = (name, value) => lines.append(element("dt", {}, name), element("dd", {}, value));
  if (worst !== null && answer.shown_all_others !== answer.shown) {
    line("Against the coalition stated", number);
    line("If all others collude", answer.shown_all_others);
  } else line("Whoever colludes", number);
  const text = answer.weak
    ? [element("b", { class: "weak" }, "A weak guarantee: "), "above 10 an epsilon rules out very little."]
    : [
        `A bet on whether one ${answer.epsilon_noun} took part is won `,
        element("b", {}, `at most ${answer.bet} times in 100`),
        ". With a coin: 50.",
      ];
  return element(
    "div",
    { class: "card" },
    title,
    element("div", { class: "gauged" }, picture, facts),
    lines,
    element("p", { class: "say" }, ...text),
    element(
      "details",
      {},
      element("summary", {}, "What these words mean"),
      ...[page.kinds[answer.epsilon_kind], page.units[answer.epsilon_unit], ...(answer.epsilon_against ?? [])]
        .filter(Boolean)
        .map((sentence) => element("p", { class: "say" }, sentence)),
    ),
  );
}

// A half circle from 0 to the budget.
function gauge(answer, budget) {
  const point = (share, radius) => {
    const angle = Math.PI * (1 - Math.max(0, Math.min(1, share)));
    return `${(90 + radius * Math.cos(angle)).toFixed(1)} ${(86 - radius * Math.sin(angle)).toFixed(1)}`;
  };
  const share = answer.epsilon / budget;
  const tight = share > 0.9;
  const svg = shape("svg", {
    class: "gauge",
    viewBox: "0 0 180 112",
    role: "img",
    "aria-label": `epsilon ${answer.shown} of a budget of ${budget}`,
  });
  const arc = (to, colour) =>
    shape("path", { d: `M${point(0, 66)}A66 66 0 0 1 ${point(to, 66)}`, fill: "none", stroke: colour, "stroke-width": 15 });
  svg.append(arc(1, "var(--raised)"), arc(share, tight ? "var(--loss)" : "var(--accent)"));
  const worst = answer.epsilon_all_others;
  if (worst && answer.shown_all_others !== answer.shown)
    svg.append(
      shape("path", {
        d: `M${point(worst / budget, 54)}L${point(worst / budget, 80)}`,
        stroke: "var(--ink)",
        "stroke-width": 2,
        "stroke-dasharray": "3 2",
      }),
    );
  const text = (x, y, content, name = "") => {
    const made = shape("text", { x, y, "text-anchor": "middle", class: name });
    made.textContent = content;
    svg.append(made);
  };
  text(90, 78, answer.shown, answer.weak ? "number weak" : "number");
  text(90, 98, `of budget ${budget}`);
  text(24, 106, "0");
  text(156, 106, String(budget));
  return svg;
}

function opponentCard(group, answer) {
  const run = runsOf(group)[0];
  const strong = run.alone_is_estimator;
  const finish = group.finish[chosen.measure];
  const chance = /auroc$|c_index$/.test(chosen.measure) ? 0.5 : chosen.measure === "accuracy" ? run.majority : null;
  const marks = [];
  if (chance !== null) marks.push([chance, "chance", null]);
  marks.push([answer.alone, "alone", "circle"]);
  if (group.plain?.[chosen.measure]) marks.push([group.plain[chosen.measure], group.plain_name, "square"]);
  if (finish) marks.push([finish.score, finish.method, "diamond-open"]);
  const low = Math.min(...marks.map(([value]) => value)),
    high = Math.max(...marks.map(([value]) => value));
  const scale = element("div", { class: "scale", "aria-hidden": "true" }, element("div", { class: "rail" }));
  marks.forEach(([value, name, symbol]) => {
    const at = `${(100 * (value - low)) / (high - low || 1)}%`;
    if (symbol) {
      const svg = shape("svg", { viewBox: "0 0 15 15" });
      svg.append(mark(symbol, 7.5, 7.5, symbol === "circle" ? 13 : 10, symbol === "circle" ? style("--ink") : style("--quiet"), style("--card")));
      svg.style.left = at;
      scale.append(svg);
    }
    const above = name === "pooled" || name === "joint" || name === group.plain_name;
    const words = above ? [`${name} `, element("b", {}, score3(value))] : [element("b", {}, score3(value)), name];
    const label = element("span", { class: above ? "above" : "" }, ...words);
    label.style.left = above ? `min(${at}, 100% - 24px)` : at;
    scale.append(label);
  });
  const kind = strong
    ? element("li", {}, element("span", {}, element("b", {}, "Strong: "), "the best of the stated estimators, chosen by each one's own records"))
    : element("li", { class: "so" }, "The private model, trained by itself with the same settings");
  const weak = answer.said.kind === "weak";
  return element(
    "div",
    { class: "card" },
    element("h2", {}, "Was alone a fair opponent?"),
    marks.length > 1 ? scale : null,
    element(
      "ul",
      { class: "ticks" },
      weak ? element("li", { class: "no" }, answer.said.lede[0]) : null,
      kind,
      element("li", {}, "Same inputs, same test persons, no noise"),
    ),
  );
}

// What stays where it is and what leaves.
function wallCard(group, answer) {
  const run = runsOf(group)[0];
  const records = run.clients.reduce((sum, client) => sum + client.examples, 0);
  const clients = Object.keys(group.clients).length;
  const costs = group.costs[answer.method];
  const dp = answer.epsilon_kind !== "none";
  const arrow = shape("svg", { viewBox: "0 0 30 16", "aria-hidden": "true" });
  arrow.append(shape("path", { d: "M0 8h24M18 2l8 6-8 6", fill: "none", stroke: "currentColor", "stroke-width": 2.6 }));
  const first = (text) => element("b", { class: "first" }, text);
  return element(
    "div",
    { class: "card wall" },
    element(
      "div",
      { class: "side" },
      element("span", { class: "badge good" }, "stays"),
      first(records ? `${records.toLocaleString("en")} records` : "all records"),
      element("span", {}, element("b", {}, String(clients)), ` private model${clients === 1 ? "" : "s"}`),
      element("span", {}, "every score"),
    ),
    element("div", { class: "gate" }, arrow),
    element(
      "div",
      { class: "side" },
      element("span", { class: "badge acc" }, "leaves"),
      first(dp ? "a shared model with noise" : "a shared model without noise"),
      element("span", {}, element("b", {}, plural(run.rounds, "time"))),
      costs?.sent_words ? element("span", {}, element("b", {}, costs.sent_words), ` sent per ${group.noun} in all`) : null,
    ),
  );
}

// One line per site, with its curve.
function sitesCard() {
  const holder = element("div", { class: "card c12", id: "sites" });
  const fill = () => {
    const group = chosenGroup(),
      answer = headlined(group);
    holder.hidden = !answer;
    if (!answer) return;
    const own = (group.answers[`own_${chosen.measure}`] ?? []).find((one) => one.method === answer.method);
    const keeps = runsOf(group)[0].methods[answer.method]?.keeps;
    const curve = group.curves[answer.method]?.[`${keeps}_${chosen.measure}`];
    const head = [group.noun, "alone", "joined", "gain, points", "by round", own ? "own test part" : null, "epsilon"].filter(Boolean);
    const body = answer.by_client.map((one) => {
      const mine = own?.by_client.find((other) => other.client === one.client);
      const cells = [
        element("th", { scope: "row" }, one.name),
        element("td", { class: "number" }, one.alone === null ? "" : score3(one.alone)),
        element("td", { class: "number" }, score3(one.score)),
        one.unchanged
          ? element("td", { class: "number" }, element("b", {}, "no change"))
          : element("td", { class: "number" }, element("b", {}, points(one.gain)), element("small", {}, one.interval ? between(...one.interval) : "")),
        element("td", { class: "number" }, sparkline(curve?.clients[one.client], one.alone)),
      ];
      if (own)
        cells.push(
          element(
            "td",
            { class: "number" },
            mine && mine.alone !== null ? `${score3(mine.alone)} \u2192 ${score3(mine.score)}` : "cannot be judged",
            element("small", {}, mine ? points(mine.gain) : "a class is too rare there"),
          ),
        );
      cells.push(element("td", { class: "number" }, answer.epsilon_kind === "none" ? "none" : answer.shown));
      return element("tr", {}, ...cells);
    });
    const table = element(
      "table",
      { class: "sites" },
      element("caption", {}, `${answer.method} against alone, ${measureName()}; dashes in the curves: alone`),
      element("thead", {}, element("tr", {}, ...head.map((name, i) => element("th", { scope: "col", class: i ? "number" : null }, name)))),
      element("tbody", {}, ...body),
    );
    holder.replaceChildren(
      element("h3", {}, `${group.noun[0].toUpperCase()}${group.noun.slice(1)} by ${group.noun}`),
      element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${group.noun} by ${group.noun}` }, table),
    );
  };
  return { node: holder, fill };
}

function sparkline(series, alone) {
  const values = series?.mean ?? [];
  if (values.length < 2) return "";
  const low = Math.min(...values, alone ?? Infinity),
    high = Math.max(...values, alone ?? -Infinity);
  const y = (value) => (26 - (22 * (value - low)) / (high - low || 1)).toFixed(1);
  const x = (i) => (2 + (104 * i) / (values.length - 1)).toFixed(1);
  const svg = shape("svg", { class: "spark", viewBox: "0 0 112 30", "aria-hidden": "true" });
  if (alone !== null)
    svg.append(shape("path", { d: `M0 ${y(alone)}H112`, stroke: "var(--quiet)", "stroke-dasharray": "3 3", fill: "none" }));
  svg.append(
    shape("path", { d: `M${values.map((value, i) => `${x(i)} ${y(value)}`).join("L")}`, fill: "none", stroke: "var(--accent)", "stroke-width": 1.8 }),
    shape("circle", { cx: x(values.length - 1), cy: y(values.at(-1)), r: 3, fill: "var(--accent)" }),
  );
  return svg;
}

// What could make the answer wrong, and what words mean.
function doubtsCard() {
  const holder = element("div", { class: "card c12", id: "doubts" });
  const fill = () => {
    const lines = [];
    for (const group of page.groups) {
      const runs = runsOf(group);
      lines.push(...group.warnings);
      if (runs.length === 1) lines.push("One seed only: a difference of a few points may be chance.");
    }
    if (page.runs.some((run) => run.simulation))
      lines.push("A simulation: its noise can be recomputed from the seed, so these epsilons say what a real run would cost.");
    holder.replaceChildren(
      element("h3", {}, "How sure can one be?"),
      element("ul", { class: "ticks" }, ...unique(lines).map((text) => element("li", { class: "so" }, text))),
      element("details", {}, element("summary", {}, "What was run"), ...page.groups.map((group) => element("p", { class: "say" }, described(group)))),
    );
  };
  return { node: holder, fill };
}
