// The other members, as a real site knows them. A simulation has all of its clients in the charts.

function peersSection() {
  const sites = page.runs.filter((run) => run.peers);
  if (!sites.length) return;
  const columns = ["site", "state", "last known round", "shares owed to it", "manifest", "release"];
  const tables = sites.map(({ peers }) => {
    const rows = peers.peers.map((one) => [
      one.name,
      one.held_up ? `${one.state}: ${one.held_up.text}` : one.state,
      one.round,
      one.owed,
      one.version,
      one.release || "unknown",
    ]);
    const title = `The peers of ${peers.site} in ${peers.federation}, manifest ${peers.version}`;
    return element("div", { class: "card c12" }, table(title, columns, rows));
  });
  section("peers", "Peers", ...tables);
}
