// Questions that the browser tests ask of the page. Evaluated in it by the fixture `tab`.

window.checks = {
  // As the page was when it was opened, for the next test.
  reset() {
    for (const box of document.querySelectorAll("#method-boxes input")) if (!box.checked) box.click();
    for (const one of document.querySelectorAll("select")) {
      if (one.selectedIndex > 0) {
        one.selectedIndex = 0;
        one.dispatchEvent(new Event("change"));
      }
    }
    const slider = document.getElementById("graph-round");
    slider.value = 0;
    slider.dispatchEvent(new Event("input"));
    for (const one of document.querySelectorAll("details")) one.open = false;
    document.activeElement.blur();
    window.scrollTo({ top: 0, behavior: "instant" });
  },

  // Comes once the page knows that a figure is in view. Observers are told in the order in which they were made, so
  // the page's own, which draws what is stale, was told before this one.
  inView: (id) =>
    new Promise((resolve) => {
      const watcher = new IntersectionObserver(
        (entries) => {
          if (!entries.at(-1).isIntersecting) return;
          watcher.disconnect();
          resolve(true);
        },
        { rootMargin: "300px" },
      );
      watcher.observe(document.getElementById(id));
    }),

  chart: (figure) => document.querySelector(`#${figure} .chart`),

  // What a reader with a screen reader would stumble over.
  problems() {
    const found = [];
    for (const one of document.querySelectorAll("button, select, input")) {
      if (!(one.getAttribute("aria-label") || one.labels?.length || one.textContent.trim()))
        found.push(`no name: ${one.outerHTML}`);
    }
    for (const one of document.querySelectorAll(".chart")) {
      if (!one.getAttribute("aria-label")) found.push(`no description: ${one.closest("figure").id}`);
    }
    // The ids inside a chart are its own.
    const ids = [...document.querySelectorAll("[id]")].filter((one) => !one.closest("svg")).map((one) => one.id);
    found.push(...ids.filter((id, i) => id && ids.indexOf(id) !== i).map((id) => `id twice: ${id}`));
    let level = 0;
    for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
      if (heading.hidden) continue;
      const now = Number(heading.tagName[1]);
      if (now > level + 1) found.push(`heading jumps: ${heading.textContent}`);
      level = now;
    }
    for (const tag of ["main", "nav", "header", "footer"]) if (!document.querySelector(tag)) found.push(`no ${tag}`);
    for (const one of document.querySelectorAll("[aria-labelledby]")) {
      if (!document.getElementById(one.getAttribute("aria-labelledby"))) found.push(`label lost: ${one.id}`);
    }
    if (!document.documentElement.lang || !document.title) found.push("no language or no title");
    return found;
  },

  // The lowest contrast of any text with its ground, and where (WCAG's formula).
  contrast() {
    const channel = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    const light = (colour) =>
      [0.2126, 0.7152, 0.0722].reduce((sum, part, i) => sum + part * channel(colour[i] / 255), 0);
    const numbers = (text) => text.match(/[\d.]+/g).map(Number);
    const ground = (one) => {
      for (let node = one; node; node = node.parentElement) {
        const colour = numbers(getComputedStyle(node).backgroundColor);
        if (colour.length < 4 || colour[3] > 0.99) return colour;
      }
      return [255, 255, 255];
    };
    let lowest = [99, ""];
    for (const one of document.querySelectorAll(
      "p, h1, h2, h3, h4, label, button, a, summary, th, td, figcaption, caption",
    )) {
      if (!one.checkVisibility() || !one.textContent.trim()) continue;
      const [high, low] = [light(numbers(getComputedStyle(one).color)), light(ground(one))].sort((a, b) => b - a);
      const ratio = (high + 0.05) / (low + 0.05);
      if (ratio < lowest[0]) lowest = [ratio, one.outerHTML.slice(0, 80)];
    }
    return lowest;
  },

  ground: () => getComputedStyle(document.body).backgroundColor,
  drawn: () => [...document.querySelectorAll("figure")].filter((one) => one.querySelector(".chart")?.data).length,
  outgrown: () =>
    [...document.querySelectorAll(".chart")]
      .filter((one) => one.querySelector(".main-svg").getBoundingClientRect().width > one.clientWidth + 1)
      .map((one) => one.closest("figure").id),

  controls: () =>
    [...document.querySelectorAll("button, select, input, summary")].filter(
      (one) => one.checkVisibility() && !one.disabled,
    ),
  focused: () => checks.controls().indexOf(document.activeElement),
  measured: () => [
    checks.chart("curves").layout.yaxis.title.text,
    JSON.stringify(checks.chart("curves").data.map((trace) => [...trace.y])),
  ],
  colours: () => [getComputedStyle(document.body).backgroundColor, checks.chart("curves").layout.font.color],
};
