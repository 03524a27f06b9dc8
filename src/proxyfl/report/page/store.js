// The data of the page. Every number in it comes ready from Python: nothing here or in the other scripts computes one.

const page = JSON.parse(document.getElementById("data").textContent);

// What the reader has chosen for all charts.
const chosen = { hidden: new Set(), measure: Object.keys(page.measures)[0] ?? "accuracy", group: 0, method: "" };

const ROLES = ["private", "proxy", "received"];
const DASHES = { private: "solid", proxy: "dash", received: "dot" };
const measureName = () => page.measures[chosen.measure] ?? chosen.measure;

const methods = () => Object.keys(page.looks);
const shown = () => methods().filter((name) => !chosen.hidden.has(name));

const isDark = () => getComputedStyle(document.documentElement).colorScheme === "dark";
function look(method) {
  const [light, dark, symbol] = page.looks[method];
  // Some shapes fill less of their square than others.
  const size = { star: 1.15, "triangle-up": 1.15, "triangle-down": 1.15 }[symbol] ?? 1;
  return { colour: isDark() ? dark : light, symbol, size: (base) => base * size };
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
const panelTitle = (group) => (page.groups.length > 1 ? groupName(group) : "");
function runName(run) {
  const group = page.groups.find((one) => runsOf(one).includes(run));
  const twins = runsOf(group).filter((other) => other.seed === run.seed).length > 1;
  return [group.label, `seed ${run.seed}`, twins ? run.name : ""].filter(Boolean).join(", ");
}

// A method's answer in a group, by the chosen measure; undefined if it has not been scored.
const answerOf = (group, method) => group.answers[chosen.measure]?.find((one) => one.method === method);

// Client ids with their names: of a run, of all groups.
const clientsOf = (run) => new Map(Object.entries(run.names));
const allClients = () => new Map(page.groups.flatMap((group) => Object.entries(group.clients)));
const isPooled = (group, method) =>
  runsOf(group)
    .map((run) => run.methods[method])
    .find(Boolean)?.pooled ?? false;

function costWords(answer) {
  if (answer.epsilon_kind === "none") return "no differential privacy (epsilon infinite)";
  return `epsilon ${answer.shown} per ${answer.epsilon_noun} (${answer.epsilon_kind}) at delta ${answer.delta.toExponential(1)}`;
}

const points = (difference) => `${difference >= 0 ? "+" : "\u2212"}${(100 * Math.abs(difference)).toFixed(1)}`;
const between = (low, high) => `${points(low)} to ${points(high)}`;
const chosenGroup = () => page.groups[chosen.group] ?? page.groups[0];
const isLower = () => page.lower.includes(chosen.measure);
const unique = (values) => [...new Set(values)];
