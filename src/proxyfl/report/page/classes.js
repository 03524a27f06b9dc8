// Class by class: what a client has, where collaboration helped, and what is taken for what.

const classAccuracy = (run, method, client) => run.by_class[method]?.[client]?.accuracy ?? null;
const classGain = (run, method, client) => run.by_class[method]?.[client]?.gain ?? null;
const isPooledIn = (run, method) => run.methods[method]?.pooled ?? false;
const runOptions = () => page.runs.map((run, i) => [String(i), runName(run)]);
const LATER = "Class by class numbers are written when a run ends.";

// Blue where joining helped, orange where it hurt: told apart without red and green.
const diverging = () => [
  [0, isDark() ? "#c8571b" : "#c9550f"],
  [0.5, style("--card")],
  [1, isDark() ? "#3f92d6" : "#1f74bb"],
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
        words: many ? null : z.map((row) => row.map((value) => (value === null ? "" : points(value).replace(/\.\d$/, "")))),
        tips: z.map((row, i) =>
          row.map((value, k) => {
            const own = one.clients[clients[i][0]]?.class_counts[k] ?? 0;
            return `${clients[i][1]}, class ${one.classes[k]}<br>${points(value ?? 0)} points against alone<br>${own} training examples of its own`;
          }),
        ),
      },
    ];
    return {
      panels: [
        {
          traces,
          height: 110 + 30 * clients.length,
          layout: {
            xaxis: { title: "class", type: "category", categoryarray: one.classes },
            yaxis: { autorange: "reversed", type: "category" },
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
  const made = figure({ id: "helped", title: "Where collaboration helped", controls: [runs, names], draw, wide: true, span: 6 });
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
    const x = { title: "class", type: "category", categoryarray: one.classes };
    const counts = {
      type: "bar",
      x: one.classes,
      y: client.class_counts,
      marker: { color: style("--edge") },
      name: "training examples",
      tips: one.classes.map((label, k) => `class ${label}: ${client.class_counts[k]} training examples`),
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
          marker: { color: colour, symbol, size: size(9) },
          tips: one.classes.map((label, k) => `${method}, class ${label}: ${values[k]?.toFixed(3)}`),
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
          xaxis: x,
          yaxis: { title: "accuracy", range: [-0.05, 1.08] },
          showlegend: true,
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
  const made = figure({ id: "client-classes", title: "One client's classes", controls: [runs, clients], draw, span: 12 });
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
    const two = one.classes.length === 2;
    const word = (i, j) => (i === j ? (two && i ? "found" : "right") : two ? (i ? "missed" : "false alarm") : "wrong");
    const part = (share) => (share === null ? "" : ` (${(100 * share).toFixed(0)} %)`);
    const traces = [
      {
        type: "matrix",
        z: counts,
        x: one.classes,
        y: one.classes,
        words: counts.map((row, i) => row.map((_, j) => `${i === j ? "\u2713" : "\u2715"} ${word(i, j)}`)),
        tips: counts.map((row, i) =>
          row.map((count, j) => `true ${one.classes[i]}, taken for ${one.classes[j]}: ${count}${part(shares[i][j])}`),
        ),
      },
    ];
    return {
      panels: [
        {
          traces,
          height: two ? 260 : 80 + 32 * Math.min(one.classes.length, 14),
          layout: {
            xaxis: { title: "taken for", type: "category", categoryarray: one.classes },
            yaxis: { title: "true class", type: "category", autorange: "reversed", categoryarray: one.classes },
          },
        },
      ],
      rows,
      columns,
      note: roles.value.endsWith("_own")
        ? "Counts of the client's own test part; blue is right, hatched is wrong."
        : "Counts of the common test set; blue is right, hatched is wrong.",
    };
  }
  const made = figure({
    id: "confusion",
    title: "What is right and what is wrong",
    controls: [runs, names, clients, roles],
    draw,
    wide: true,
    span: 6,
  });
  return made;
}

function classesSection() {
  section("classes", "Class by class", confusionFigure().node, helpedFigure().node, clientFigure().node);
}
