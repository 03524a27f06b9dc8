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
    element("h2", { id: `${id}-title`, class: "sec" }, title),
    element("div", { class: "grid" }, ...children),
  );
  document.getElementById("main").append(made);
  return made;
}

// A labelled select. `options` is a function, asked again by `refresh`, because a live run brings new ones.
function select(label, options, changed) {
  const control = element("select", { onchange: () => changed() });
  const made = { node: element("label", {}, element("span", {}, label), control), control };
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

// What a method looks like in the charts.
function swatch(method) {
  const { colour, symbol } = look(method);
  const svg = shape("svg", { viewBox: "0 0 26 13", class: "swatch", "aria-hidden": "true" });
  svg.append(shape("path", { d: "M0 6.5h26", stroke: colour, "stroke-width": 2 }));
  svg.append(mark(symbol, 13, 6.5, 9, colour, style("--card")));
  return svg;
}
