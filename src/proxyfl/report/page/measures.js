// Every measure of the model that is kept: site by site, on the common test set and on the site's own. What was
// predicted against what came: calibration, or survival curves where the task is the time to an event.

const SETS = { common: "the common test set", own: "its own test part" };

// The chosen measure's name without the mark of the own test part, and which test set that is.
const plainMeasure = () => chosen.measure.replace(/^own_/, "");
const chosenSet = () => (chosen.measure.startsWith("own_") ? "own" : "common");

const kindOf = (run) => run.task.kind ?? "classification";
const someTask = (kind) => page.runs.some((run) => kindOf(run) === kind);

function scoreTrace(run, method) {
  const { colour, symbol, size } = look(method);
  const found = run.judged.filter((one) => one.method === method && one.on === chosenSet());
  const scored = found.filter((one) => isNumber(one.scores[plainMeasure()]?.[0]));
  if (!scored.length) return null;
  const values = scored.map((one) => one.scores[plainMeasure()]);
  const words = ([value, low, high]) =>
    `${value.toFixed(3)}${isNumber(low) ? ` (95 %: ${low.toFixed(3)} to ${high.toFixed(3)})` : ""}`;
  return {
    type: "scatter",
    mode: "markers",
    name: method,
    x: values.map(([value]) => value),
    y: scored.map((one) => one.name),
    text: scored.map((one, i) => `${method}, ${one.name}: ${words(values[i])}`),
    hoverinfo: "text",
    marker: { color: colour, symbol, size: size(11) },
    error_x: {
      type: "data",
      array: values.map(([value, , high]) => (isNumber(high) ? high - value : 0)),
      arrayminus: values.map(([value, low]) => (isNumber(low) ? value - low : 0)),
      color: colour,
    },
  };
}

function scoresFigure() {
  const runs = select("Run", runOptions, () => made.update());
  const run = () => page.runs[runs.value || 0];

  function draw() {
    const traces = shown()
      .map((method) => scoreTrace(run(), method))
      .filter(Boolean);
    const rows = run().judged.flatMap((one) =>
      Object.entries(one.scores).map(([measure, values]) => [
        one.method,
        one.name,
        SETS[one.on],
        page.measures[measure] ?? measure,
        ...values,
      ]),
    );
    const names = unique(traces.flatMap((trace) => trace.y));
    return {
      panels: traces.length
        ? [
            {
              traces,
              height: 100 + 30 * names.length,
              layout: {
                xaxis: { title: `${measureName()}` },
                yaxis: { autorange: "reversed", type: "category" },
                showlegend: true,
              },
            },
          ]
        : [],
      rows,
      columns: ["method", "client", "test set", "measure", "value", "95 % from", "to"],
      note:
        `The model that each client keeps, judged on ${SETS[chosenSet()]}; choose the measure above. Bands: the ` +
        "middle 95 % over bootstrap samples of test persons. The table has every measure on both test sets.",
    };
  }
  const made = figure({ id: "scores", title: "What the kept models reach", controls: [runs], draw, span: 12 });
  return made;
}

// What the calibration of a task is about.
function calibrationWords(run) {
  const { unit, range } = run.task;
  const often = "For each tenth of the probabilities that has examples. On the dotted line a model is calibrated; below it, it says more than comes true.";
  if (kindOf(run) === "regression")
    return {
      x: `mean that the model predicts${unit ? `, ${unit}` : ""}`,
      y: `mean that came${unit ? `, ${unit}` : ""}`,
      range,
      note: "Tenths of the examples, from the lowest prediction to the highest. On the dotted line predictions are right on average; a flatter line says that they are too far apart.",
    };
  if (kindOf(run) === "multilabel")
    return { x: "probability of a finding that the model says", y: "share that had it", note: `All findings together. ${often}` };
  const positive = run.classes.length === 2 ? `of ${run.classes[1]}` : "of the predicted class";
  return { x: `probability ${positive} that the model says`, y: "share that came true", note: often };
}

function calibrationFigure() {
  const again = () => made.update();
  const runs = select("Run", runOptions, again);
  const run = () => page.runs[runs.value || 0];
  const clients = select("Client", () => [...clientsOf(run())], again);
  const sets = select(
    "Test set",
    () => Object.entries(SETS).filter(([set]) => run().judged.some((one) => one.on === set)),
    again,
  );

  function draw() {
    const wanted = run().judged.filter(
      (one) => one.on === sets.value && (isPooledIn(run(), one.method) || String(one.client) === clients.value),
    );
    const drawn = wanted.filter((one) => one.calibration.length && shown().includes(one.method));
    const traces = drawn.map((one) => {
      const { colour, symbol, size } = look(one.method);
      return {
        type: "scatter",
        mode: "lines+markers",
        name: one.method,
        x: one.calibration.map(([said]) => said),
        y: one.calibration.map(([, came]) => came),
        line: { color: colour, width: 2 },
        marker: { color: colour, symbol, size: size(8) },
        tips: one.calibration.map(
          ([said, came, n]) => `${one.method}: said ${said.toFixed(2)}, came ${came.toFixed(2)}<br>${n} examples`,
        ),
      };
    });
    const words = calibrationWords(run());
    const ends = words.range ?? [0, 1];
    const room = 0.02 * (ends[1] - ends[0]);
    const range = [ends[0] - room, ends[1] + room];
    if (traces.length)
      traces.unshift({
        type: "scatter",
        mode: "lines",
        name: "as said",
        x: ends,
        y: ends,
        line: { color: style("--quiet"), width: 1, dash: "dot" },
        hoverinfo: "skip",
      });
    const meanings = [...new Set(drawn.map((one) => one.probabilities).filter(Boolean))];
    const meant = meanings.length ? ` Probabilities are for ${meanings.join(", or ")}: a balance trained the models.` : "";
    made.node.hidden = kindOf(run()) === "time-to-event";
    return {
      panels: traces.length
        ? [{ traces, height: 320, layout: { xaxis: { title: words.x, range }, yaxis: { title: words.y, range }, showlegend: true } }]
        : [],
      rows: drawn.flatMap((one) => one.calibration.map((point) => [one.method, one.name, SETS[one.on], ...point])),
      columns: ["method", "client", "test set", "said", "came true", "examples"],
      note: words.note + " Written when a client's last round is scored." + meant,
    };
  }
  const made = figure({
    id: "calibration",
    title: "Calibration: does what the model says come true?",
    controls: [runs, clients, sets],
    draw,
    span: 6,
  });
  return made;
}

// How many ill are found at each price in false alarms.
function rocFigure() {
  const again = () => made.update();
  const runs = select("Run", runOptions, again);
  const run = () => page.runs[runs.value || 0];
  const clients = select("Client", () => [...clientsOf(run())], again);
  const sets = select(
    "Test set",
    () => Object.entries(SETS).filter(([set]) => run().judged.some((one) => one.on === set)),
    again,
  );

  function draw() {
    const wanted = run().judged.filter(
      (one) => one.on === sets.value && (isPooledIn(run(), one.method) || String(one.client) === clients.value),
    );
    const drawn = wanted.filter((one) => one.roc?.length && shown().includes(one.method));
    const columns = ["method", "client", "test set", "false-positive rate", "true-positive rate"];
    made.node.hidden = kindOf(run()) !== "classification" || run().classes.length > 2;
    if (!drawn.length)
      return { panels: [], rows: [], columns, note: "ROC curves are drawn for two classes, when a client's last round is scored." };
    const traces = drawn.map((one) => {
      const { colour } = look(one.method);
      const area = one.scores.auroc?.[0];
      return {
        type: "scatter",
        mode: "lines",
        name: `${one.method}${isNumber(area) ? ` ${area.toFixed(3)}` : ""}`,
        x: one.roc.map(([wrong]) => wrong),
        y: one.roc.map(([, found]) => found),
        line: { color: colour, width: one.method === "alone" ? 2 : 2.5, dash: isPooledIn(run(), one.method) ? "dash" : "solid" },
        tips: one.roc.map(([wrong, found]) => `${one.method}: finds ${(100 * found).toFixed(0)} %, false alarms ${(100 * wrong).toFixed(0)} %`),
      };
    });
    traces.unshift({
      type: "scatter",
      mode: "lines",
      name: "coin 0.500",
      x: [0, 1],
      y: [0, 1],
      line: { color: style("--quiet"), width: 1, dash: "dot" },
      hoverinfo: "skip",
    });
    const at = (one) => one.scores.sensitivity_at_90_specificity?.[0];
    const words = drawn.filter((one) => isNumber(at(one))).map((one) => `${one.method} ${(100 * at(one)).toFixed(0)} %`);
    return {
      panels: [
        {
          traces,
          height: 320,
          layout: {
            xaxis: { title: "false alarms, share of the negatives", range: [-0.02, 1.02] },
            yaxis: { title: "found, share of the positives", range: [-0.02, 1.02] },
            showlegend: true,
          },
        },
      ],
      rows: drawn.flatMap((one) => one.roc.map((point) => [one.method, one.name, SETS[one.on], ...point])),
      columns,
      note: words.length ? `With one false alarm in ten negatives they find: ${listed(words)}.` : "",
    };
  }
  const made = figure({ id: "roc", title: "ROC: what is found at which price", controls: [runs, clients, sets], draw, span: 6 });
  return made;
}

// Thirds of the test examples by the risk that each model gives them: what it predicts, and Kaplan and Meier's estimate.
const THIRDS = { "lowest risk": "--accent", middle: "--quiet", "highest risk": "--loss" };

function survivalPanel(run, one) {
  const traces = [];
  for (const group of one.risk_groups) {
    const colour = style(THIRDS[group.name] ?? "--ink");
    const at = group.points.map(([time]) => time);
    const words = `${one.method}, ${group.name}: ${group.examples} examples, ${group.events} events`;
    const back = [...group.points].reverse();
    traces.push({
      type: "scatter",
      mode: "lines",
      x: [...at, ...back.map(([time]) => time)],
      y: [...group.points.map((point) => point[4]), ...back.map((point) => point[3])],
      fill: "toself",
      fillcolor: faint(colour, 0.15),
      showlegend: false,
      hoverinfo: "skip",
    });
    const line = (name, place, dash) => ({
      type: "scatter",
      mode: dash === "solid" ? "lines+markers" : "lines",
      name: dash === "solid" ? group.name : "predicted",
      showlegend: dash === "solid" || group === one.risk_groups.at(-1),
      x: at,
      y: group.points.map((point) => point[place]),
      line: { color: colour, width: 2, dash },
      marker: { color: colour, symbol: "circle", size: 6 },
      tips: group.points.map((point) => `${words}<br>free at ${point[0]}: predicted ${point[1].toFixed(3)}, observed ${point[2].toFixed(3)}`),
    });
    traces.push(line("observed", 2, "solid"), line("predicted", 1, "dash"));
  }
  const unit = run.task.unit ? `, ${run.task.unit}` : "";
  return {
    title: one.method,
    traces,
    height: 340,
    layout: {
      xaxis: { title: `time${unit}` },
      yaxis: { title: "share free of the event", range: [-0.02, 1.04] },
      showlegend: true,
    },
  };
}

function survivalFigure() {
  const again = () => made.update();
  const runs = select("Run", runOptions, again);
  const run = () => page.runs[runs.value || 0];
  const clients = select("Client", () => [...clientsOf(run())], again);
  const sets = select(
    "Test set",
    () => Object.entries(SETS).filter(([set]) => run().judged.some((one) => one.on === set && one.risk_groups.length)),
    again,
  );

  function draw() {
    const drawn = run().judged.filter(
      (one) =>
        one.on === sets.value &&
        one.risk_groups.length &&
        shown().includes(one.method) &&
        (isPooledIn(run(), one.method) || String(one.client) === clients.value),
    );
    made.node.hidden = kindOf(run()) !== "time-to-event";
    return {
      panels: drawn.map((one) => survivalPanel(run(), one)),
      rows: drawn.flatMap((one) =>
        one.risk_groups.flatMap((group) =>
          group.points.map((point) => [one.method, one.name, SETS[one.on], group.name, group.examples, group.events, ...point]),
        ),
      ),
      columns: ["method", "client", "test set", "third", "examples", "events", "time", "predicted", "observed", "95 % from", "to"],
      note:
        "Each model's test examples in thirds by the risk that it gives them. Solid: Kaplan and Meier's estimate with its " +
        "95 % band, at the ends of the intervals. Dashed: the mean of the model's predictions. Lines far apart tell " +
        "patients apart; dashed on solid means that the probabilities are right. Fewer than 30 examples are one group; a group of fewer than 10 is left out.",
    };
  }
  const made = figure({
    id: "survival",
    title: "Survival: what the models predict, and what came",
    controls: [runs, clients, sets],
    draw,
  });
  return made;
}

function measuresSection() {
  const made = [scoresFigure()];
  if (someTask("time-to-event")) made.push(survivalFigure());
  if (someTask("classification")) made.push(rocFigure());
  if (page.runs.some((run) => kindOf(run) !== "time-to-event")) made.push(calibrationFigure());
  section("measures", "The models kept, client by client", ...made.map((one) => one.node));
}
