"""The certainty of a run's gain, and what would make a good score worthless.

Definitions:
    * the **interval** of a gain is the middle 95 % of its values on bootstrap samples of the test
      set's persons. Both models are judged on the same samples, and so are all clients;
    * a gain is **within noise** if its interval contains zero;
    * the **majority rate** is the accuracy of always saying the commonest class of the test set;
    * a kept model **says one class only** if it gives every test example the same class.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from proxyfl.measures import OWN, better_by
from proxyfl.records.answers import Answer
from proxyfl.records.row import own_of
from proxyfl.records.run import Run, compared_after
from proxyfl.resampling import Interval, interval


def gain_interval(
    run: Run,
    name: str,
    clients: Iterable[int] | None = None,
    *,
    over: str = "alone",
    measure: str | None = None,
) -> Interval | None:
    """The interval of the mean gain of ``clients`` (all of them for None) in the run's measure, or
    in that measure on the clients' own test parts.

    None where it is not known: without resampled scores of both methods at their ends."""
    chosen = run.clients if clients is None else clients
    return _interval_of_mean(
        [_differences(run, name, client, over, measure) for client in chosen]
    )


def answer_interval(found: Answer, client: int | None = None) -> Interval | None:
    """The interval of an answer's mean gain, or of the mean gain of one client over runs.

    None where some gain has no resampled scores, or was compared with another run's."""
    asked = found.asked
    differences = []
    for number, who in found.gains:
        if client is None or who == client:
            run = found.group.runs[number]
            differences.append(
                None
                if asked.role is not None or asked.after is not None
                else _differences(
                    run, found.method, who, asked.against, asked.measure
                )
            )
    return _interval_of_mean(differences)


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
    classes = run.classes
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


def kind_of_alone(run: Run) -> str | None:
    """Which ``alone`` the gains are over, in a sentence; None if the run has none."""
    about = run.about("alone")
    if not about:
        return None
    if any(client.get("keeps") for client in about.get("clients", ())):
        return "alone: the best of the stated estimators for each client, by its own examples."
    return "alone: the private model, trained at home by the same settings as the others."


def warnings(run: Run) -> list[str]:
    """What a gain is over, and what would make a good score worthless, in sentences."""
    found = []
    against = kind_of_alone(run)
    if against is not None:
        found.append(against)
    rate = majority_rate(run)
    if rate is not None:
        found.append(
            f"Always saying the commonest class would have accuracy {rate:.3f}."
        )
    for name, client, label in one_class_only(run):
        who = run.clients.get(client, f"client {client}")
        found.append(
            f"{name}, {who}: the model kept says {label!r} for every test example."
        )
    return found


def _kept_counts(run: Run) -> Iterator[tuple[str, int, list[list[int]]]]:
    """(method, client, confusion counts) of every kept model, as the summary has them."""
    for name in run.methods:
        for client, by_role in run.confusion(name).items():
            counts = by_role.get(run.method(name).keeps)
            if counts:
                yield name, client, counts


def _differences(
    run: Run, name: str, client: int, over: str, measure: str | None
) -> list[float | None] | None:
    """A client's gain on each bootstrap sample; None where it is not known."""
    measure = run.measure if measure is None else measure
    if over not in run.methods or compared_after(run, name, run, over) is not None:
        return None
    joined = _resampled(run, name, client, measure)
    alone = _resampled(run, over, client, measure)
    if joined is None or alone is None or len(joined) != len(alone):
        return None
    return _gains(measure, joined, alone)


def _resampled(
    run: Run, name: str, client: int, measure: str
) -> list[float | None] | None:
    """The score of the model kept on each sample, which only the run's own measure has."""
    if measure.removeprefix(OWN) != run.measure:
        return None
    found = run.kept_row(name, client)
    if found is None:
        return None
    row, role = found
    where = own_of(role) if measure.startswith(OWN) else role
    values: Any = row.get(f"{where}_resampled")
    return values or None


def _interval_of_mean(
    differences: Sequence[Sequence[float | None] | None],
) -> Interval | None:
    """The interval of the mean over clients, sample by sample."""
    known = [values for values in differences if values is not None]
    if not known or len(known) < len(differences):
        return None
    means = []
    for sample in zip(*known, strict=True):
        defined = [value for value in sample if value is not None]
        means.append(sum(defined) / len(defined) if defined else None)
    return interval(means)


def _gains(
    measure: str, joined: Sequence[float | None], alone: Sequence[float | None]
) -> list[float | None]:
    return [
        better_by(measure, ours, theirs)
        for ours, theirs in zip(joined, alone, strict=True)
    ]
