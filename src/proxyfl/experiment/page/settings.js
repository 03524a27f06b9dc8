// Settings and environment, a column per run, with the lines that differ marked.

function comparison(caption, part) {
  const keys = unique(page.runs.flatMap((run) => Object.keys(run[part])));
  const made = table(
    caption,
    ["setting", ...page.runs.map((run) => run.name)],
    keys.map((key) => [key, ...page.runs.map((run) => String(word(run[part][key] ?? null)))]),
  );
  made.querySelectorAll("tbody tr").forEach((row, i) => {
    if (unique(page.runs.map((run) => JSON.stringify(run[part][keys[i]] ?? null))).length > 1) {
      row.classList.add("differs");
      row.firstElementChild.append(" (differs)");
    }
  });
  return made;
}

function settingsSection() {
  const about = table(
    "Methods",
    ["method", "what it is", "what is kept", "how models mix"],
    methods().map((name) => {
      const method = page.runs.find((run) => name in run.methods).methods[name];
      return [name, method.summary, method.keeps, method.exchange];
    }),
  );
  section(
    "settings",
    "Settings and environment",
    about,
    comparison("Settings", "settings"),
    comparison("Environment", "environment"),
  );
}
