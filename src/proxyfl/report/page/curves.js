// Accuracy over rounds: a line per method and model, with a band over clients and seeds.

const BANDS = {
  deviation: [
    "one standard deviation",
    (values) => {
      const m = mean(values),
        s = deviation(values);
      return [m - s, m + s];
    },
  ],
  range: ["lowest to highest", (values) => [Math.min(...values), Math.max(...values)]],
  none: ["none", () => null],
};

// Per scored round, the values of all clients asked for in all runs of the group.
function gathered(group, method, role, client, measure) {
  const rounds = new Map();
  for (const run of runsOf(group)) {
    const series = run.series[method];
    if (!series) continue;
    const pooled = run.methods[method].pooled;
    for (const [id, entry] of Object.entries(series.clients)) {
      if (client !== "all" && id !== client && !pooled) continue;
      entry.scores[`${role}_${measure}`]?.forEach((value, i) => {
        const round = series.scored[i];
        if (value === null) return;
        if (!rounds.has(round)) rounds.set(round, []);
        rounds.get(round).push(value);
      });
    }
  }
  return [...rounds].sort((a, b) => a[0] - b[0]);
}

function curveTraces(method, role, found, bounds) {
  const { colour, symbol, size } = look(method);
  const x = found.map(([round]) => round + 1),
    y = found.map(([, values]) => mean(values));
  const name = `${method}, ${role}`;
  const traces = [];
  const edges = found.map(([, values]) => bounds(values));
  if (edges[0] && found.some(([, values]) => values.length > 1)) {
    traces.push({
      type: "scatter",
      mode: "lines",
      x: [...x, ...[...x].reverse()],
      y: [...edges.map((e) => e[1]), ...edges.map((e) => e[0]).reverse()],
      fill: "toself",
      fillcolor: faint(colour.length === 7 ? colour : "#888888", 0.13),
      line: { width: 0 },
      hoverinfo: "skip",
      showlegend: false,
      name: `${name} band`,
    });
  }
  traces.push({
    type: "scatter",
    mode: x.length > 1 ? "lines+markers" : "markers",
    x,
    y,
    name,
    meta: method,
    line: { color: colour, width: 2, dash: DASHES[role] },
    marker: { color: colour, symbol, size: size(7), maxdisplayed: 8 },
    text: found.map(
      ([round, values]) =>
        `${name}<br>round ${round + 1}: ${mean(values).toFixed(3)}` +
        (values.length > 1
          ? ` (${Math.min(...values).toFixed(3)} to ${Math.max(...values).toFixed(3)}, ${values.length} values)`
          : ""),
    ),
    hoverinfo: "text",
  });
  return traces;
}

function curvesSection() {
  const again = () => made.update();
  const roles = select(
    "Model",
    () => [["kept", "the one that is kept"], ...ROLES.map((role) => [role, role]), ["all", "all of them"]],
    again,
  );
  const clients = select(
    "Client",
    () => [["all", "all, averaged"], ...new Map(page.runs.flatMap((run) => [...clientsOf(run)]))],
    again,
  );
  const bands = select("Band", () => Object.entries(BANDS).map(([key, [words]]) => [key, words]), again);

  function draw() {
    const measure = chosen.measure,
      bounds = BANDS[bands.value][1];
    const rows = [],
      panels = [];
    for (const group of page.groups) {
      const traces = [];
      for (const method of shown()) {
        const keeps = runsOf(group).find((run) => method in run.methods)?.methods[method].keeps;
        for (const role of ROLES) {
          if (!(roles.value === "all" || roles.value === role || (roles.value === "kept" && role === keeps))) continue;
          const found = gathered(group, method, role, clients.value, measure);
          if (!found.length) continue;
          traces.push(...curveTraces(method, role, found, bounds));
          for (const [round, values] of found)
            rows.push([
              groupName(group),
              method,
              role,
              round + 1,
              mean(values),
              deviation(values),
              Math.min(...values),
              Math.max(...values),
              values.length,
            ]);
        }
      }
      if (traces.length)
        panels.push({
          title: page.groups.length > 1 ? groupName(group) : "",
          traces,
          height: 420,
          layout: {
            xaxis: { title: "round" },
            yaxis: { title: MEASURES[measure], tickformat: ".2f" },
            ...legend(),
          },
        });
    }
    sameRange(panels);
    return {
      panels,
      rows,
      columns: [
        "group",
        "method",
        "model",
        "round",
        `mean ${MEASURES[measure]}`,
        "standard deviation",
        "lowest",
        "highest",
        "values",
      ],
      note:
        "Solid: private model. Dashed: proxy after local training. Dotted: proxy as received from the exchange. " +
        "Mean over clients and seeds, on the common test set.",
    };
  }
  const made = figure({ id: "curves", title: "Test score over rounds", controls: [roles, clients, bands], draw });
  section("learning", "How the models learn", made.node);
}

// A legend where there is room for it; elsewhere the switches above say which colour is whose.
const legend = () =>
  narrow() || page.groups.length > 1
    ? {}
    : {
        showlegend: true,
        legend: { x: 1.01, y: 1, xanchor: "left", itemclick: false, itemdoubleclick: false, font: { size: 11 } },
      };

// Panels side by side are compared by eye, so they share one scale.
function sameRange(panels, along = "y") {
  if (panels.length < 2) return;
  const reach = (trace) => {
    const bars = trace[`error_${along}`]?.visible ? trace[`error_${along}`] : null;
    return trace[along].flatMap((value, i) => (bars ? [value - bars.arrayminus[i], value + bars.array[i]] : [value]));
  };
  const values = panels.flatMap((panel) => panel.traces.flatMap(reach)).filter(isNumber);
  const low = values.reduce((a, b) => Math.min(a, b)),
    high = values.reduce((a, b) => Math.max(a, b)),
    room = 0.06 * (high - low || 1);
  for (const panel of panels) panel.layout[`${along}axis`].range = [low - room, high + room];
}
