"""Runs side by side: one row per method and group of settings, with its price, and tests of what it
gains over one of the methods. The numbers are those of ``records.answers``.

Guarantees:
    * a row never mixes runs whose settings differ without a remark that says so;
    * nothing is left out (an unfinished run, a pair without its counterpart) without a remark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from proxyfl._command import command
from proxyfl.errors import ConfigError, RunError
from proxyfl.measures import Interval
from proxyfl.privacy.guarantee import Kind
from proxyfl.records.answers import Answer, Question, Spread, answer
from proxyfl.records.certainty import answer_interval
from proxyfl.records.groups import Group, check_once, differ, distinct, groups, measure_of, setting
from proxyfl.records.reading import find, read
from proxyfl.records.row import roles
from proxyfl.records.run import Run
from proxyfl.sweeps.statistics import Comparison, compare


@dataclass(frozen=True)
class Row:
    """One method in one group. ``clients`` is None where seeds have different numbers of them;
    without DP epsilon is None."""

    method: str
    group: Mapping[str, Any]
    score: Spread
    clients: int | None
    seeds: int
    epsilon: float | None
    delta: float
    kind: str
    comparison: Comparison | None
    interval: Interval | None = None
    """The 95 % interval of the mean difference, over bootstrap samples of test persons."""


@dataclass(frozen=True)
class Overview:
    """The rows, what distinguishes their groups, whom they are compared with, and what a reader
    must know."""

    rows: Sequence[Row]
    measure: str
    by: Sequence[str]
    against: str | None
    remarks: Sequence[str]

    @property
    def comparisons(self) -> list[Comparison]:
        """Those of the rows that have one."""
        return [row.comparison for row in self.rows if row.comparison is not None]


def overview(
    paths: Sequence[Path],
    *,
    measure: str | None = None,
    role: str | None = None,
    after: int | None = None,
    by: Sequence[str] | None = None,
    against: str | None = None,
) -> Overview:
    """Compare the runs in ``paths`` (runs, or folders of runs) at their end, or ``after`` so many
    rounds.

    ``measure`` is the runs' own unless given; ``role`` the model, if not the one that is kept;
    ``by`` the settings that rows are grouped by, if not all that differ; ``against`` the method to
    compare with, if not `alone` where that is there."""
    remarks: list[str] = []
    runs = [
        run for run in map(read, find(paths)) if after is not None or _is_finished(run, remarks)
    ]
    if not runs:
        raise RunError("\n".join(["There is nothing to compare.", *remarks]))
    asked_by = None if by is None else [setting(runs, key) for key in by]
    measure = measure_of(runs) if measure is None else measure
    made = groups(runs, asked_by)
    against = _against(runs, against)
    asked = Question(measure, role, after, against or "")
    rows = []
    for group in made:
        for method in group.methods:
            one = _answer(group, method, asked, made, remarks)
            if one is not None:
                rows.append(_row(one))
    if not rows:
        raise RunError("\n".join(["There is nothing to compare.", *remarks]))
    shown = {row.method for row in rows}
    compared = against if against in shown else None
    return Overview(rows, measure, list(made[0].settings), compared, list(dict.fromkeys(remarks)))


def _is_finished(run: Run, remarks: list[str]) -> bool:
    if run.finished:
        return True
    go_on = f"`{command('resume', run.path)}` continues it"
    scored = [set(run.scored_after(name)) for name in run.methods if run.scored_after(name)]
    common = set.intersection(*scored) if scored else set()
    if common:
        go_on += f", `--round {max(common)}` compares what there is"
    remarks.append(f"Left out: {run.path} is not finished ({go_on}).")
    return False


def _against(runs: Sequence[Run], against: str | None) -> str | None:
    methods = distinct(run.methods for run in runs)
    if against is not None and against not in methods:
        raise ConfigError(f"No method {against!r} in these runs. Known: {', '.join(methods)}.")
    return against or ("alone" if "alone" in methods else None)


def _answer(
    group: Group, method: str, asked: Question, made: Sequence[Group], remarks: list[str]
) -> Answer | None:
    """The row's cells; obstacles are told in ``remarks``."""
    having = [run for run in group.runs if method in run.methods]
    usable = [run for run in having if _has_reached(run, method, asked.after, remarks)]
    own = Group(group.settings, usable, group.mixed)
    check_once(own, method)
    others: list[Run] = []
    if asked.against and method != asked.against:
        others = _counterparts(group, method, asked, made, remarks)
    one = answer(own, method, asked, others)
    if one is None:
        if usable:
            remarks.append(_why_left_out(usable, method, asked))
        return None
    if others and not one.pooled and len(one.gains) < len(one.scores):
        remarks.append(
            f"{method} and {asked.against}: {len(one.gains)} of {len(one.scores)} scores have "
            "a counterpart with the same seed and client."
        )
    mixed = [key for key in group.mixed if differ(usable, key)]
    if mixed:
        remarks.append(f"{method}: taken together although {', '.join(mixed)} differ.")
    return one


def _has_reached(run: Run, method: str, after: int | None, remarks: list[str]) -> bool:
    """True if a method was scored after so many rounds, or had ended before with everyone gone."""
    if after is None or after in run.scored_after(method):
        return True
    if run.over(method) and run.progress[method] < after <= run.rounds:
        return True
    if run.finished:
        scored = ", ".join(map(str, run.scored_after(method)))
        raise RunError(
            f"{method} was not evaluated after round {after} in {run.path}. "
            f"Evaluated: after {scored}."
        )
    remarks.append(
        f"Left out: {method} in {run.path} has not come to round {after}, or was not evaluated "
        "there."
    )
    return False


def _counterparts(
    group: Group, method: str, asked: Question, made: Sequence[Group], remarks: list[str]
) -> list[Run]:
    """The runs to compare with: those of the same group, else those of the only group that has
    any."""
    having = [one for one in made if asked.against in one.methods]
    chosen = group
    if group not in having:
        label = group.label
        if len(having) > 1:
            remarks.append(
                f"{method} ({label}) is not compared: {asked.against} was not run with these "
                "settings."
            )
            return []
        chosen = having[0]
        remarks.append(
            f"{method} ({label}) is compared with the only {asked.against} there is, at "
            f"{chosen.label}."
        )
    runs = [run for run in chosen.runs if asked.against in run.methods]
    return [run for run in runs if _has_reached(run, asked.against, asked.after, remarks)]


def _why_left_out(runs: Sequence[Run], method: str, asked: Question) -> str:
    role = asked.role or runs[0].method(method).keeps
    finals = chain.from_iterable(run.finals(method) for run in runs)
    if any(role in roles(row) for row in finals):
        return f"Left out: {method} has no {asked.measure} on record."
    return f"Left out: {method} has no {role} model to score."


def _row(one: Answer) -> Row:
    clients_of: dict[int, set[int]] = {}
    for number, client in one.scores:
        clients_of.setdefault(one.group.runs[number].seed, set()).add(client)
    counts = {len(clients) for clients in clients_of.values()}
    epsilon = one.epsilon
    return Row(
        method=one.method,
        group=one.group.settings,
        score=one.score,
        clients=counts.pop() if len(counts) == 1 else None,
        seeds=len(clients_of),
        epsilon=None if epsilon.kind is Kind.NONE else epsilon.best,
        delta=epsilon.delta,
        kind=str(epsilon.kind),
        comparison=compare(one.by_seed()) if one.gains else None,
        interval=answer_interval(one) if one.gains else None,
    )
