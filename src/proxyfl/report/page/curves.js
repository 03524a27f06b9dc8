// Scores over rounds: a line per method and model, with a band over clients and seeds.

const BANDS = {
  deviation: ["one standard deviation", (found, i) => [found.below[i], found.above[i]]],
  range: ["lowest to highest", (found, i) => [found.low[i], found.high[i]]],
  none: ["none", null],
};

// The series of all clients together, or of one; a pooled model is everybody's.
function curveOf(group, method, role, client) {
  const found = group.curves[method]?.[`${role}_${chosen.measure}`];
  if (!found) return null;
  return client === "all" || isPooled(group, method) ? found.all : (found.clients[client] ?? null);
}

function curveTraces(method, role, found, kind) {
  const { colour, symbol, size } = look(method);
  const x = found.rounds;
  const name = `${method}, ${role}`;
  const traces = [];
  const bounds = BANDS[kind][1];
  if (bounds && found.n) {
    const edges = x.map((_, i) => bounds(found, i));
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
  const spread = (i) =>
    found.n ? ` (${found.low[i].toFixed(3)} to ${found.high[i].toFixed(3)}, ${found.n[i]} values)` : "";
  traces.push({
    type: "scatter",
    mode: x.length > 1 ? "lines+markers" : "markers",
    x,
    y: found.mean,
    name,
    end: role === "private" || found.rounds.length === 1 ? method : name,
    meta: method,
    line: { color: colour, width: 2, dash: DASHES[role] },
    marker: { color: colour, symbol, size: size(8), maxdisplayed: 8 },
    text: x.map((round, i) => `${name}<br>round ${round}: ${found.mean[i].toFixed(3)}${spread(i)}`),
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
  const clients = select("Client", () => [["all", "all, averaged"], ...allClients()], again);
  const bands = select("Band", () => Object.entries(BANDS).map(([key, [words]]) => [key, words]), again);
  const wanted = (role, keeps) =>
    roles.value === "all" || roles.value === role || (roles.value === "kept" && role === keeps);

  function draw() {
    const rows = [],
      panels = [];
    for (const group of page.groups) {
      const traces = [];
      for (const method of shown()) {
        const keeps = runsOf(group).find((run) => method in run.methods)?.methods[method].keeps;
        for (const role of ROLES.filter((one) => wanted(one, keeps))) {
          const found = curveOf(group, method, role, clients.value);
          if (!found) continue;
          traces.push(...curveTraces(method, role, found, bands.value));
          const at = (key, i, otherwise) => (found[key] ? found[key][i] : otherwise);
          found.rounds.forEach((round, i) => {
            const mean = found.mean[i];
            const more = [at("std", i, null), at("low", i, mean), at("high", i, mean), at("n", i, 1)];
            rows.push([groupName(group), method, role, round, mean, ...more]);
          });
        }
      }
      if (traces.length)
        panels.push({
          title: panelTitle(group),
          traces,
          height: 340,
          layout: { xaxis: { title: "round" }, yaxis: { title: measureName() }, ...legend() },
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
        `mean ${measureName()}`,
        "standard deviation",
        "lowest",
        "highest",
        "values",
      ],
      note:
        "Solid: private model. Dashed: proxy after local training. Dotted: proxy as received from the exchange. " +
        "Mean over seeds and the clients that were scored in the round, on the common test set.",
    };
  }
  // a real site alone has no picture of the others' messages
  const graphs = page.runs.some((run) => run.simulation) ? [graphFigure().node] : [];
  const span = graphs.length ? wideIfGroups(7) : 12;
  const made = figure({ id: "curves", title: "Test score over rounds", controls: [roles, clients, bands], draw, span });
  section("learning", "How the models learn", made.node, ...graphs);
}

// Names at the ends of lines where there is room for them; elsewhere above the chart.
const legend = () => (narrow() ? { showlegend: true } : { ends: true });

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

// Several groups stand side by side and need the width.
const wideIfGroups = (span) => (page.groups.length > 1 ? 12 : span);
