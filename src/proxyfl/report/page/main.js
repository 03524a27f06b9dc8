// Put the page together.

let fillers = [];

function update() {
  fillToolbar();
  for (const fill of fillers) fill();
  refresh();
}

function fillToolbar() {
  for (const one of toolbarSelects) one.refresh();
  document.getElementById("study").textContent = page.study;
  const state = document.getElementById("state");
  const finished = page.runs.every((one) => one.finished);
  state.textContent = finished ? "finished" : "not finished";
  state.className = `badge ${finished ? "good" : "warn"}`;
  state.hidden = Boolean(page.live) && !finished;
  const boxes = document.getElementById("method-boxes");
  const names = methods();
  if (boxes.childElementCount - 1 === names.length && boxes.dataset.theme === style("--ink")) return;
  boxes.dataset.theme = style("--ink");
  boxes.replaceChildren(
    element("legend", {}, "Methods in all charts"),
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
  const group = select(
    "Setting",
    () => page.groups.map((one, i) => [String(i), groupName(one)]),
    () => {
      chosen.group = Number(group.value);
      update();
    },
  );
  const method = select(
    "Method",
    () => answered(chosenGroup()).map((one) => [one.method, `${one.method} against alone`]),
    () => {
      chosen.method = method.value;
      update();
    },
  );
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
      ["system", "system"],
      ["light", "light"],
      ["dark", "dark"],
    ],
    () => {
      setTheme(theme.value);
      update();
    },
  );
  toolbarSelects.push(group, method, measure);
  theme.value = setTheme(remembered());
  const compare = element(
    "details",
    { id: "compare", class: "wide" },
    element("summary", {}, "Methods"),
    element("fieldset", { id: "method-boxes" }),
  );
  group.node.classList.add("wide");
  method.node.classList.add("wide");
  document.getElementById("toolbar").append(group.node, method.node, measure.node, compare, theme.node);
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

// Links to the sections, below the answer.
function contents() {
  const links = [...document.querySelectorAll("main > section")]
    .filter((one) => one.id !== "answer")
    .map((one) => element("li", {}, element("a", { href: `#${one.id}` }, one.querySelector("h2").textContent)));
  const nav = element("nav", { id: "contents", "aria-label": "Sections" }, element("ul", {}, ...links));
  document.getElementById("answer").after(nav);
}

function charts() {
  figures[0].update(); // even if a phone's narrow page has it below the fold
  setTimeout(drawNear);
}

toolbar();
fillers.push(answerSection());
const sites = sitesCard(),
  doubts = doubtsCard();
fillers.push(sites.fill, doubts.fill);
section("evidence", "What is behind it", sites.node, doubts.node);
curvesSection();
measuresSection();
if (someTask("classification")) classesSection();
effectsSection();
privacySection();
costsSection();
peersSection();
settingsSection();
contents();
update();
document.getElementById("made").textContent = `Made by proxyfl ${page.version} at ${page.made}. One file, no network requests.`;
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
