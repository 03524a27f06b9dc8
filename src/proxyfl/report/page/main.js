// Put the page together.

let answerUpdate = () => {};

function update() {
  fillToolbar();
  answerUpdate();
  refresh();
}

function fillToolbar() {
  for (const one of toolbarSelects) one.refresh();
  const boxes = document.getElementById("method-boxes");
  const names = methods();
  if (boxes.childElementCount - 1 === names.length && boxes.dataset.theme === style("--ink")) return;
  boxes.dataset.theme = style("--ink");
  boxes.replaceChildren(
    element("legend", {}, "Methods"),
    ...names.map((name) => {
      const box = element("input", {
        type: "checkbox",
        value: name,
        onchange: () => {
          if (box.checked) chosen.hidden.delete(name);
          else chosen.hidden.add(name);
          update();
        },
      });
      box.checked = !chosen.hidden.has(name);
      return element("label", {}, box, swatch(name), name);
    }),
  );
}

const toolbarSelects = [];

function toolbar() {
  const measure = select(
    "Measure",
    () => Object.entries(page.measures),
    () => {
      chosen.measure = measure.value;
      update();
    },
  );
  const theme = select(
    "Theme",
    () => [
      ["system", "as the system"],
      ["light", "light"],
      ["dark", "dark"],
    ],
    () => {
      setTheme(theme.value);
      update();
    },
  );
  toolbarSelects.push(measure);
  theme.value = setTheme(remembered());
  document.getElementById("toolbar").append(element("fieldset", { id: "method-boxes" }), measure.node, theme.node);
}

// A page opened from disk may not be allowed to remember anything.
function remembered() {
  try {
    return localStorage.getItem("proxyfl-theme") ?? "system";
  } catch {
    return "system";
  }
}
function setTheme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  try {
    localStorage.setItem("proxyfl-theme", name);
  } catch {
    /* see above */
  }
  return name;
}

function contents() {
  const links = [...document.querySelectorAll("main > section")].map((one) =>
    element("li", {}, element("a", { href: `#${one.id}` }, one.querySelector("h2").textContent)),
  );
  document.getElementById("contents").append(element("ul", {}, ...links));
}

function charts() {
  runLibrary();
  figures[0].update(); // even if a phone's narrow page has it below the fold
  setTimeout(drawNear);
  document.getElementById("made").textContent = `Made by proxyfl at ${page.made}. Charts: plotly.js ${Plotly.version}.`;
}

toolbar();
answerUpdate = answerSection();
measuresSection();
curvesSection();
privacySection();
graphSection();
costsSection();
classesSection();
settingsSection();
contents();
update();
// In the next frame's wake: by then the answer is on the screen.
requestAnimationFrame(() => setTimeout(charts));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (width < 640 !== narrow()) {
    width = window.innerWidth;
    refresh();
  }
});
if (page.live) follow();
