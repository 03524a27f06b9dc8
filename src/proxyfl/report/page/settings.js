// Settings and environment: first what differs between runs, a column for each; then what all have in common.

function comparison(caption, part) {
  const keys = unique(page.runs.flatMap((run) => Object.keys(run[part])));
  const text = (run, key) => {
    const value = run[part][key] ?? null;
    return key === "command" && Array.isArray(value) ? value.join(" ") : String(word(value));
  };
  const same = (key) => unique(page.runs.map((run) => text(run, key))).length === 1;
  const common = keys.filter(same).map((key) => [key, text(page.runs[0], key)]);
  const differing = keys.filter((key) => !same(key)).map((key) => [key, ...page.runs.map((run) => text(run, key))]);
  const tables = [];
  if (differing.length) {
    const made = table(`${caption}: what differs`, ["setting", ...page.runs.map((run) => run.name)], differing);
    made.classList.add("differs");
    tables.push(made);
  }
  if (common.length) {
    tables.push(
      table(page.runs.length > 1 ? `${caption}: the same in all runs` : caption, ["setting", "value"], common),
    );
  }
  return tables;
}

function settingsSection() {
  const rows = methods().map((name) => {
    const method = page.runs.find((run) => name in run.methods).methods[name];
    return [name, method.summary, method.keeps, method.exchange];
  });
  const about = table("Methods", ["method", "what it is", "what is kept", "how models mix"], rows);
  const tables = [about, ...comparison("Settings", "settings"), ...comparison("Environment", "environment")];
  const notes = page.runs.flatMap((run) => run.notes.map((note) => [run.name, note]));
  if (notes.length) tables.unshift(table("How the data were read", ["run", "note"], notes));
  // At the end of the page nothing has to make room for what comes after.
  for (const one of tables) one.classList.add("whole");
  const folded = element(
    "details",
    { class: "card c12 folded" },
    element("summary", {}, `All ${Object.keys(page.runs[0].settings).length} settings, the environment and the methods`),
    ...tables,
  );
  section("settings", "Settings and environment", folded);
}
