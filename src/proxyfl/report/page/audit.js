// What an audit found: the claim beside what was shown of it, and the curve of membership inference.

function auditFigures() {
  const found = [];
  if (page.runs.some((run) => run.additions.audit?.step_by_step)) found.push(boundsFigure());
  if (page.runs.some((run) => run.additions.membership?.roc)) found.push(membershipFigure());
  return found.map((made) => made.node);
}

// What was claimed and what could be shown at most, apart from what was shown.
const BAR_COLOURS = {
  claimed: "--ink",
  "an ideal attacker in one run": "--quiet",
  "only right guesses (ceiling)": "--quiet",
};

// Claim and bounds as bars, one panel a run.
function boundsFigure() {
  function draw() {
    const rows = [],
      panels = [];
    for (const run of page.runs) {
      const audit = run.additions.audit;
      if (!audit?.step_by_step) continue;
      const bars = [
        ["claimed", audit.epsilon],
        ["shown step by step, at least", audit.step_by_step.lower_bound],
        ["shown in one run, at least", audit.one_run.f_dp],
        ["an ideal attacker in one run", audit.one_run.ideal],
        ["only right guesses (ceiling)", audit.ceiling],
      ];
      for (const [name, value] of bars) rows.push([run.name, name, value, audit.confidence, audit.verdict]);
      const listed = [...bars].reverse();
      panels.push({
        title: `${run.name}, client ${audit.client}: ${audit.verdict}`,
        height: 260,
        traces: [
          {
            type: "bar",
            orientation: "h",
            y: listed.map(([name]) => name),
            x: listed.map(([, value]) => value),
            text: listed.map(([, value]) => value.toFixed(2)),
            marker: { color: listed.map(([name]) => style(BAR_COLOURS[name] ?? "--accent")) },
          },
        ],
        layout: { xaxis: { title: "epsilon", rangemode: "tozero" }, yaxis: { type: "category" } },
      });
    }
    return {
      panels,
      rows,
      columns: ["run", "what", "epsilon", "confidence", "verdict"],
      note:
        "The run's federation was trained again, with canaries in place of one client's records. A bound below the " +
        "claim does not prove the claim; one above it would disprove it. The grey bars are limits of the method: what " +
        "the best attacker would show in one run, and what only right guesses would.",
    };
  }
  return figure({ id: "audit", title: "Audit: what of epsilon can be shown", draw });
}

// True positives over false positives on log axes, one line a target.
function membershipFigure() {
  const looks = {
    "proxy with DP": ["--accent", "solid"],
    "proxy without DP": ["--loss", "dash"],
    "private model": ["--ink", "dot"],
  };
  const shares = {
    type: "log",
    tickvals: [0.0001, 0.001, 0.01, 0.1, 1],
    ticktext: ["0.01 %", "0.1 %", "1 %", "10 %", "100 %"],
  };
  function draw() {
    const rows = [],
      panels = [];
    for (const run of page.runs) {
      const membership = run.additions.membership;
      if (!membership?.roc) continue;
      for (const point of membership.roc) rows.push([run.name, point.target, point.fpr, point.tpr]);
      const traces = membership.targets.map(({ target }) => {
        // Zero has no place on a log axis.
        const points = membership.roc.filter((point) => point.target === target && point.tpr > 0);
        const [colour, dash] = looks[target] ?? ["--ink", "solid"];
        return {
          type: "scatter",
          mode: "lines",
          name: target,
          x: points.map((point) => point.fpr),
          y: points.map((point) => point.tpr),
          line: { color: style(colour), width: 2, dash },
        };
      });
      const least = Math.min(...membership.roc.map((point) => point.fpr));
      const chance = { color: style("--quiet"), width: 1 };
      traces.push({
        type: "scatter",
        mode: "lines",
        name: "guessing",
        x: [least, 1],
        y: [least, 1],
        line: chance,
        hoverinfo: "skip",
      });
      const { members, non_members: others } = membership.targets[0];
      panels.push({
        title: `${run.name}: ${membership.federations} federations, ${members} scores of members, ${others} of others`,
        height: 400,
        traces,
        layout: {
          xaxis: { title: "false-positive rate", ...shares },
          yaxis: { title: "true-positive rate", ...shares },
          showlegend: true,
        },
      });
    }
    return {
      panels,
      rows,
      columns: ["run", "target", "false-positive rate", "true-positive rate"],
      note:
        "Likelihood ratio with shadow federations: how many members are recognised when few others are taken for " +
        "members. The private model never leaves its client.",
    };
  }
  return figure({ id: "membership", title: "Membership inference", draw });
}
