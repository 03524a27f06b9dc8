// Class by class: what a client has, where collaboration helped, and what is taken for what.

const classAccuracy = (run, method, client) => run.by_class[method]?.[client]?.accuracy ?? null;
const classGain = (run, method, client) => run.by_class[method]?.[client]?.gain ?? null;
const isPooledIn = (run, method) => run.methods[method]?.pooled ?? false;
const runOptions = () => page.runs.map((run, i) => [String(i), runName(run)]);
const LATER = "Class by class numbers are written when a run ends.";

// Blue where joining helped, orange where it hurt: told apart without red and green.
const diverging = () => [
  [0, "#B35806"],
  [0.5, style("--ground")],
  [1, "#2166AC"],
];

function helpedFigure() {
  const again = () => made.update();
  const runs = select("Run", runOptions, again);
  const run = () => page.runs[runs.value || 0];
  const names = select(
    "Method",
    () =>
      methods()
        .filter((name) => name !== "alone" && run().confusion[name])
        .sort((a, b) => (b === "proxyfl") - (a === "proxyfl"))
        .map((name) => [name, name]),
    again,
  );

  function draw() {
    const one = run(),
      method = names.value,
      columns = ["client", "class", "training examples", "alone", method || "method", "difference"];
    if (!method || !one.confusion.alone)
      return {
        panels: [],
        rows: [],
        columns,
        note: one.ended ? "Needs a finished alone and another method in the same run." : LATER,
      };
    const clients = [...clientsOf(one)].filter(([id]) => classGain(one, method, id));
    const z = clients.map(([id]) => classGain(one, method, id));
    const rows = clients.flatMap(([id, name], i) =>
      one.classes.map((label, k) => {
        const there = classAccuracy(one, "alone", id)[k],
          here = classAccuracy(one, method, id)[k];
        return [name, label, one.clients[id]?.class_counts[k] ?? null, there, here, z[i][k]];
      }),
    );
    if (!z.length) return { panels: [], rows, columns, note: "" };
    const many = one.classes.length > 12 || narrow();
    const traces = [
      {
        type: "heatmap",
        z: z.map((row) => row.map((value) => (value === null ? null : 100 * value))),
        x: one.classes,
        y: clients.map(([, name]) => name),
        zmin: -100,
        zmax: 100,
        colorscale: diverging(),
        xgap: 1,
        ygap: 1,
        text: z.map((row) => row.map((value) => (value === null ? "" : points(value).replace(/\.\d$/, "")))),
        texttemplate: many ? "" : "%{text}",
        colorbar: { title: { text: "points", side: "right" }, thickness: 12, outlinewidth: 0 },
        customdata: clients.map(([id]) => one.classes.map((_, k) => one.clients[id]?.class_counts[k] ?? 0)),
        hovertemplate:
          "%{y}, class %{x}<br>%{z:+.1f} points against alone<br>" +
          "%{customdata} training examples of its own<extra></extra>",
      },
    ];
    return {
      panels: [
        {
          traces,
          height: 110 + 30 * clients.length,
          layout: {
            xaxis: { title: "class", type: "category", showgrid: false },
            yaxis: { autorange: "reversed", type: "category", showgrid: false },
          },
        },
      ],
      rows,
      columns,
      note:
        `Accuracy within each class: ${method}'s ${one.methods[method].keeps} model minus the same client's model ` +
        "trained alone, in points. Blue: joining helped; orange: it hurt.",
    };
  }
  const made = figure({ id: "helped", title: "Where collaboration helped", controls: [runs, names], draw, wide: true });
  return made;
}

function clientFigure() {
  const again = () => made.update();
  const runs = select("Run", runOptions, again);
  const run = () => page.runs[runs.value || 0];
  const clients = select("Client", () => [...clientsOf(run())], again);

  function draw() {
    const one = run(),
      id = clients.value,
      client = one.clients[id];
    const columns = ["class", "training examples", ...shown()];
    if (!client) return { panels: [], rows: [], columns, note: LATER };
    const scored = shown().map((method) => [method, classAccuracy(one, method, id)]);
    const rows = one.classes.map((label, k) => [
      label,
      client.class_counts[k],
      ...scored.map(([, values]) => values?.[k] ?? null),
    ]);
    const x = { title: "class", type: "category", showgrid: false, categoryorder: "array", categoryarray: one.classes };
    const counts = {
      type: "bar",
      x: one.classes,
      y: client.class_counts,
      marker: { color: "#56B4E9" },
      name: "training examples",
      hovertemplate: "class %{x}: %{y} training examples<extra></extra>",
    };
    const marks = scored
      .filter(([, values]) => values)
      .map(([method, values]) => {
        const { colour, symbol, size } = look(method);
        return {
          type: "scatter",
          mode: "markers",
          x: one.classes,
          y: values,
          name: method,
          marker: { color: colour, symbol, size: size(7) },
          hovertemplate: `${method}, class %{x}: %{y:.3f}<extra></extra>`,
        };
      });
    const panels = [
      {
        title: `What ${client.name} has: ${client.examples} training examples`,
        traces: [counts],
        height: 300,
        layout: { xaxis: x, yaxis: { title: "examples" } },
      },
    ];
    if (marks.length)
      panels.push({
        title: "What its models get right, class by class",
        traces: marks,
        height: 300,
        layout: {
          scattermode: "group",
          scattergap: 0.3,
          xaxis: { ...x, showdividers: true },
          yaxis: { title: "accuracy", range: [-0.05, 1.05] },
        },
      });
    return {
      panels,
      rows,
      columns,
      note:
        "What it has: its own training examples. What its models get right: accuracy within each class of the common " +
        "test set, of the model that the client keeps under each method.",
    };
  }
  const made = figure({ id: "client-classes", title: "One client's classes", controls: [runs, clients], draw });
  return made;
}

function confusionFigure() {
  const again = () => made.update();
  const runs = select("Run", runOptions, again);
  const run = () => page.runs[runs.value || 0];
  const names = select(
    "Method",
    () =>
      methods()
        .filter((name) => run().confusion[name])
        .sort((a, b) => (b === "proxyfl") - (a === "proxyfl"))
        .map((name) => [name, name]),
    again,
  );
  const clients = select(
    "Client",
    () =>
      Object.keys(run().confusion[names.value] ?? {}).map((id) => [
        id,
        isPooledIn(run(), names.value) ? "all together" : (run().names[id] ?? `client ${id}`),
      ]),
    again,
  );
  const roles = select(
    "Model",
    () =>
      Object.keys(run().confusion[names.value]?.[clients.value] ?? {})
        .sort((a, b) => (b === run().methods[names.value].keeps) - (a === run().methods[names.value].keeps))
        .map((role) => [role, role.replace(/_own$/, ", own test part")]),
    again,
  );

  function draw() {
    const one = run(),
      found = one.confusion[names.value]?.[clients.value]?.[roles.value];
    const columns = ["true class", "taken for", "test examples", "share of the true class"];
    if (!found)
      return { panels: [], rows: [], columns, note: one.ended ? "The last round recorded was not scored." : LATER };
    const { counts, shares } = found;
    const rows = counts.flatMap((row, i) =>
      row.map((count, j) => [one.classes[i], one.classes[j], count, shares[i][j]]),
    );
    const traces = [
      {
        type: "heatmap",
        z: shares,
        x: one.classes,
        y: one.classes,
        text: counts,
        texttemplate: one.classes.length > 12 || narrow() ? "" : "%{text}",
        customdata: counts,
        zmin: 0,
        zmax: 1,
        colorscale: [
          [0, style("--ground")],
          [1, style("--deep")],
        ],
        xgap: 1,
        ygap: 1,
        colorbar: { title: { text: "share of the true class", side: "right" }, thickness: 12, outlinewidth: 0 },
        hovertemplate: "true %{y}, taken for %{x}: %{customdata} (%{z:.0%})<extra></extra>",
      },
    ];
    return {
      panels: [
        {
          traces,
          height: narrow() ? 340 : 120 + 36 * Math.min(one.classes.length, 14),
          layout: {
            xaxis: { title: "taken for", type: "category", showgrid: false },
            yaxis: { title: "true class", type: "category", autorange: "reversed", showgrid: false },
          },
        },
      ],
      rows,
      columns,
      note: roles.value.endsWith("_own")
        ? "Counts of the client's own test part; the diagonal is right."
        : "Counts of the common test set; the diagonal is right.",
    };
  }
  const made = figure({
    id: "confusion",
    title: "Confusion matrix",
    controls: [runs, names, clients, roles],
    draw,
    wide: true,
  });
  return made;
}

function classesSection() {
  section("classes", "Class by class", helpedFigure().node, clientFigure().node, confusionFigure().node);
}
