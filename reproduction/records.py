"""What is kept of a sweep: every score of every client, without the weights.

A file has one JSON object per line: a heading, then one group per setting, method and model. Scores
are in the order seed, round, client."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from proxyfl.errors import RunError
from proxyfl.records import reading as loading
from proxyfl.records.row import ROLES
from proxyfl.simulation.config import flat
from proxyfl.sweeps import file as sweep

MEASURES = ("accuracy", "macro_accuracy", "auroc", "own_auroc")
FORMAT = 1
ENOUGH = 0.5
"""The share of its rounds that an experiment must have done before a statement is judged by it."""

_LOCAL = ("data.directory", "data.download", "threads", "device", "checkpoint_every")
"""Settings of a machine, on which results do not depend."""

Scores = dict[tuple[int, int], float]
"""(seed, client) -> score."""


@dataclass(frozen=True)
class Group:
    """The scores of one kind of model under one setting.

    ``rounds`` are the numbers of rounds done at which it was scored, ``epsilon`` what they had cost
    by then: the largest over clients and seeds, by the PLD accountant, None for a model that was
    trained without DP. ``keeps`` names, seed by seed and client by client, what was chosen at home
    (``federation.home``). Records of before AUROC have none. ``own_auroc`` is the AUROC on the
    site's own test examples, where the data know sites; NaN where they are all of one class."""

    settings: Mapping[str, Any]
    method: str
    role: str
    seeds: Sequence[int]
    rounds: Sequence[int]
    accuracy: Sequence[Sequence[Sequence[float]]]
    macro_accuracy: Sequence[Sequence[Sequence[float]]]
    epsilon: Sequence[float | None]
    kind: str
    auroc: Sequence[Sequence[Sequence[float]]] = ()
    keeps: Sequence[Sequence[str | None]] = ()
    own_auroc: Sequence[Sequence[Sequence[float]]] = ()

    def at(self, round: int, measure: str = "accuracy") -> Scores:
        """The scores after so many rounds."""
        position = list(self.rounds).index(round)
        by_seed = zip(self.seeds, getattr(self, measure), strict=True)
        return {
            (seed, i): score for seed, rounds in by_seed for i, score in enumerate(rounds[position])
        }

    def epsilon_at(self, round: int) -> float | None:
        """What so many rounds had cost."""
        return self.epsilon[list(self.rounds).index(round)]


@dataclass(frozen=True)
class Record:
    """An experiment as it was measured.

    ``rounds`` and ``seeds`` are what its file asks for; what there is of them, its groups say.
    ``base`` are the settings of the first run, of which those in ``Group.settings`` vary.
    ``seconds_per_round`` is one core's time for all clients, per method, over all settings;
    ``yardstick`` what the machine needed for a fixed calculation at that time
    (``reproduction.duration``)."""

    experiment: str
    rounds: int
    seeds: Sequence[int]
    base: Mapping[str, Any]
    seconds_per_round: Mapping[str, float]
    yardstick: float
    groups: Sequence[Group] = field(repr=False)

    def group(self, method: str, role: str, **settings: Any) -> Group:
        """The one group with this method, role and settings; dots in settings' names are written as
        two underscores."""
        wanted = {key.replace("__", "."): value for key, value in settings.items()}
        found = [
            g for g in self.groups if (g.method, g.role, dict(g.settings)) == (method, role, wanted)
        ]
        if len(found) != 1:
            raise RunError(
                f"{self.experiment}: expected one record of {method} {role} {wanted}, got "
                f"{len(found)}."
            )
        return found[0]

    def has(self, method: str, role: str, **settings: Any) -> bool:
        """Whether there is such a group."""
        wanted = {key.replace("__", "."): value for key, value in settings.items()}
        return any(
            (g.method, g.role, dict(g.settings)) == (method, role, wanted) for g in self.groups
        )

    @property
    def last_round(self) -> int:
        """The last number of rounds after which every method was scored."""
        return max(set.intersection(*(set(g.rounds) for g in self.groups)))

    def is_early(self, done: int) -> bool:
        """True if ``done`` rounds are too few to judge anything by them."""
        return done < ENOUGH * self.rounds


def condense(experiment: str, runs: Iterable[sweep.Point], *, yardstick: float) -> Record:
    """The record of the runs, as far as they have come. A run not yet scored is left out."""
    runs = list(runs)
    parts: dict[tuple[str, str, str], list[tuple[int, list[dict[str, Any]]]]] = {}
    training: dict[str, list[float]] = {}
    for run in runs:
        if sweep.state(run.folder) == "new":
            continue
        rows = loading.read(run.folder).rows
        settings = json.dumps(
            {k: v for k, v in run.settings.items() if k not in ("seed", "methods")}
        )
        for method in run.config.methods:
            own = [row for row in rows if row["method"] == method]
            training.setdefault(method, []).extend(_seconds_per_round(own))
            for role in ROLES:
                if scored := [row for row in own if row.get(f"{role}_accuracy") is not None]:
                    parts.setdefault((settings, method, role), []).append((run.config.seed, scored))
    if not parts:
        raise RunError(f"Nothing of {experiment} has been scored yet. Run it first.")
    return Record(
        experiment,
        rounds=max(run.config.rounds for run in runs),
        seeds=sorted({run.config.seed for run in runs}),
        base=_as_read(
            {key: value for key, value in flat(runs[0].config).items() if key not in _LOCAL}
        ),
        seconds_per_round={m: round(sum(s) / len(s), 4) for m, s in training.items() if s},
        yardstick=yardstick,
        groups=[_group(json.loads(key[0]), *key[1:], found) for key, found in parts.items()],
    )


def write(record: Record, path: Path) -> None:
    """Write the record to ``path``."""
    heading = {key: value for key, value in asdict(record).items() if key != "groups"}
    lines = [{"format": FORMAT, **heading}, *(asdict(group) for group in record.groups)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), encoding="utf-8"
    )


def read(path: Path) -> Record:
    """The record at ``path``."""
    try:
        heading, *groups = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    except FileNotFoundError as error:
        raise RunError(
            f"There is no record {path}. Make it: make reproduce EXPERIMENT={path.stem}."
        ) from error
    if heading.pop("format") != FORMAT:
        raise RunError(
            f"{path} has another format. Make it again: make reproduce EXPERIMENT={path.stem}."
        )
    return Record(**heading, groups=[Group(**group) for group in groups])


def _as_read(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as a record's file gives them back: lists where there were tuples."""
    found: dict[str, Any] = json.loads(json.dumps(settings))
    return found


def _group(
    settings: dict[str, Any], method: str, role: str, found: list[tuple[int, list[dict[str, Any]]]]
) -> Group:
    found = sorted(found, key=lambda part: part[0])
    common = sorted(set.intersection(*({row["round"] + 1 for row in rows} for _, rows in found)))
    scores: dict[str, list[list[list[float]]]] = {measure: [] for measure in MEASURES}
    cost: dict[int, float] = {}
    for _, rows in found:
        by_round: dict[int, list[dict[str, Any]]] = {done: [] for done in common}
        for row in sorted(rows, key=lambda row: row["client"]):
            if (done := row["round"] + 1) in by_round:
                by_round[done].append(row)
                if row.get("epsilon_pld") is not None:
                    cost[done] = max(cost.get(done, 0.0), row["epsilon_pld"])
        for measure, into in scores.items():
            into.append([[_score(row, role, measure) for row in by_round[done]] for done in common])
    return Group(
        settings,
        method,
        role,
        [seed for seed, _ in found],
        common,
        scores["accuracy"],
        scores["macro_accuracy"],
        epsilon=[None if done not in cost else round(cost[done], 4) for done in common],
        kind=found[0][1][0]["epsilon_kind"],
        auroc=scores["auroc"],
        keeps=[_keeps(rows) for _, rows in found] if role == "private" else [],
        own_auroc=scores["own_auroc"] if _has_sites(found) else [],
    )


def _has_sites(found: Sequence[tuple[int, Sequence[Mapping[str, Any]]]]) -> bool:
    """Whether models were also judged on each site's own test examples."""
    _, rows = found[0]
    return any("private_own_auroc" in row for row in rows)


def _score(row: Mapping[str, Any], role: str, measure: str) -> float:
    """A score to four digits; NaN where the measure is not defined."""
    value = row.get(f"{role}_{measure}")
    return math.nan if value is None else round(value, 4)


def _keeps(rows: Iterable[Mapping[str, Any]]) -> list[str | None]:
    """What each client kept in the end."""
    last: dict[int, str | None] = {}
    for row in rows:
        last[row["client"]] = row.get("keeps")
    return [last[client] for client in sorted(last)]


def _seconds_per_round(rows: Iterable[Mapping[str, Any]]) -> list[float]:
    """One core's time for each round, all clients together."""
    rounds: dict[int, float] = {}
    for row in rows:
        spent = sum(row[f"seconds_{part}"] for part in ("training", "evaluation", "exchange"))
        rounds[row["round"]] = rounds.get(row["round"], 0.0) + spent
    return list(rounds.values())
