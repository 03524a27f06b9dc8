// A figure: a card with a heading, controls, one chart per panel, the same numbers as a table and as CSV. Drawn when it
// comes into view.

const figures = [];

const watcher = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      const figure = figures.find((one) => one.node === entry.target);
      figure.near = entry.isIntersecting;
      if (figure.near && figure.stale) figure.update();
    }
  },
  { rootMargin: "300px" },
);

// `draw` returns { panels: [{ title, traces, layout, height }], columns, rows, note }. Without panels there is nothing
// to show yet.
function figure({ id, title, controls = [], draw, wide = false, span = 12 }) {
  const panels = element("div", { class: wide ? "panels wide" : "panels" });
  const note = element("figcaption");
  const holder = element("div");
  const details = element(
    "details",
    { ontoggle: () => fillTable() },
    element("summary", {}, `Table: ${title}`),
    holder,
  );
  const made = { id, near: false, stale: true, drawn: null };
  const saveCsv = () => download(`${id}.csv`, "text/csv", csv(made.drawn.columns, made.drawn.rows));
  const actions = element(
    "div",
    { class: "actions" },
    element("button", { type: "button", onclick: saveCsv, "aria-label": `Download ${title} as CSV` }, "CSV"),
    element(
      "button",
      { type: "button", onclick: () => savePictures(id, panels), "aria-label": `Download ${title} as a picture` },
      "PNG",
    ),
  );
  made.node = element(
    "figure",
    { id, class: `c${span}`, "aria-labelledby": `${id}-title` },
    element("div", { class: "ch" }, element("h3", { id: `${id}-title` }, title), actions),
    controls.length
      ? element("div", { class: "controls" }, ...controls.map((control) => control.node ?? control))
      : null,
    panels,
    note,
    details,
  );

  function fillTable() {
    if (details.open && made.drawn)
      holder.replaceChildren(table(title, made.drawn.columns, made.drawn.rows, { limit: 400 }));
  }

  made.update = () => {
    made.stale = false;
    for (const control of controls) control.refresh?.();
    made.drawn = draw();
    note.textContent = made.drawn.note ?? "";
    actions.hidden = details.hidden = !made.drawn.panels.length;
    place(panels, made.drawn.panels, title);
    fillTable();
  };
  figures.push(made);
  watcher.observe(made.node);
  return made;
}

function place(holder, panels, title) {
  if (!panels.length) {
    holder.replaceChildren(element("p", { class: "empty" }, "Nothing recorded for this yet."));
    return;
  }
  holder.querySelector(".empty")?.remove();
  while (holder.children.length > panels.length) holder.lastElementChild.remove();
  while (holder.children.length < panels.length) {
    holder.append(element("div", { class: "panel" }, element("h4"), element("div", { class: "chart", role: "img" })));
  }
  panels.forEach((panel, i) => {
    const [heading, chart] = holder.children[i].children;
    heading.textContent = panel.title ?? "";
    heading.hidden = !panel.title;
    const name = [title, panel.title].filter(Boolean).join(": ");
    chart.setAttribute("aria-label", `Chart. ${name}. The table below it has the same numbers.`);
    chart.style.height = `${panel.height ?? 300}px`;
    drawChart(chart, panel.traces, layout(panel));
    resized.observe(chart);
  });
}

// A chart whose place has another width is drawn again.
const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const svg = target.querySelector("svg.main-svg");
    if (svg && Math.abs(Number(svg.getAttribute("width")) - target.clientWidth) > 1)
      drawChart(target, target.data, target.layout);
  }
});

function layout(panel) {
  const given = panel.layout ?? {};
  const axis = (key) => ({ ...given[key], title: { text: given[key]?.title ?? "" } });
  return { font: { color: style("--ink") }, showlegend: false, ...given, xaxis: axis("xaxis"), yaxis: axis("yaxis") };
}

const narrow = () => window.innerWidth < 640;

function savePictures(id, panels) {
  const charts = panels.querySelectorAll(".chart");
  charts.forEach((chart, i) => savePicture(chart, `${charts.length > 1 ? `${id}-${i + 1}` : id}.png`));
}

// Charts in view change now, the others when they come into view.
function refresh() {
  for (const one of figures) {
    one.stale = true;
    if (one.near) one.update();
  }
}

// One at a time, so that the page answers in between.
function drawNear() {
  const next = figures.find((one) => one.near && one.stale);
  if (!next) return;
  next.update();
  setTimeout(drawNear);
}

// On paper every chart is drawn, in light colours and as wide as the paper.
const printing = () => document.body.classList.contains("printing");
let screenTheme;
window.addEventListener("beforeprint", () => {
  if (printing()) return;
  screenTheme = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
  document.body.classList.add("printing");
  for (const one of document.querySelectorAll("details.folded")) one.open = true;
  for (const one of figures) one.update();
});
window.addEventListener("afterprint", () => {
  document.body.classList.remove("printing");
  if (screenTheme) document.documentElement.dataset.theme = screenTheme;
  else delete document.documentElement.dataset.theme;
  refresh();
});
