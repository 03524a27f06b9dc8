"""Everything that is known of the model that a client keeps, on the common test set and on the
test part of the client's own site: each measure with its interval, the calibration curve, and the
confusion counts with their shares. Tables, the page and ``--json`` ask here."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from proxyfl.measures import MEASURES, Interval
from proxyfl.records.row import (
    Row,
    calibration_of,
    intervals_of,
    own_of,
    probabilities_of,
    risk_groups_of,
    roc_of,
    survival_of,
    values_of,
)
from proxyfl.records.run import Run

Counts = Sequence[Sequence[int]]
Shares = list[list[float | None]]
Point = tuple[float, float, int]
"""(mean prediction, mean of what came, examples); of classes, a probability and a share."""


@dataclass(frozen=True)
class Judged:
    """The model that a client keeps under a method, on one test set: ``common``, or its ``own``
    where sites are known.

    Empty or None where the run has not ended, or is of a release that did not record it."""

    method: str
    client: int
    name: str
    on: str
    measures: Mapping[str, float | None]
    intervals: Mapping[str, Interval | None]
    calibration: Sequence[Point]
    confusion: Counts | None
    roc: Sequence[tuple[float, float]] = ()
    survival: Sequence[tuple[float, float, float]] = ()
    """(time, mean predicted survival, Kaplan-Meier's), of a time to an event."""
    risk_groups: Sequence[Row] = ()
    """The same of thirds by predicted risk; see ``records.row``."""
    probabilities: str = ""
    """What the probabilities are for, where a balance has moved them."""

    @property
    def shares(self) -> Shares | None:
        """The confusion counts as shares of each true class."""
        return None if self.confusion is None else shares(self.confusion)


def shares(counts: Counts) -> Shares:
    """Counts as shares of each true class; None in the row of a class without examples."""
    rows: Shares = []
    for row in counts:
        total = sum(row)
        rows.append([count / total if total else None for count in row])
    return rows


def judged(run: Run) -> Iterator[Judged]:
    """The kept model of every method and client that has one, in their order, on each test set.

    The one model of a pooled method appears once, under the method's name."""
    for method in run.methods:
        pooled = run.method(method).pooled
        confusion = run.confusion(method)
        for client in run.clients_of(method):
            kept = run.kept_row(method, client)
            if kept is None:
                continue
            row, role = kept
            name = method if pooled else run.clients.get(client, f"client {client}")
            places = {"common": str(role)}
            if any(f"{own_of(role)}_{measure}" in row for measure in MEASURES):
                places["own"] = own_of(role)
            for on, where in places.items():
                yield Judged(
                    method,
                    client,
                    name,
                    on,
                    values_of(row, where),
                    intervals_of(row, where),
                    calibration_of(row, where),
                    confusion.get(client, {}).get(where),
                    roc_of(row, where),
                    survival_of(row, where),
                    risk_groups_of(row, where),
                    probabilities_of(row, where),
                )
