// Epsilon over rounds, against each client's budget. An epsilon is never named without its kind.

// What was spent after each round: the largest over all clients and the smallest, or one client's.
function spending(group, method, client, accountant) {
  const found = group.epsilons[method];
  const series = found?.[accountant];
  if (!series) return { kind: found?.kind ?? "none", known: found !== undefined, found: [] };
  const alone = client === "all" || isPooled(group, method) ? null : (series.clients[client] ?? []);
  const points = found.rounds
    .map((round, i) => [round, alone ? [alone[i], alone[i]] : [series.low[i], series.high[i]]])
    .filter(([, [low]]) => low !== null && low !== undefined);
  return { kind: found.kind, known: true, found: points };
}

// An epsilon is a bound: to two digits, never down.
const rounded = (value) => (Math.ceil(100 * value - 1e-9) / 100).toFixed(2);

function budgetLines(group, client, span) {
  const lines = new Map();
  for (const [id, budget] of Object.entries(group.budget?.epsilon ?? {})) {
    if (client === "all" || client === id)
      lines.set(budget, [...(lines.get(budget) ?? []), group.clients[id] ?? `client ${id}`]);
  }
  return [...lines].map(([budget, names]) => {
    const whose = names.length === 1 ? names[0] : names.length > 3 ? `${names.length} clients` : names.join(", ");
    return {
      type: "scatter",
      mode: "lines+text",
      x: span,
      y: [budget, budget],
      name: `budget ${budget} (${whose})`,
      line: { color: style("--loss"), width: 2, dash: "longdashdot" },
      text: [`budget ${budget}: ${whose}`, ""],
      textposition: "top right",
      textfont: { color: style("--loss") },
      tips: [`budget ${budget}`, `budget ${budget}`],
    };
  });
}

function privacySection() {
  const again = () => made.update();
  const clients = select("Client", () => [["all", "largest over all"], ...allClients()], again);
  const accountants = select(
    "Accountant",
    () => [
      ["best", "the lower of both"],
      ["pld", "PLD"],
      ["rdp", "RDP (the paper's)"],
    ],
    again,
  );

  function draw() {
    const rows = [],
      panels = [],
      without = new Set();
    for (const group of page.groups) {
      const lines = new Map();
      for (const method of shown()) {
        const { kind, known, found } = spending(group, method, clients.value, accountants.value);
        if (kind === "none") {
          if (known) without.add(method);
          continue;
        }
        for (const [round, [low, high]] of found) rows.push([groupName(group), method, round, high, low, kind]);
        // Methods with equal settings spend alike: one line for all of them, named after each.
        const key = JSON.stringify([kind, found]);
        lines.set(key, { names: [...(lines.get(key)?.names ?? []), method], kind, found });
      }
      const traces = [...lines.values()].map(({ names, kind, found }) => {
        const { colour, symbol, size } = look(names[0]);
        return {
          type: "scatter",
          mode: found.length > 1 ? "lines+markers" : "markers",
          x: found.map(([round]) => round),
          y: found.map(([, [, high]]) => high),
          name: `${names.join(", ")} (${kind})`,
          end: `${names.join(", ")} (${kind})`,
          endWords: rounded,
          line: { color: colour, width: 2 },
          marker: { color: colour, symbol, size: size(7), maxdisplayed: 8 },
          hoverinfo: "text",
          text: found.map(
            ([round, [low, high]]) =>
              `${names.join(", ")}<br>round ${round}: epsilon ${high} (${kind})` +
              (low < high ? `<br>smallest over clients ${low}` : ""),
          ),
        };
      });
      if (!traces.length) continue;
      const span = [1, Math.max(2, ...traces.flatMap((trace) => trace.x))];
      const budgets = budgetLines(group, clients.value, span);
      panels.push({
        title: panelTitle(group),
        traces: [...traces, ...budgets],
        height: 300,
        layout: { xaxis: { title: "round" }, yaxis: { title: "epsilon", rangemode: "tozero" }, ...legend() },
      });
    }
    sameRange(panels);
    const told = panels.some((panel) => panel.traces.some((trace) => trace.name.startsWith("budget")))
      ? ` Budgets count by ${unique(page.groups.flatMap((group) => group.budget?.accountant ?? []))
          .join(", ")
          .toUpperCase()}.`
      : " No budget was set.";
    const none = without.size ? ` Without differential privacy, hence without a bound: ${listed([...without])}.` : "";
    return {
      panels,
      rows,
      columns: ["group", "method", "round", "epsilon, largest over clients", "epsilon, smallest", "kind"],
      note:
        "What the data of a client has paid so far. A line named after several methods stands for all of them: " +
        `they spend alike.${told}${none}`,
    };
  }
  const made = figure({ id: "epsilon", title: "Epsilon over rounds", controls: [clients, accountants], draw, span: 12 });
  section("privacy", "What it costs in privacy", made.node, ...auditFigures(), ...additions());
}

// The certificate and the audits, if other commands put them into the run's folder.
function additions() {
  const titles = {
    certificate: "Privacy certificate",
    audit: "Privacy audit",
    membership: "Membership inference",
  };
  return page.runs.flatMap((run) =>
    Object.entries(run.additions).filter(([key]) => key !== "effects").map(([key, content]) =>
      element(
        "div",
        { class: "addition card c12", "data-addition": key },
        element("h3", {}, `${titles[key] ?? key}: ${run.name}`),
        // The figure has the curve and its table.
        ...documentTables({ ...content, roc: undefined }, titles[key] ?? key),
      ),
    ),
  );
}

// Any JSON document as tables: lists of objects become rows, everything else lines of name and value.
function documentTables(content, caption) {
  const lines = [],
    tables = [];
  const walk = (value, path) => {
    if (
      Array.isArray(value) &&
      value.length &&
      value.every((item) => item && typeof item === "object" && !Array.isArray(item))
    ) {
      const columns = unique(value.flatMap((item) => Object.keys(item)));
      tables.push(
        table(
          path || caption,
          columns,
          value.map((item) => columns.map((column) => word(item[column]))),
        ),
      );
    } else if (value && typeof value === "object" && !Array.isArray(value)) {
      for (const [key, inner] of Object.entries(value)) walk(inner, path ? `${path}.${key}` : key);
    } else if (value !== undefined) lines.push([path || caption, word(value)]);
  };
  walk(content, "");
  return [...(lines.length ? [table(caption, ["name", "value"], lines)] : []), ...tables];
}

// A value as one word or list of words.
function word(value) {
  if (value === null || value === undefined || (Array.isArray(value) && !value.length)) return "none";
  if (Array.isArray(value) && value.every((one) => typeof one !== "object")) return value.join(", ");
  return typeof value === "object" ? JSON.stringify(value) : value;
}
