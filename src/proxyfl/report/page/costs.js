// Seconds and bytes. Stacked by what they were spent on, per client and round.

const STACKS = {
  seconds: {
    title: "Seconds per client and round",
    unit: "milliseconds",
    scale: 1000,
    parts: [
      ["training", "seconds_training", "#0072B2", ""],
      ["evaluation", "seconds_evaluation", "#56B4E9", "/"],
      ["exchange", "seconds_exchange", "#E69F00", "x"],
    ],
  },
  bytes: {
    title: "Bytes per client and round",
    unit: "kilobytes",
    scale: 0.001,
    parts: [
      ["sent", "bytes_sent", "#D55E00", ""],
      ["received", "bytes_received", "#CC79A7", "/"],
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
    const traces = stack.parts.map(([name, key, colour, shape]) => ({
      type: "bar",
      orientation: "h",
      name,
      y: found.map(([method]) => method),
      x: found.map(([, costs]) => stack.scale * costs[key].each),
      marker: {
        color: colour,
        pattern: { shape, fillmode: "overlay", fgcolor: style("--ground"), fgopacity: 0.6, solidity: 0.2 },
      },
      hovertemplate: `%{y}, ${name}: %{x:.3s} ${stack.unit}<extra></extra>`,
    }));
    for (const [method, costs] of found)
      for (const [name, key] of stack.parts)
        rows.push([groupName(group), method, name, costs[key].each, costs[key].in_all]);
    panels.push({
      title: panelTitle(group),
      traces,
      height: 130 + 30 * found.length,
      layout: {
        barmode: "stack",
        bargap: 0.35,
        showlegend: true,
        legend: {
          orientation: "h",
          y: 1.02,
          yanchor: "bottom",
          x: 0,
          traceorder: "normal",
          itemclick: false,
          itemdoubleclick: false,
        },
        margin: { l: 48, r: 12, t: 36, b: 40 },
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
      ([key, stack]) => figure({ id: key, title: stack.title, draw: () => drawCosts(stack) }).node,
    ),
  );
}
