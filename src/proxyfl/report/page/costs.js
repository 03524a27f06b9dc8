// Seconds and bytes. Stacked by what they were spent on, per client and round.

const STACKS = {
  seconds: {
    title: "Seconds per client and round",
    unit: "seconds",
    scale: 1,
    parts: [
      ["training", "seconds_training", "--accent", false],
      ["evaluation", "seconds_evaluation", "--edge", true],
      ["exchange", "seconds_exchange", "--warn", true],
    ],
  },
  bytes: {
    title: "Bytes per client and round",
    unit: "kilobytes",
    scale: 0.001,
    parts: [
      ["sent", "bytes_sent", "--accent", false],
      ["received", "bytes_received", "--edge", true],
    ],
  },
};

function drawCosts(stack) {
  const panels = [],
    rows = [];
  for (const group of page.groups) {
    const found = shown()
      .map((method) => [method, group.costs[method]])
      .filter(([, costs]) => costs);
    if (!found.length) continue;
    const traces = stack.parts.map(([name, key, colour, hatched]) => ({
      type: "bar",
      orientation: "h",
      name,
      y: found.map(([method]) => method),
      x: found.map(([, costs]) => stack.scale * costs[key].each),
      marker: { color: style(colour), hatched },
      tips: found.map(([method, costs]) => `${method}, ${name}: ${+(stack.scale * costs[key].each).toPrecision(3)} ${stack.unit}`),
    }));
    for (const [method, costs] of found)
      for (const [name, key] of stack.parts)
        rows.push([groupName(group), method, name, costs[key].each, costs[key].in_all]);
    panels.push({
      title: panelTitle(group),
      traces,
      height: 90 + 30 * found.length,
      layout: {
        barmode: "stack",
        showlegend: true,
        xaxis: { title: `${stack.unit} per client and round` },
        yaxis: { autorange: "reversed", type: "category" },
      },
    });
  }
  return {
    panels,
    rows,
    columns: ["group", "method", "part", `${stack.title.toLowerCase()}`, "in all"],
    note:
      stack === STACKS.seconds
        ? "Wall-clock time of one client's share of a round, averaged over rounds, clients and seeds."
        : "What crossed the wire, framing included. With a hub, the hub's traffic is spread over all clients.",
  };
}

function costsSection() {
  section(
    "costs",
    "What it costs in time and traffic",
    ...Object.entries(STACKS).map(
      ([key, stack]) => figure({ id: key, title: stack.title, draw: () => drawCosts(stack), span: wideIfGroups(6) }).node,
    ),
  );
}
