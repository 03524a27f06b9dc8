// The data of the page and questions about it. Nothing here touches the document but to read the embedded data.

const page = JSON.parse(document.getElementById("data").textContent);

// What the reader has chosen for all charts.
const chosen = { hidden: new Set(), measure: "accuracy" };

const ROLES = ["private", "proxy", "received"];
const MEASURES = { accuracy: "accuracy", macro_accuracy: "macro-accuracy" };
const KINDS = {
  "end-to-end": "covers everything that left the house, for every record of the client",
  conditional:
    "holds only with the private model taken as fixed, " +
    "although the proxy learns from it and it saw all data without DP",
  none: "no differential privacy: no bound",
};

// Okabe and Ito's colours, which readers with any colour vision tell apart; the shape says the same again.
const LOOKS = {
  alone: ["ink", "circle"],
  proxyfl: ["#D55E00", "star"],
  fml: ["#E69F00", "triangle-down"],
  avgpush: ["#009E73", "cross"],
  fedavg: ["#56B4E9", "triangle-up"],
  cwt: ["#CC79A7", "x"],
  regular: ["#0072B2", "square"],
  joint: ["#999999", "diamond"],
};
const SPARE = [
  ["#8C6D00", "pentagon"],
  ["#6A3D9A", "hexagon"],
  ["#1B7F79", "hourglass"],
  ["#A0522D", "bowtie"],
];
const DASHES = { private: "solid", proxy: "dash", received: "dot" };

function methods() {
  const named = new Set(page.runs.flatMap((run) => Object.keys(run.methods)));
  const known = Object.keys(LOOKS).filter((name) => named.has(name));
  return [...known, ...[...named].filter((name) => !(name in LOOKS))];
}

const shown = () => methods().filter((name) => !chosen.hidden.has(name));

function look(method) {
  const others = methods().filter((name) => !(name in LOOKS));
  const [colour, symbol] = LOOKS[method] ?? SPARE[others.indexOf(method) % SPARE.length];
  // Some shapes fill less of their square than others.
  const size = { star: 1.5, "triangle-up": 1.25, "triangle-down": 1.25 }[symbol] ?? 1;
  return { colour: colour === "ink" ? style("--ink") : colour, symbol, size: (base) => base * size };
}

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const faint = (colour, share) =>
  colour +
  Math.round(share * 255)
    .toString(16)
    .padStart(2, "0");

// The runs of a group, and what a group or run is called.
const runsOf = (group) => group.runs.map((index) => page.runs[index]);
const groupName = (group) => group.label || "all runs";
function runName(run) {
  const group = page.groups.find((one) => runsOf(one).includes(run));
  const twins = runsOf(group).filter((other) => other.seed === run.seed).length > 1;
  return [group.label, `seed ${run.seed}`, twins ? run.name : ""].filter(Boolean).join(", ");
}

// Client ids with their names, those of pooled methods (one model for all) left out.
function clientsOf(run) {
  const found = new Map(run.clients.map((client, id) => [String(id), client.name]));
  for (const [name, series] of Object.entries(run.series)) {
    if (run.methods[name]?.pooled) continue;
    for (const [id, client] of Object.entries(series.clients)) found.set(id, client.name);
  }
  return new Map([...found].sort((a, b) => a[0] - b[0]));
}

function last(values) {
  for (let i = (values?.length ?? 0) - 1; i >= 0; i -= 1) if (values[i] !== null) return values[i];
  return null;
}

// The last score of the model that a client keeps under a method. A pooled method has one model, which counts for all.
function kept(run, method, client, measure = chosen.measure) {
  const about = run.methods[method];
  const clients = run.series[method]?.clients ?? {};
  const entry = about?.pooled ? Object.values(clients)[0] : clients[client];
  return entry ? last(entry.scores[`${about.keeps}_${measure}`]) : null;
}

function gain(run, method, client, measure = chosen.measure) {
  const here = kept(run, method, client, measure);
  const there = kept(run, "alone", client, measure);
  return here === null || there === null ? null : here - there;
}

// Epsilon of one client after its last round; both accountants give upper bounds, so the lower one counts.
function epsilon(client, accountant = "best", at = null) {
  const value = (name) => (at === null ? last(client[name]) : client[name][at]);
  const values = (accountant === "best" ? ["rdp", "pld"] : [accountant])
    .map(value)
    .filter((one) => one !== null && one !== undefined);
  return values.length ? Math.min(...values) : null;
}

// The largest epsilon over the clients of some runs, with kind and delta. Never one without the other.
function worst(runs, method) {
  let found = null;
  for (const run of runs) {
    for (const client of Object.values(run.series[method]?.clients ?? {})) {
      const value = client.kind === "none" ? Infinity : (epsilon(client) ?? 0);
      if (!found || value > found.epsilon) found = { epsilon: value, kind: client.kind, delta: client.delta };
    }
  }
  return found;
}

function costWords(cost) {
  if (!cost) return "";
  if (cost.kind === "none") return "no differential privacy (epsilon infinite)";
  return `epsilon ${cost.epsilon.toFixed(2)} (${cost.kind}) at delta ${cost.delta.toExponential(1)}`;
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const deviation = (values) => Math.sqrt(mean(values.map((value) => (value - mean(values)) ** 2)));
const points = (difference) => `${difference >= 0 ? "+" : "\u2212"}${Math.abs(100 * difference).toFixed(1)}`;
const span = (values) => `${points(Math.min(...values))} to ${points(Math.max(...values))}`;
const unique = (values) => [...new Set(values)];

// Add what a live run has recorded since: rounds go to the end, totals are added up.
function extend(run, series, graph) {
  for (const [name, more] of Object.entries(series)) {
    const here = (run.series[name] ??= { rounds: [], scored: [], clients: {} });
    const before = { rounds: here.rounds.length, scored: here.scored.length };
    here.rounds.push(...more.rounds);
    here.scored.push(...more.scored);
    for (const [id, client] of Object.entries(more.clients)) {
      const mine = (here.clients[id] ??= { ...client, scores: {}, rdp: [], pld: [], sums: {}, present: 0 });
      Object.assign(mine, { kind: client.kind, delta: client.delta, left: client.left });
      mine.present += client.present;
      for (const [key, value] of Object.entries(client.sums)) mine.sums[key] = (mine.sums[key] ?? 0) + value;
      for (const key of ["rdp", "pld"]) pad(mine[key], before.rounds).push(...client[key]);
      for (const [key, values] of Object.entries(client.scores)) {
        pad((mine.scores[key] ??= []), before.scored).push(...values);
      }
    }
    for (const mine of Object.values(here.clients)) {
      for (const key of ["rdp", "pld"]) pad(mine[key], here.rounds.length);
      for (const values of Object.values(mine.scores)) pad(values, here.scored.length);
    }
    run.progress[name] = Math.max(run.progress[name] ?? 0, ...more.rounds.map((round) => round + 1));
  }
  Object.assign(run.graph.pictures, graph.pictures);
  for (const [name, more] of Object.entries(graph.methods)) {
    const here = (run.graph.methods[name] ??= { rounds: [], pictures: [] });
    here.rounds.push(...more.rounds);
    here.pictures.push(...more.pictures);
  }
}

function pad(values, length) {
  while (values.length < length) values.push(null);
  return values;
}
