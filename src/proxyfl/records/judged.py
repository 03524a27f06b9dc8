"""Everything that is known of the model that a client keeps, on the common test set and on the
test part of the client's own site: each measure with its interval, the calibration curve, and the
confusion counts with their shares. Tables, the page and ``--json`` ask here."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxyfl.records.row import calibration_of, intervals_of, own_of, values_of
from proxyfl.records.run import Run
from proxyfl.resampling import Interval

Counts = Sequence[Sequence[int]]
Shares = list[list[float | None]]
Point = tuple[float, float, int]
"""(mean probability, share that came true, examples)."""


@dataclass(frozen=True)
class Judged:
    """One model on one test set. Empty or None where the run has not ended, or is of a release that
    did not record it."""

    measures: Mapping[str, float | None]
    intervals: Mapping[str, Interval | None]
    calibration: Sequence[Point]
    confusion: Counts | None

    @property
    def shares(self) -> Shares | None:
        """The confusion counts as shares of each true class."""
        return None if self.confusion is None else shares(self.confusion)


@dataclass(frozen=True)
class ClientJudged:
    """What a method's model is worth to a client; ``own`` is None where nobody knows sites."""

    method: str
    client: int
    name: str
    common: Judged
    own: Judged | None


def shares(counts: Counts) -> Shares:
    """Counts as shares of each true class; None in the row of a class without examples."""
    found: Shares = []
    for row in counts:
        total = sum(row)
        found.append([count / total if total else None for count in row])
    return found


def judged(run: Run) -> Iterator[ClientJudged]:
    """The kept model of every method and client that has one, in their order.

    The one model of a pooled method appears once, under the method's name."""
    for method in run.methods:
        pooled = run.method(method).pooled
        confusion = run.confusion(method)
        for client in run.clients_of(method):
            found = run.kept_row(method, client)
            if found is None:
                continue
            row, role = found
            counts = confusion.get(client, {})
            name = method if pooled else run.clients.get(client, f"client {client}")
            own = own_of(role)
            yield ClientJudged(
                method,
                client,
                name,
                _judged(row, role, counts),
                _judged(row, own, counts) if f"{own}_accuracy" in row else None,
            )


def _judged(
    row: Mapping[str, Any], where: str, counts: Mapping[str, Counts]
) -> Judged:
    return Judged(
        values_of(row, where),
        intervals_of(row, where),
        calibration_of(row, where),
        counts.get(where),
    )
