// A figure: heading, controls, one chart per panel, the same numbers as a table and as CSV. Drawn when it comes into
// view, and not before the library is there.

const figures = [];

// The charts' library is five megabytes of script, which take most of a second: run it once, after the answer is shown.
function runLibrary() {
  const source = document.getElementById("library");
  if (!source) return;
  const script = element("script");
  script.textContent = source.textContent;
  source.remove();
  document.head.append(script);
}
const libraryRuns = () => typeof Plotly !== "undefined";

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
function figure({ id, title, controls = [], draw, wide = false }) {
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
    { class: "controls actions" },
    element("button", { type: "button", onclick: saveCsv, "aria-label": `Download ${title} as CSV` }, "CSV"),
    element(
      "button",
      { type: "button", onclick: () => savePictures(id, panels), "aria-label": `Download ${title} as a picture` },
      "PNG",
    ),
  );
  made.node = element(
    "figure",
    { id, "aria-labelledby": `${id}-title` },
    element("h3", { id: `${id}-title` }, title),
    controls.length
      ? element("div", { class: "controls" }, ...controls.map((control) => control.node ?? control))
      : null,
    panels,
    note,
    actions,
    details,
  );

  function fillTable() {
    if (details.open && made.drawn)
      holder.replaceChildren(table(title, made.drawn.columns, made.drawn.rows, { limit: 400 }));
  }

  made.update = () => {
    made.stale = !libraryRuns();
    if (made.stale) return;
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

// Reuse the chart of a panel where there is one: plotly then only changes what differs.
function place(holder, panels, title) {
  if (!panels.length) {
    for (const chart of holder.querySelectorAll(".chart")) Plotly.purge(chart);
    holder.replaceChildren(element("p", { class: "empty" }, "Nothing recorded for this yet."));
    return;
  }
  holder.querySelector(".empty")?.remove();
  while (holder.children.length > panels.length) {
    Plotly.purge(holder.lastElementChild.querySelector(".chart"));
    holder.lastElementChild.remove();
  }
  while (holder.children.length < panels.length) {
    holder.append(element("div", { class: "panel" }, element("h4"), element("div", { class: "chart", role: "img" })));
  }
  panels.forEach((panel, i) => {
    const [heading, chart] = holder.children[i].children;
    heading.textContent = panel.title ?? "";
    heading.hidden = !panel.title;
    const name = [title, panel.title].filter(Boolean).join(": ");
    chart.setAttribute("aria-label", `Chart. ${name}. The table below it has the same numbers.`);
    chart.style.height = `${panel.height ?? 340}px`;
    const size = printing() ? { width: chart.clientWidth } : {}; // paper does not resize
    Plotly.react(chart, panel.traces, { ...layout(panel), ...size }, { displayModeBar: false, responsive: true });
  });
}

function layout(panel) {
  const ink = style("--ink"),
    grid = style("--grid");
  const axis = {
    gridcolor: grid,
    zerolinecolor: style("--line"),
    linecolor: style("--line"),
    fixedrange: narrow(),
  };
  const given = panel.layout ?? {};
  const axes = Object.fromEntries(
    ["xaxis", "yaxis", "yaxis2"]
      .filter((key) => key in given || key !== "yaxis2")
      .map((key) => [
        key,
        {
          ...axis,
          // In one direction each: in both, margins and ticks may go on changing one another.
          automargin: key === "xaxis" ? "height" : "width",
          ...given[key],
          title: { text: given[key]?.title ?? "", standoff: 8 },
        },
      ]),
  );
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink, size: 12, family: "inherit" },
    margin: { l: 48, r: 12, t: 12, b: 40 },
    showlegend: false,
    hovermode: "closest",
    dragmode: narrow() ? false : "zoom",
    hoverlabel: { bgcolor: style("--card"), bordercolor: style("--line"), font: { color: ink } },
    ...given,
    ...axes,
  };
}

const narrow = () => window.innerWidth < 640;

function savePictures(id, panels) {
  panels.querySelectorAll(".chart").forEach((chart, i) => {
    // On its own a picture needs a ground and a legend, which the page has around it.
    const alone = { data: chart.data, layout: { ...chart.layout, paper_bgcolor: style("--ground"), showlegend: true } };
    Plotly.downloadImage(alone, {
      format: "png",
      scale: 2,
      width: 1000,
      height: 600,
      filename: panels.children.length > 1 ? `${id}-${i + 1}` : id,
    });
  });
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
  runLibrary();
  screenTheme = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
  document.body.classList.add("printing");
  for (const one of figures) one.update();
});
window.addEventListener("afterprint", () => {
  document.body.classList.remove("printing");
  if (screenTheme) document.documentElement.dataset.theme = screenTheme;
  else delete document.documentElement.dataset.theme;
  refresh();
});
