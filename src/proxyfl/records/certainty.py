"""The certainty of a run's gain, and what would make a good score worthless.

Definitions:
    * the **interval** of a gain is the middle 95 % of its values on bootstrap samples of the test
      set's persons. Both models are judged on the same samples, and so are all clients. With three
      splits (seeds) or more, the spread between splits makes it wider (``widen``);
    * a gain is **within noise** if its interval contains zero;
    * the **majority rate** is the accuracy of always saying the commonest class of the test set;
    * a kept model **says one class only** if it gives every test example the same class.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from proxyfl.measures import OWN, Interval, better_by, interval
from proxyfl.records.answers import Answer, Question
from proxyfl.records.groups import Group
from proxyfl.records.row import own_of
from proxyfl.records.run import Run, find_comparison_round
from proxyfl.tasks import REGRESSION, TIME_TO_EVENT


def answer_interval(one: Answer, client: int | None = None) -> Interval | None:
    """The interval of an answer's mean gain, or of the mean gain of one client over runs.

    None where it is not known: without resampled scores of both methods at their ends, or if one
    was compared with another run's."""
    asked = one.asked
    if asked.role is not None or asked.after is not None:
        return None
    differences = []
    by_seed: dict[int, list[float]] = {}
    for (number, who), gain in one.gains.items():
        if client is None or who == client:
            run = one.group.runs[number]
            gains = _differences(run, one.method, who, asked)
            if gains is None:
                return None
            differences.append(gains)
            by_seed.setdefault(run.seed, []).append(gain)
    persons = _interval_of_mean(differences)
    splits = [sum(gains) / len(gains) for gains in by_seed.values()]
    return None if persons is None else widen(persons, splits)


def widen(persons: Interval, splits: Sequence[float]) -> Interval:
    """An interval over test persons, made wider by the spread of the gain between splits.

    The squares of the two half-widths add up: the interval over persons, and Student's over the
    means of the splits, if there are three or more. Splits have different test persons, so part of
    the noise counts twice; the interval is rather too wide than too narrow."""
    n = len(splits)
    if n < 3:
        return persons
    mean = sum(splits) / n
    variance = sum((value - mean) ** 2 for value in splits) / (n - 1)
    half = _student(n - 1) * math.sqrt(variance / n)
    low, high = persons
    return mean - math.hypot(mean - low, half), mean + math.hypot(high - mean, half)


_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""The 97.5 % quantiles of Student's t for 1 to 10 degrees of freedom."""


def _student(freedom: int) -> float:
    """The same beyond the table, to 0.01; reading runs needs no SciPy."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    return 1.96 + 2.4 / freedom + 3 / freedom**2


def is_within_noise(interval: Interval | None) -> bool:
    """True if an interval contains zero."""
    return interval is not None and interval[0] <= 0 <= interval[1]


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
    models = []
    for name, client, counts in _kept_counts(run):
        predicted = [sum(column) > 0 for column in zip(*counts, strict=True)]
        if sum(predicted) == 1 and len(predicted) > 1:
            label = classes[predicted.index(True)]
            models.append((name, client, label))
    return models


def kind_of_alone(run: Run) -> str | None:
    """Names the ``alone`` that the gains are over, in a sentence; None if the run has none."""
    if not run.about("alone"):
        return None
    if is_estimator(run):
        return "alone: the best of the stated estimators for each client, by its own examples."
    return "alone: the private model, trained locally by the same settings as the others."


CHANCE = {
    "auroc": (0.5, "an AUROC", "a coin has 0.500"),
    "c_index": (0.5, "a C-index", "a coin has 0.500"),
    "time_auroc": (0.5, "an AUROC over time", "a coin has 0.500"),
    "r2": (0.0, "an R squared", "the mean of the values, said of everybody, has 0.000"),
}
"""What a model that knows nothing has, by measure, and how to say that."""

PLAIN = {REGRESSION: "linear regression", TIME_TO_EVENT: "regression of hazards"}
"""What ``simulation.reference`` fits where it is no logistic regression."""

TOO_WEAK = 0.02
"""How far ``alone`` may lie below a plain regression and be a fair opponent."""


def weak_alone(group: Group, measure: str) -> str | None:
    """Says why ``alone`` is not a fair opponent in a group, in a sentence; None if it is one, or if
    nobody can tell.

    It is not if its mean is below that of a model that knows nothing, or if it is more than two
    points below a plain regression on the same records (``reference`` in the summary)."""
    alone = []
    plain = []
    for run in group.runs:
        for client in run.clients_of("alone") if "alone" in run.methods else ():
            score = run.kept("alone", client, measure)
            if score is not None:
                alone.append(score)
                reference = reference_of(run, client, measure)
                if reference is not None:
                    plain.append(reference)
    if not alone:
        return None
    mean = sum(alone) / len(alone)
    known = CHANCE.get(measure.removeprefix(OWN))
    if known is not None and mean < known[0]:
        _, title, words = known
        return f"Alone has {title} of {mean:.3f}: {words}."
    if len(plain) == len(alone):
        behind = better_by(measure, sum(plain) / len(plain), mean)
        if behind is not None and behind > TOO_WEAK:
            return (
                f"Alone is {100 * behind:.0f} points below a plain {plain_name(group.runs[0])} "
                f"on the same records ({mean:.3f} against {sum(plain) / len(plain):.3f}): it is "
                "trained too little."
            )
    return None


def plain_name(run: Run) -> str:
    """The regression that ``alone`` is held to, in words."""
    return PLAIN.get(run.task.get("kind", ""), "logistic regression")


def reference_of(run: Run, client: int, measure: str) -> float | None:
    """The score of a plain regression on a client's records, as the summary has it."""
    for about in run.about("alone").get("clients", ()):
        if about.get("client") == client:
            value: float | None = (about.get("reference") or {}).get(measure)
            return value
    return None


def is_estimator(run: Run) -> bool:
    """True if ``alone`` is the best of the stated estimators rather than a network."""
    clients = run.about("alone").get("clients", ())
    return any(client.get("keeps") for client in clients)


def warnings(run: Run) -> list[str]:
    """Sentences on what a gain is over, and on what would make a good score worthless."""
    return warnings_over([run])


def warnings_over(runs: Sequence[Run]) -> list[str]:
    """The warnings of several runs, each said once."""
    sentences = list(dict.fromkeys(filter(None, map(kind_of_alone, runs))))
    rates = [rate for rate in map(majority_rate, runs) if rate is not None]
    if rates:
        low, high = f"{min(rates):.3f}", f"{max(rates):.3f}"
        span = low if low == high else f"{low} to {high}"
        sentences.append(f"Always saying the commonest class would have accuracy {span}.")
    counted: Counter[str] = Counter()
    for run in runs:
        for name, client, label in one_class_only(run):
            who = run.clients.get(client, f"client {client}")
            counted[f"{name}, {who}: the model kept says {label!r} for every test example"] += 1
    for sentence, count in counted.items():
        of_runs = "" if len(runs) == 1 else f", in {count} of {len(runs)} runs"
        sentences.append(f"{sentence}{of_runs}.")
    return sentences


def _kept_counts(run: Run) -> Iterator[tuple[str, int, list[list[int]]]]:
    """(method, client, confusion counts) of every kept model, as the summary has them."""
    for name in run.methods:
        for client, by_role in run.confusion(name).items():
            counts = by_role.get(run.method(name).keeps)
            if counts:
                yield name, client, counts


def _differences(run: Run, name: str, client: int, asked: Question) -> list[float | None] | None:
    """A client's gain on each bootstrap sample; None where it is not known."""
    over = asked.against
    if over not in run.methods:
        return None
    if find_comparison_round(run, name, run, over) is not None:
        return None
    joined = _bootstrap_scores(run, name, client, asked.measure)
    alone = _bootstrap_scores(run, over, client, asked.measure)
    if joined is None or alone is None:
        return None
    if len(joined) != len(alone):
        return None
    gains = []
    for ours, theirs in zip(joined, alone, strict=True):
        gains.append(better_by(asked.measure, ours, theirs))
    return gains


def _bootstrap_scores(run: Run, name: str, client: int, measure: str) -> list[float | None] | None:
    """The score of the model kept on each sample, which only the run's own measure has."""
    if measure.removeprefix(OWN) != run.measure:
        return None
    kept = run.kept_row(name, client)
    if kept is None:
        return None
    row, role = kept
    where = own_of(role) if measure.startswith(OWN) else role
    values: Any = row.get(f"{where}_resampled")
    return values or None


def _interval_of_mean(differences: Sequence[Sequence[float | None]]) -> Interval | None:
    """The interval of the mean over clients, sample by sample."""
    means = []
    for sample in zip(*differences, strict=True):
        defined = [value for value in sample if value is not None]
        means.append(sum(defined) / len(defined) if defined else None)
    return interval(means)
