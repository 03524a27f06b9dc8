// Charts of the page's own making: marks are SVG, text is HTML, so that words keep their size and can be selected.
// A chart is described by traces (scatter, bar, heatmap, matrix) and a layout with two axes; `node.data` and
// `node.layout` keep what is drawn. Nothing here knows what a chart is about.

const SVG = "http://www.w3.org/2000/svg";
const DASH = { solid: null, dash: "7 5", dot: "2 4", longdashdot: "10 4 2 4" };

function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes))
    if (value !== null && value !== undefined) made.setAttribute(key, value);
  return made;
}

const measuring = document.createElement("canvas").getContext("2d");
function textWidth(text, size = 12, weight = 400) {
  measuring.font = `${weight} ${size}px system-ui, sans-serif`;
  return measuring.measureText(text).width;
}

// Outlines of the marks, around the origin, for a mark of size 2r.
const MARKS = {
  circle: (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
  square: (r) => `M${-r * 0.9} ${-r * 0.9}h${1.8 * r}v${1.8 * r}h${-1.8 * r}z`,
  diamond: (r) => `M0 ${-1.25 * r}L${1.25 * r} 0 0 ${1.25 * r} ${-1.25 * r} 0z`,
  "triangle-up": (r) => `M0 ${-1.15 * r}L${1.1 * r} ${0.9 * r}H${-1.1 * r}z`,
  "triangle-down": (r) => `M0 ${1.15 * r}L${1.1 * r} ${-0.9 * r}H${-1.1 * r}z`,
  x: (r) => `M${-r} ${-r}L${r} ${r}M${r} ${-r}L${-r} ${r}`,
  cross: (r) => `M0 ${-1.2 * r}V${1.2 * r}M${-1.2 * r} 0H${1.2 * r}`,
  star: (r) => polygon(10, (i) => (i % 2 ? 0.55 * r : 1.3 * r)),
  pentagon: (r) => polygon(5, () => 1.15 * r),
  hexagon: (r) => polygon(6, () => 1.1 * r),
  hourglass: (r) => `M${-r} ${-r}H${r}L${-r} ${r}H${r}z`,
  bowtie: (r) => `M${-r} ${-r}V${r}L${r} ${-r}V${r}z`,
};
function polygon(corners, radius) {
  const points = Array.from({ length: corners }, (_, i) => {
    const angle = (2 * Math.PI * i) / corners - Math.PI / 2;
    return `${(radius(i) * Math.cos(angle)).toFixed(2)} ${(radius(i) * Math.sin(angle)).toFixed(2)}`;
  });
  return `M${points.join("L")}z`;
}
function mark(symbol, x, y, size, colour, halo) {
  const plain = symbol.replace(/-open$/, "");
  const open = symbol.endsWith("-open");
  const lines = plain === "x" || plain === "cross";
  return shape("path", {
    d: (MARKS[plain] ?? MARKS.diamond)(size / 2),
    transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`,
    fill: lines ? "none" : open ? halo : colour,
    stroke: lines || open ? colour : halo,
    "stroke-width": lines || open ? 2 : 1.2,
  });
}

// Round numbers within a range.
function roundTicks(low, high, wanted) {
  const rough = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough * 0.999) ?? 10 * power;
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9) + (String(step / power).startsWith("2.5") ? 1 : 0));
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) {
    const value = i * step;
    const text = Math.abs(value) >= 10000 ? value.toLocaleString("en") : value.toFixed(Math.min(digits, 8));
    found.push([value, text.replace("-", "\u2212").replace(/^\u2212(0(\.0*)?)$/, "$1")]);
  }
  return found;
}

// From data to pixels. A category has a band of its own.
function scaleFor(axis, values, from, to, wanted, categories) {
  if (axis.autorange === "reversed") [from, to] = [to, from];
  if (axis.type === "category" || values.some((value) => typeof value === "string")) {
    const names = axis.categoryarray ?? categories;
    const step = (to - from) / Math.max(1, names.length);
    const place = new Map(names.map((name, i) => [String(name), from + (i + 0.5) * step]));
    return {
      category: true,
      names,
      step: Math.abs(step),
      at: (value) => place.get(String(value)),
      ticks: names.map((name) => [name, String(name)]),
    };
  }
  const numbers = values.filter((value) => typeof value === "number" && Number.isFinite(value));
  const log = axis.type === "log";
  const turn = log ? Math.log10 : (value) => value;
  let [low, high] = axis.range ?? [
    numbers.reduce((a, b) => Math.min(a, b), Infinity),
    numbers.reduce((a, b) => Math.max(a, b), -Infinity),
  ];
  if (!axis.range) {
    if (!numbers.length) [low, high] = [0, 1];
    if (axis.rangemode === "tozero") [low, high] = [Math.min(0, low), Math.max(0, high)];
    if (!log) {
      const room = 0.06 * (high - low || Math.abs(high) || 1);
      [low, high] = [axis.rangemode === "tozero" && low === 0 ? 0 : low - room, high + room];
    }
  }
  const [a, b] = [turn(low), turn(high)];
  const at = (value) => from + ((turn(value) - a) / (b - a || 1)) * (to - from);
  const ticks = axis.tickvals
    ? axis.tickvals.map((value, i) => [value, axis.ticktext[i]]).filter(([value]) => value >= low && value <= high)
    : roundTicks(low, high, wanted);
  return { category: false, at, ticks, range: [low, high] };
}

const list = (value, i) => (Array.isArray(value) ? value[i] : value);
const unionOf = (traces, key) => [...new Set(traces.flatMap((trace) => trace[key] ?? []))];

// Where bars that are stacked end, so that the axis holds them.
function extents(traces, layout, key) {
  const along = (trace) => (trace.orientation === "h" ? "x" : "y");
  const bars = traces.filter((trace) => trace.type === "bar" && along(trace) === key);
  const values = traces.flatMap((trace) => {
    const own = trace[key] ?? [];
    const error = trace[`error_${key}`];
    if (!error || error.visible === false) return own;
    return own.flatMap((value, i) => [value - error.arrayminus[i], value + error.array[i]]);
  });
  if (!bars.length) return values;
  if (layout.barmode !== "stack") return [0, ...values];
  const totals = new Map();
  const other = key === "x" ? "y" : "x";
  for (const trace of bars)
    trace[key].forEach((value, i) => totals.set(trace[other][i], (totals.get(trace[other][i]) ?? 0) + value));
  return [0, ...totals.values()];
}

function drawChart(node, traces, layout) {
  node.data = traces;
  node.layout = layout;
  const width = node.clientWidth || 320,
    height = node.clientHeight || 300;
  const labels = []; // { x, y, text, colour, weight, align, size }: drawn as HTML, and as text in a picture
  const tips = []; // { x, y, text }
  const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", class: "main-svg" });
  const [xa, ya] = [layout.xaxis, layout.yaxis];
  const quiet = style("--quiet");
  const bare = xa.visible === false;
  const title = { x: bare ? "" : (xa.title?.text ?? ""), y: bare ? "" : (ya.title?.text ?? "") };
  const yValues = extents(traces, layout, "y"),
    xValues = extents(traces, layout, "x");
  const area = { top: title.y || layout.showlegend ? 28 : 10, bottom: height - (bare ? 6 : title.x ? 44 : 24), left: 6, right: width - 14 };
  const y = scaleFor(ya, yValues, area.bottom, area.top, Math.min(5, (area.bottom - area.top) / 45), unionOf(traces, "y"));
  if (!bare) {
    const widest = y.ticks.reduce((most, [, text]) => Math.max(most, textWidth(text)), 0);
    area.left = Math.min(widest, 0.34 * width) + 12;
  }
  const ends = layout.ends ? endLabels(traces) : [];
  if (ends.length) area.right -= ends.reduce((most, one) => Math.max(most, textWidth(one.text, 12, 600)), 0) + 4;
  if (layout.scaleanchored) square(area);
  const x = scaleFor(xa, xValues, area.left, area.right, Math.min(6, (area.right - area.left) / 70), unionOf(traces, "x"));
  const place = { x, y, area, svg, labels, tips, layout, traces };
  if (!bare) drawAxes(place, title, quiet);
  for (const one of layout.annotations ?? []) drawArrow(place, one);
  const bars = traces.filter((trace) => trace.type === "bar");
  for (const trace of traces) {
    if (trace.type === "heatmap") drawHeat(place, trace);
    else if (trace.type === "matrix") drawMatrix(place, trace);
    else if (trace.type === "bar") drawBars(place, trace, bars.indexOf(trace));
    else drawScatter(place, trace);
  }
  placeEnds(place, ends);
  node.replaceChildren(...(layout.showlegend && !ends.length ? [legendOf(traces)] : []), svg);
  for (const one of labels) node.append(labelNode(one));
  node.labels = labels;
  hover(node, tips);
}

// Equal scales in both directions, in the middle of the place.
function square(area) {
  const side = Math.min(area.right - area.left, 1.45 * (area.bottom - area.top));
  const spare = (area.right - area.left - side) / 2;
  area.left += spare;
  area.right -= spare;
}

function drawAxes({ x, y, area, svg, labels, layout }, title, quiet) {
  const grid = style("--grid");
  const upright = y.category && !x.category; // rows: the gridlines that help stand upright
  const line = (a, b, c, d, colour, more = {}) =>
    svg.append(shape("line", { x1: a, y1: b, x2: c, y2: d, stroke: colour, "stroke-width": 1, ...more }));
  const every = Math.ceil(
    (x.ticks.length * (x.ticks.reduce((most, [, text]) => Math.max(most, textWidth(text)), 0) + 10)) /
      Math.max(1, area.right - area.left),
  );
  x.ticks.forEach(([value, text], i) => {
    const at = x.at(value);
    if (upright) line(at, area.top, at, area.bottom, grid);
    if (i % Math.max(1, every) === 0) labels.push({ x: at, y: area.bottom + 12, text, colour: quiet, align: "middle" });
  });
  y.ticks.forEach(([value, text]) => {
    const at = y.at(value);
    if (!y.category) line(area.left, at, area.right, at, grid);
    labels.push({ x: area.left - 8, y: at, text, colour: y.category ? style("--ink") : quiet, align: "end", room: area.left - 8 });
  });
  for (const one of layout.verticals ?? [])
    line(x.at(one.x), area.top - 2, x.at(one.x), area.bottom + 2, one.colour, { "stroke-width": 2, "stroke-dasharray": one.dash });
  if (title.x) labels.push({ x: (area.left + area.right) / 2, y: area.bottom + 33, text: title.x, colour: quiet, align: "middle" });
  if (title.y) labels.push({ x: 0, y: 8, text: title.y, colour: quiet, align: "start" });
}

function drawScatter(place, trace) {
  const { x, y, svg, labels, tips } = place;
  const mode = trace.mode ?? "lines";
  const xs = trace.x.map((value) => (value === null ? null : x.at(value))),
    ys = trace.y.map((value) => (value === null || value === undefined ? null : y.at(value)));
  const good = (i) => Number.isFinite(xs[i]) && Number.isFinite(ys[i]);
  let path = "",
    down = false;
  xs.forEach((at, i) => {
    if (!good(i)) down = false;
    else {
      path += `${down ? "L" : "M"}${at.toFixed(1)} ${ys[i].toFixed(1)}`;
      down = true;
    }
  });
  if (trace.fill === "toself") {
    svg.append(shape("path", { d: `${path}z`, fill: trace.fillcolor, stroke: "none" }));
    return;
  }
  const line = trace.line ?? {};
  if (mode.includes("lines"))
    svg.append(
      shape("path", {
        d: path,
        fill: "none",
        stroke: line.color,
        "stroke-width": line.width ?? 2,
        "stroke-dasharray": DASH[line.dash ?? "solid"],
        "stroke-linejoin": "round",
        "stroke-linecap": line.dash && line.dash !== "solid" ? null : "round",
      }),
    );
  const error = trace.error_x;
  if (error && error.visible !== false)
    trace.x.forEach((value, i) => {
      if (!good(i)) return;
      const from = x.at(value - error.arrayminus[i]),
        to = x.at(value + error.array[i]);
      svg.append(
        shape("rect", { x: Math.min(from, to), y: ys[i] - 5, width: Math.abs(to - from), height: 10, rx: 3, fill: error.color, opacity: 0.45 }),
      );
    });
  if (mode.includes("markers")) {
    const every = Math.ceil(xs.length / (trace.marker.maxdisplayed ?? Infinity)) || 1;
    xs.forEach((at, i) => {
      if (!good(i) || (i % every && i !== xs.length - 1)) return;
      const colour = list(trace.marker.color, i);
      if (colour === "none") return;
      svg.append(mark(list(trace.marker.symbol, i) ?? "circle", at, ys[i], list(trace.marker.size, i) ?? 8, colour, style("--card")));
    });
  }
  if (mode.includes("text"))
    xs.forEach((at, i) => {
      const text = list(trace.text, i);
      if (!text || !good(i)) return;
      const where = list(trace.textposition, i) ?? "middle right";
      const gap = (list(trace.marker?.size, i) ?? 0) / 2 + 6;
      labels.push({
        x: at + (where.endsWith("right") ? (where.startsWith("middle") ? gap : 0) : where.endsWith("left") ? -gap : 0),
        y: ys[i] + (where.startsWith("top") ? -gap - 4 : where.startsWith("bottom") ? gap + 4 : 0),
        text,
        colour: trace.textfont?.color ?? style("--ink"),
        align: where.endsWith("right") ? "start" : where.endsWith("left") ? "end" : "middle",
        weight: trace.textfont?.weight,
      });
    });
  if (trace.hoverinfo === "skip") return;
  xs.forEach((at, i) => {
    if (good(i)) tips.push({ x: at, y: ys[i], text: list(trace.hovertext ?? trace.tips ?? trace.text, i) || trace.name || "" });
  });
}

function drawBars({ x, y, area, svg, labels, tips, layout, traces }, trace, number) {
  const across = trace.orientation === "h";
  const bands = across ? y : x,
    values = across ? x : y;
  const thick = 0.62 * (bands.step ?? 20);
  const key = across ? "x" : "y",
    other = across ? "y" : "x";
  const before = traces.filter((one) => one.type === "bar").slice(0, number);
  trace[key].forEach((value, i) => {
    const stacked = layout.barmode === "stack" ? before.reduce((sum, one) => sum + one[key][i], 0) : 0;
    const from = values.at(stacked),
      to = values.at(stacked + value),
      middle = bands.at(trace[other][i]);
    const colour = list(trace.marker.color, i);
    const box = across
      ? { x: Math.min(from, to), y: middle - thick / 2, width: Math.abs(to - from), height: thick }
      : { x: middle - thick / 2, y: Math.min(from, to), width: thick, height: Math.abs(to - from) };
    svg.append(shape("rect", { ...box, rx: 2, fill: colour }));
    if (trace.marker.hatched && box.width > 1) hatch(svg, box);
    const text = list(trace.text, i);
    if (text)
      labels.push({ x: Math.min(to + 6, area.right - 24), y: middle, text, colour: style("--ink"), align: "start", weight: 600 });
    tips.push({ x: (from + to) / 2, y: middle, text: list(trace.tips, i) ?? "", wide: true });
    if (!across) tips.at(-1).x = middle;
  });
}

// Stripes say the same as a colour does.
function hatch(svg, box) {
  let path = "";
  for (let at = box.x + 4; at < box.x + box.width; at += 6)
    path += `M${at.toFixed(1)} ${box.y}v${box.height}`;
  svg.append(shape("path", { d: path, stroke: style("--card"), "stroke-width": 2, opacity: 0.75 }));
}

function mixed(stops, share) {
  const at = Math.max(0, Math.min(1, share));
  let i = stops.findIndex(([edge]) => edge >= at);
  i = Math.max(1, i);
  const [from, a] = stops[i - 1],
    [to, b] = stops[i];
  const part = (at - from) / (to - from || 1);
  const read = (text) => [1, 3, 5].map((place) => parseInt(text.slice(place, place + 2), 16));
  const [one, two] = [read(a), read(b)];
  return `rgb(${one.map((value, k) => Math.round(value + part * (two[k] - value))).join(" ")})`;
}
// Ink that can be read on a colour.
function inkOn(colour) {
  const [red, green, blue] = colour.match(/[\d.]+/g).map(Number);
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#14181d" : "#ffffff";
}

function drawHeat({ x, y, area, svg, labels, tips }, trace) {
  const xs = x.category ? x.names : trace.x;
  const step = x.category ? x.step : (area.right - area.left) / Math.max(1, trace.x.length);
  trace.z.forEach((row, i) =>
    row.forEach((value, j) => {
      if (value === null) return;
      const colour = mixed(trace.colorscale, (value - trace.zmin) / (trace.zmax - trace.zmin || 1));
      const middle = x.category ? x.at(xs[j]) : area.left + (j + 0.5) * step,
        line = y.at(trace.y[i]);
      const box = { x: middle - step / 2 + 1, y: line - y.step / 2 + 1, width: Math.max(1, step - 2), height: Math.max(1, y.step - 2) };
      svg.append(shape("rect", { ...box, rx: Math.min(4, step / 4), fill: colour }));
      const text = trace.words?.[i][j];
      if (text && step > textWidth(text) + 4)
        labels.push({ x: middle, y: line, text, colour: inkOn(colour), align: "middle" });
      tips.push({ x: middle, y: line, text: trace.tips?.[i][j] ?? "", wide: true });
    }),
  );
}

// Right answers in one colour and wrong ones in another, hatched, at any count; a count of zero has none.
function drawMatrix({ x, y, svg, labels, tips }, trace) {
  trace.z.forEach((row, i) =>
    row.forEach((count, j) => {
      const right = i === j;
      const box = { x: x.at(trace.x[j]) - x.step / 2 + 2, y: y.at(trace.y[i]) - y.step / 2 + 2, width: x.step - 4, height: y.step - 4 };
      const fill = count === 0 ? style("--raised") : style(right ? "--accent-soft" : "--loss-soft");
      svg.append(shape("rect", { ...box, rx: Math.min(8, x.step / 6), fill }));
      if (!right && count) stripes(svg, box);
      const large = x.step > 90 && y.step > 60;
      const middle = box.x + box.width / 2,
        line = box.y + box.height / 2;
      if (x.step > textWidth(String(count)) + 4)
        labels.push({ x: middle, y: large ? line - 9 : line, text: String(count), colour: style("--ink"), align: "middle", size: large ? 22 : 12, weight: large ? 680 : 600 });
      if (large)
        labels.push({ x: middle, y: line + 15, text: trace.words[i][j], colour: style(right ? "--accent" : "--loss"), align: "middle" });
      tips.push({ x: middle, y: line, text: trace.tips[i][j], wide: true });
    }),
  );
}
function stripes(svg, box) {
  const id = `clip${(stripes.number = (stripes.number ?? 0) + 1)}`;
  const clip = shape("clipPath", { id });
  clip.append(shape("rect", { ...box, rx: 6 }));
  let path = "";
  for (let at = -box.height; at < box.width; at += 12) path += `M${box.x + at} ${box.y + box.height}l${box.height} ${-box.height}`;
  svg.append(clip, shape("path", { d: path, stroke: style("--card"), "stroke-width": 5, opacity: 0.35, "clip-path": `url(#${id})` }));
}

function drawArrow({ x, y, svg }, one) {
  const [ax, ay, bx, by] = [x.at(one.ax), y.at(one.ay), x.at(one.x), y.at(one.y)];
  const length = Math.hypot(bx - ax, by - ay) || 1,
    [ux, uy] = [(bx - ax) / length, (by - ay) / length],
    head = 7 + one.arrowwidth;
  const [cx, cy] = [bx - head * ux, by - head * uy];
  svg.append(
    shape("line", { x1: ax, y1: ay, x2: cx, y2: cy, stroke: one.arrowcolor, "stroke-width": one.arrowwidth }),
    shape("path", {
      d: `M${bx} ${by}L${cx - 0.5 * head * uy} ${cy + 0.5 * head * ux} ${cx + 0.5 * head * uy} ${cy - 0.5 * head * ux}z`,
      fill: one.arrowcolor,
    }),
  );
}

// The name of a line and its last value, at the line's end.
function endLabels(traces) {
  return traces
    .filter((trace) => trace.end)
    .map((trace) => {
      const last = trace.y.findLastIndex((value) => typeof value === "number");
      const value = trace.y[last];
      return { trace, last, text: `${trace.end} ${(trace.endWords ?? score3)(value ?? 0)}` };
    })
    .filter((one) => one.last >= 0);
}
function placeEnds({ x, y, area, labels }, ends) {
  const placed = ends
    .map((one) => ({ ...one, at: y.at(one.trace.y[one.last]) }))
    .sort((a, b) => a.at - b.at);
  placed.forEach((one, i) => {
    if (i) one.at = Math.max(one.at, placed[i - 1].at + 15);
  });
  const spare = placed.length ? placed.at(-1).at - area.bottom : 0;
  placed.forEach((one, i) => {
    const at = spare > 0 ? Math.max(area.top + 15 * i, one.at - spare) : one.at;
    labels.push({ x: x.at(one.trace.x[one.last]) + 8, y: at, text: one.text, colour: one.trace.line.color, align: "start", weight: 600 });
  });
}

function legendOf(traces) {
  const entries = traces.filter((trace) => trace.name && trace.showlegend !== false);
  return element(
    "ul",
    { class: "legend", "aria-hidden": "true" },
    ...entries.map((trace) => {
      const svg = shape("svg", { width: 26, height: 12, viewBox: "0 0 26 12" });
      const colour = list(trace.marker?.color, 0) ?? trace.line?.color;
      if (trace.type === "bar") {
        svg.append(shape("rect", { x: 6, y: 0, width: 14, height: 12, rx: 2, fill: colour }));
        if (trace.marker.hatched) hatch(svg, { x: 6, y: 0, width: 14, height: 12 });
      } else {
        if ((trace.mode ?? "lines").includes("lines"))
          svg.append(shape("path", { d: "M0 6h26", stroke: trace.line.color, "stroke-width": 2, "stroke-dasharray": DASH[trace.line.dash ?? "solid"] }));
        if (trace.mode?.includes("markers")) svg.append(mark(list(trace.marker.symbol, 0) ?? "circle", 13, 6, 8, colour, style("--card")));
      }
      return element("li", {}, svg, trace.name);
    }),
  );
}

const SHIFT = { start: "0", middle: "-50%", end: "-100%" };
function labelNode({ x, y, text, colour, weight, align, size, room }) {
  const made = element("span", { class: "mark" }, text);
  Object.assign(made.style, {
    left: `${x.toFixed(1)}px`,
    top: `${y.toFixed(1)}px`,
    color: colour,
    transform: `translate(${SHIFT[align]}, -50%)`,
  });
  if (weight) made.style.fontWeight = weight;
  if (size) made.style.fontSize = `${size}px`;
  if (room) {
    made.style.maxWidth = `${room.toFixed(0)}px`;
    made.title = text;
  }
  return made;
}

// What a mark says in full, when a pointer is near it.
function hover(node, tips) {
  node.onpointermove = (event) => {
    const box = node.querySelector("svg.main-svg").getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    let best = null,
      least = 30;
    for (const tip of tips) {
      const away = Math.hypot(tip.x - px, tip.y - py) * (tip.wide ? 0.8 : 1);
      if (tip.text && away < least) [best, least] = [tip, away];
    }
    let shown = node.querySelector(".tip");
    if (!best) {
      shown?.remove();
      return;
    }
    if (!shown) node.append((shown = element("div", { class: "tip" })));
    shown.textContent = String(best.text).replaceAll("<br>", "\n");
    shown.style.left = `${Math.max(0, Math.min(best.x + 12, box.width - shown.offsetWidth))}px`;
    shown.style.top = `${best.y + (best.y > box.height / 2 ? -shown.offsetHeight - 10 : 14)}px`;
  };
  node.onpointerleave = () => node.querySelector(".tip")?.remove();
}

// A chart as a picture: the marks, with the words as SVG text, on the page's ground.
function savePicture(chart, name) {
  const copy = chart.querySelector("svg.main-svg").cloneNode(true);
  const [width, height] = [Number(copy.getAttribute("width")), Number(copy.getAttribute("height"))];
  copy.setAttribute("xmlns", SVG);
  copy.prepend(shape("rect", { width, height, fill: style("--card") }));
  for (const one of chart.labels) {
    const text = shape("text", {
      x: one.x,
      y: one.y,
      fill: one.colour,
      "text-anchor": one.align,
      "dominant-baseline": "central",
      "font-family": "system-ui, sans-serif",
      "font-size": one.size ?? 12,
      "font-weight": one.weight ?? 400,
    });
    text.textContent = one.text;
    copy.append(text);
  }
  const url = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
  const image = new Image();
  image.onload = () => {
    const canvas = element("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
    URL.revokeObjectURL(url);
    canvas.toBlob((content) => download(name, "image/png", content));
  };
  image.src = url;
}
