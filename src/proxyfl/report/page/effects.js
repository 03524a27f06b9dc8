// Odds ratios that `proxyfl effects --report` has put into a run's folder.

const RATIO_TICKS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100];

function effectsFigure() {
  function draw() {
    const rows = [],
      panels = [],
      notes = [];
    for (const run of page.runs) {
      const made = run.additions.effects;
      if (!made) continue;
      for (const one of made.effects)
        rows.push([run.name, one.column, one.change, one.odds_ratio, one.low, one.high, one.uncorrected, one.reason]);
      notes.push(...made.notes.filter((note) => !notes.includes(note)));
      const known = made.effects.filter((one) => one.odds_ratio !== null).reverse();
      const refused = made.effects.length - known.length;
      if (refused) notes.push(`${refused} of ${made.effects.length} effects in ${run.name} have no interval; the table says why.`);
      if (!known.length) continue;
      const names = known.map((one) => `${one.column}: ${one.change}`);
      panels.push({
        title: `${made.client}, ${made.method}: odds of ${made.event} against ${made.otherwise}`,
        height: 60 + 26 * known.length,
        traces: [
          {
            type: "scatter",
            mode: "markers",
            x: known.map((one) => one.odds_ratio),
            y: names,
            tips: known.map((one, i) => `${names[i]}: ${one.odds_ratio.toFixed(2)} (${one.low.toFixed(2)} to ${one.high.toFixed(2)})`),
            marker: { color: style("--accent"), size: 9 },
            error_x: {
              color: style("--accent"),
              array: known.map((one) => one.high - one.odds_ratio),
              arrayminus: known.map((one) => one.odds_ratio - one.low),
            },
          },
        ],
        layout: {
          xaxis: { type: "log", title: "odds ratio, 95 % interval", tickvals: RATIO_TICKS, ticktext: RATIO_TICKS.map(String) },
          yaxis: { type: "category" },
          verticals: [{ x: 1, colour: style("--quiet"), dash: "4 4" }],
        },
      });
    }
    return {
      panels,
      rows,
      columns: ["run", "column", "change", "odds ratio", "low", "high", "uncorrected: no estimate", "reason for no interval"],
      note: notes.join(" "),
    };
  }
  return figure({ id: "odds-ratios", title: "Odds ratios, with the noise in their intervals", draw });
}

function effectsSection() {
  if (!page.runs.some((run) => run.additions.effects)) return;
  section("effects", "What the columns say", effectsFigure().node);
}
