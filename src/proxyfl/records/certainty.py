"""The certainty of a run's gain, and what would make a good score worthless.

Definitions:
    * the **interval** of a gain is the middle 95 % of its values on bootstrap samples of the test
      set's persons. Both models are judged on the same samples, and so are all clients;
    * a gain is **within noise** if its interval contains zero;
    * the **majority rate** is the accuracy of always saying the commonest class of the test set;
    * a kept model **says one class only** if it gives every test example the same class.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from proxyfl.measures import MEASURES, interval
from proxyfl.records.row import Row, roles
from proxyfl.records.run import Run, compared_after

Interval = tuple[float, float]


def gain_interval(
    run: Run,
    name: str,
    clients: Sequence[int] | None = None,
    *,
    over: str = "alone",
) -> Interval | None:
    """The interval of the mean gain of ``clients`` (all of them for None) in the run's measure.

    None where it is not known: without resampled scores of both methods at their ends."""
    if over not in run.methods or compared_after(run, name, run, over) is not None:
        return None
    differences = []
    for client in run.clients if clients is None else clients:
        joined = _resampled(run, name, client)
        alone = _resampled(run, over, client)
        if joined is None or alone is None or len(joined) != len(alone):
            return None
        differences.append(_gains(run.measure, joined, alone))
    if not differences:
        return None
    means = []
    for sample in zip(*differences, strict=True):
        defined = [value for value in sample if value is not None]
        means.append(sum(defined) / len(defined) if defined else None)
    return interval(means)


def score_interval(run: Run, name: str, client: int) -> Interval | None:
    """The interval of the score of the model that a client keeps."""
    values = _resampled(run, name, client)
    return None if values is None else interval(values)


def is_within_noise(found: Interval | None) -> bool:
    """True if an interval contains zero."""
    return found is not None and found[0] <= 0 <= found[1]


def majority_rate(run: Run) -> float | None:
    """The accuracy of always saying the commonest class; None without counts."""
    for _, _, counts in _kept_counts(run):
        totals = [sum(row) for row in counts]
        if sum(totals):
            return max(totals) / sum(totals)
    return None


def one_class_only(run: Run) -> list[tuple[str, int, str]]:
    """(method, client, class) of every kept model that says one class only."""
    classes = (run.summary or {}).get("classes", [])
    found = []
    for name, client, counts in _kept_counts(run):
        said = [
            number
            for number, column in enumerate(zip(*counts, strict=True))
            if sum(column)
        ]
        if len(said) == 1 and len(counts) > 1:
            label = classes[said[0]] if said[0] < len(classes) else str(said[0])
            found.append((name, client, label))
    return found


def _kept_counts(run: Run) -> Iterator[tuple[str, int, list[list[int]]]]:
    """(method, client, confusion counts) of every kept model, as the summary has them."""
    for name, about in (run.summary or {}).get("methods", {}).items():
        for client in about.get("clients", ()):
            counts = client.get("confusion", {}).get(about.get("keeps"))
            if counts:
                yield name, client["client"], counts


def _resampled(run: Run, name: str, client: int) -> list[float | None] | None:
    row = _final(run, name, client)
    if row is None:
        return None
    keeps = run.method(name).keeps
    if keeps == "received" and keeps not in roles(row):
        keeps = "proxy"  # it left before the exchange
    values: Any = row.get(f"{keeps}_resampled")
    return values or None


def _final(run: Run, name: str, client: int) -> Row | None:
    recorded = run.clients_of(name)
    if run.method(name).pooled and recorded:
        client = recorded[0]
    return run.final(name, client)


def _gains(
    measure: str, joined: Sequence[float | None], alone: Sequence[float | None]
) -> list[float | None]:
    known = MEASURES[measure]
    found: list[float | None] = []
    for ours, theirs in zip(joined, alone, strict=True):
        gain = None
        if ours is not None and theirs is not None:
            gain = known.gain(ours, theirs)
        found.append(gain)
    return found
