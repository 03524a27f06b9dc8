"""The end of a run in plain data: final scores, costs and confusion counts."""

from collections.abc import Sequence

from proxyfl._files import Document
from proxyfl.federation.methods import Method
from proxyfl.records.row import Row, roles


def of_method(method: Method, rows: Sequence[Row]) -> Document:
    """Sums up one method's ``rows``: each client's last scored row, and who left when and why."""
    final: dict[int, Row] = {}
    for row in rows:
        # the last one that was scored; of a client that never was, the last
        if roles(row) or not roles(final.get(row["client"], {})):
            final[row["client"]] = row
    unscored: Row = {"confusion": {}}
    departures = []
    for row in rows:
        if row["left"]:
            who = {key: row[key] for key in ("client", "name", "round")}
            departures.append(who | {"why": row["left"]})
    return {
        "keeps": method.keeps,
        "method": method.written(),
        "clients": [unscored | final[client] for client in sorted(final)],
        "departures": departures,
    }
