// Who sends to whom, round by round, and who was there.

function graphFigure() {
  let timer = null;
  const again = () => made.update();
  const runs = select("Run", runOptions, again);
  const run = () => page.runs[runs.value || 0];
  // Hidden methods stay in this list: one picture shows one method, whichever it is.
  const names = select(
    "Method",
    () =>
      Object.keys(run().graph.methods)
        .sort((a, b) => (b === "proxyfl") - (a === "proxyfl"))
        .map((name) => [name, name]),
    again,
  );
  const slider = element("input", {
    type: "range",
    min: "0",
    value: "0",
    "aria-label": "Round",
    id: "graph-round",
    oninput: again,
  });
  const play = element("button", { type: "button", onclick: () => (timer ? stop() : start()) }, "Play");
  const said = element("p", { role: "status", id: "graph-words", class: "quiet" });

  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }
  function start() {
    play.textContent = "Stop";
    timer = setInterval(() => {
      slider.value = Number(slider.value) >= Number(slider.max) ? 0 : Number(slider.value) + 1;
      again();
    }, 700);
  }

  function draw() {
    const shownRun = run(),
      series = shownRun.graph.methods[names.value];
    const note = shownRun.graph.note ?? "";
    const rows = Object.entries(shownRun.graph.methods).flatMap(([method, one]) =>
      one.rounds.flatMap((round, i) =>
        shownRun.graph.pictures[one.pictures[i]].edges.map(([from, to, share]) => [method, round + 1, from, to, share]),
      ),
    );
    const columns = ["method", "round", "sender", "receiver", "share of the sender's mass"];
    slider.disabled = !series;
    if (!series) {
      said.textContent = note || "No method of this run exchanges models.";
      return { panels: [], rows, columns };
    }
    slider.max = series.rounds.length - 1;
    const at = Math.min(Number(slider.value), series.rounds.length - 1);
    const picture = shownRun.graph.pictures[series.pictures[at]],
      clients = clientsOf(shownRun);
    const words = sentence(picture, clients, series.rounds[at], shownRun.rounds);
    said.textContent = words;
    slider.setAttribute("aria-valuetext", words);
    return {
      panels: [picturePanel(picture, clients), ...presence(shownRun, names.value, series, clients)],
      rows,
      columns,
      note,
    };
  }

  const made = figure({
    id: "graph",
    title: "Who sent to whom",
    controls: [runs, names, element("label", {}, "Round", slider), play, said],
    draw,
    span: wideIfGroups(5),
  });
  return made;
}

function sentence(picture, clients, round, rounds) {
  const name = (id) => clients.get(String(id)) ?? `client ${id}`;
  const away = [...clients.keys()].filter((id) => !picture.present.includes(Number(id))).map(name);
  const moves =
    picture.edges.length > 16
      ? `${picture.edges.length} messages`
      : picture.edges.map(([from, to]) => `${name(from)} to ${name(to)}`).join("; ") || "no messages";
  return (
    `Round ${round + 1} of ${rounds}: ${picture.present.length} of ${clients.size} present` +
    (away.length ? `, away: ${listed(away)}` : "") +
    (picture.leaving.length ? `, leaving: ${listed(picture.leaving.map(name))}` : "") +
    `. ${moves}.`
  );
}

function picturePanel(picture, clients) {
  const ids = [...clients.keys()].map(Number),
    here = new Set(picture.present);
  const place = new Map(
    ids.map((id, i) => {
      const angle = Math.PI / 2 - (2 * Math.PI * i) / ids.length;
      return [id, [Math.cos(angle), Math.sin(angle)]];
    }),
  );
  const name = (id) => clients.get(String(id)) ?? `client ${id}`;
  const both = new Set(picture.edges.map(([from, to]) => `${from}>${to}`));
  const ends = ([from, to]) => {
    // Apart from each other where two edges run between the same clients, and short of the marks.
    const [ax, ay] = place.get(from),
      [bx, by] = place.get(to),
      length = Math.hypot(bx - ax, by - ay) || 1;
    const ux = (bx - ax) / length,
      uy = (by - ay) / length,
      aside = both.has(`${to}>${from}`) ? 0.035 : 0;
    return [
      ax + 0.1 * ux - aside * uy,
      ay + 0.1 * uy + aside * ux,
      bx - 0.1 * ux - aside * uy,
      by - 0.1 * uy + aside * ux,
    ];
  };
  const drawn = picture.edges
    .filter(([from, to]) => place.has(from) && place.has(to))
    .map((edge) => [edge, ends(edge)]);
  const arrows = drawn.length <= 400;
  const annotations = !arrows
    ? []
    : drawn.map(([[, , share], [ax, ay, bx, by]]) => ({
        x: bx,
        y: by,
        ax,
        ay,
        xref: "x",
        yref: "y",
        axref: "x",
        ayref: "y",
        text: "",
        showarrow: true,
        arrowhead: 2,
        arrowwidth: 1 + 2 * share,
        arrowcolor: style("--accent"),
      }));
  const lines = {
    type: "scatter",
    mode: "lines",
    hoverinfo: "skip",
    line: { color: faint("#888888", 0.4), width: 1 },
    x: arrows ? [] : drawn.flatMap(([, [ax, , bx]]) => [ax, bx, null]),
    y: arrows ? [] : drawn.flatMap(([, [, ay, , by]]) => [ay, by, null]),
  };
  const middles = {
    type: "scatter",
    mode: "markers",
    hoverinfo: "text",
    marker: { size: 14, color: "none" },
    x: drawn.map(([, [ax, , bx]]) => (ax + bx) / 2),
    y: drawn.map(([, [, ay, , by]]) => (ay + by) / 2),
    text: drawn.map(
      ([[from, to, share]]) => `${name(from)} sends ${+(100 * share).toFixed(1)} % of its mass to ${name(to)}`,
    ),
  };
  const label = (id) => name(id) + (here.has(id) ? (picture.leaving.includes(id) ? " (leaves)" : "") : " (away)");
  const nodes = {
    type: "scatter",
    mode: "markers+text",
    x: ids.map((id) => place.get(id)[0]),
    y: ids.map((id) => place.get(id)[1]),
    text: ids.length > 24 ? ids.map(String) : ids.map(label),
    hovertext: ids.map(label),
    hoverinfo: "text",
    textposition: ids.map((id) => {
      const [x, y] = place.get(id);
      return y > 0.8 ? "top center" : y < -0.8 ? "bottom center" : x > 0 ? "middle right" : "middle left";
    }),
    marker: {
      size: 18,
      symbol: ids.map((id) => (!here.has(id) ? "circle-open" : picture.leaving.includes(id) ? "x" : "circle")),
      color: ids.map((id) => style(here.has(id) ? "--ink" : "--quiet")),
    },
  };
  const bare = { visible: false, range: [-1.75, 1.75] };
  return {
    traces: [lines, middles, nodes],
    height: narrow() ? 280 : 320,
    layout: {
      annotations,
      xaxis: bare,
      yaxis: { ...bare, range: [-1.25, 1.25] },
      scaleanchored: true,
    },
  };
}

// Only where somebody was missing is there something to see.
function presence(run, method, series, clients) {
  const pictures = series.pictures.map((key) => run.graph.pictures[key]);
  const ids = [...clients.keys()].map(Number);
  if (pictures.every((picture) => picture.present.length === ids.length)) return [];
  const z = ids.map((id) => pictures.map((picture) => (picture.present.includes(id) ? 1 : 0)));
  return [
    {
      title: `Who was present (${method})`,
      height: 120 + 22 * ids.length,
      traces: [
        {
          type: "heatmap",
          z,
          x: series.rounds.map((round) => round + 1),
          y: ids.map((id) => clients.get(String(id))),
          colorscale: [
            [0, style("--grid")],
            [1, style("--accent")],
          ],
          zmin: 0,
          zmax: 1,
          tips: z.map((row, i) =>
            row.map((value, j) => `${clients.get(String(ids[i]))}, round ${series.rounds[j] + 1}: ${value ? "present" : "away"}`),
          ),
        },
      ],
      layout: { xaxis: { title: "round", type: "category" }, yaxis: { autorange: "reversed", type: "category" } },
    },
  ];
}
