// Small pieces of the page. Text is always set as text: names from a run's folder are never markup.

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function section(id, title, ...children) {
  const made = element(
    "section",
    { id, "aria-labelledby": `${id}-title` },
    element("h2", { id: `${id}-title` }, title),
    ...children,
  );
  document.getElementById("main").append(made);
  return made;
}

// A labelled select. `options` is a function, asked again by `refresh`, because a live run brings new ones.
function select(label, options, changed) {
  const control = element("select", { onchange: () => changed() });
  const made = { node: element("label", {}, label, control), control };
  made.refresh = () => {
    const before = control.value;
    const entries = options();
    const same =
      entries.length === control.options.length &&
      entries.every(([value, text], i) => control.options[i].value === value && control.options[i].text === text);
    if (!same) {
      control.replaceChildren(...entries.map(([value, text]) => element("option", { value }, text)));
      if (entries.some(([value]) => value === before)) control.value = before;
    }
    made.node.hidden = entries.length < 2;
  };
  Object.defineProperty(made, "value", {
    get: () => control.value,
    set: (value) => {
      control.value = value;
    },
  });
  made.refresh();
  return made;
}

const isNumber = (value) => typeof value === "number";

function cell(value, heading = false) {
  const text =
    value === null || value === undefined ? "" : isNumber(value) ? String(+value.toPrecision(5)) : String(value);
  return element(
    heading ? "th" : "td",
    { class: isNumber(value) ? "number" : null, scope: heading ? "row" : null },
    text,
  );
}

function table(caption, columns, rows, { headings = true, limit = Infinity } = {}) {
  const numeric = columns.map((_, i) => rows.length > 0 && rows.every((row) => isNumber(row[i]) || row[i] === null));
  const head = element(
    "tr",
    {},
    ...columns.map((name, i) => element("th", { scope: "col", class: numeric[i] ? "number" : null }, name)),
  );
  const body = rows
    .slice(0, limit)
    .map((row) => element("tr", {}, ...row.map((value, i) => cell(value, headings && i === 0))));
  const more = rows.length > limit ? ` (the first ${limit} of ${rows.length} rows; the CSV file has all)` : "";
  return element(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    element(
      "table",
      {},
      element("caption", {}, caption + more),
      element("thead", {}, head),
      element("tbody", {}, ...body),
    ),
  );
}

function csv(columns, rows) {
  const field = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [columns, ...rows].map((row) => row.map(field).join(",")).join("\n") + "\n";
}

function download(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// What a method looks like in the charts, as plotly draws it: one tiny chart would be heavy, so line and mark only.
const SHAPES = {
  circle: "M16 4a4 4 0 1 0 .01 0z",
  square: "M12 4h8v8h-8z",
  diamond: "M16 3l5 5-5 5-5-5z",
  "triangle-up": "M16 3l5 9H11z",
  "triangle-down": "M16 13l-5-9h10z",
  x: "M12 4l8 8m0-8l-8 8",
  cross: "M16 3v10m-5-5h10",
  star: "M16 2l1.8 4.2 4.4.4-3.3 3 1 4.4-3.9-2.3-3.9 2.3 1-4.4-3.3-3 4.4-.4z",
};
function swatch(method) {
  const { colour, symbol } = look(method);
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 32 16");
  svg.setAttribute("class", "swatch");
  svg.setAttribute("aria-hidden", "true");
  for (const d of ["M0 8h32", SHAPES[symbol] ?? SHAPES.diamond]) {
    const path = document.createElementNS(space, "path");
    for (const [key, value] of Object.entries({ d, stroke: colour, fill: colour, "stroke-width": 2 }))
      path.setAttribute(key, value);
    svg.append(path);
  }
  return svg;
}
