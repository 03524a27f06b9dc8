"""Runs side by side: one row per method and group of settings, with its price, against one of the
methods.

Guarantees:
    * a row never mixes runs whose settings differ without a remark that says so;
    * nothing is left out (an unfinished run, a pair without its counterpart) without a remark;
    * every epsilon is the largest over the row's clients and seeds, beside the weakest kind among
      them.
"""

import json
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from proxyfl.errors import ConfigError, RunError
from proxyfl.federation.methods import METHODS
from proxyfl.records import folder
from proxyfl.simulation.config import keys
from proxyfl.sweeps import file as sweep
from proxyfl.sweeps.statistics import Comparison, Spread, compare, differences, spread

Metric = Literal["accuracy", "macro_accuracy"]
Which = Literal["kept", "private", "proxy", "received"]

_APART = ("seed", "methods")
_INCIDENTAL = (
    "device",
    "threads",
    "evaluate_every",
    "checkpoint_every",
    "data.directory",
    "data.download",
    "exchange.timeout",
)
"""Settings that results do not depend on, but for rounding."""

_KINDS = ("end-to-end", "conditional", "none")
"""From the strongest guarantee to none."""


@dataclass(frozen=True)
class Sample:
    """What one client reached in one run under one method, and what that cost."""

    run: Path
    method: str
    settings: Mapping[str, Any]
    client: int
    value: float
    epsilon: float | None
    delta: float
    kind: str


@dataclass(frozen=True)
class Row:
    """One method in one group. ``clients`` is None where seeds have different numbers of them; no
    DP: epsilon None."""

    method: str
    group: Mapping[str, Any]
    score: Spread
    clients: int | None
    seeds: int
    epsilon: float | None
    delta: float
    kind: str
    comparison: Comparison | None


@dataclass(frozen=True)
class Overview:
    """The rows, what distinguishes their groups, whom they are compared with, and what a reader
    must know."""

    rows: Sequence[Row]
    by: Sequence[str]
    against: str | None
    remarks: Sequence[str]


def overview(
    paths: Sequence[Path],
    *,
    metric: Metric = "accuracy",
    role: Which = "kept",
    round: int | None = None,
    by: Sequence[str] | None = None,
    against: str | None = None,
) -> Overview:
    """Compare the runs in ``paths`` (runs, or folders of runs) after their last round, or after
    ``round`` rounds.

    ``by`` are the settings that rows are grouped by, if not all that differ; ``against`` is the
    method to compare with, if not `alone` where that is there."""
    remarks: list[str] = []
    samples = [s for run in runs_below(paths) for s in read(run, metric, role, round, remarks)]
    if not samples:
        raise RunError("\n".join(["There is nothing to compare.", *remarks]))
    differing = _differing(samples)
    grouped_by = [_setting(key) for key in by] if by is not None else differing
    groups: dict[tuple[Any, ...], dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        groups[tuple(sample.settings[key] for key in grouped_by)][sample.method].append(sample)
    rest = [key for key in differing if key not in grouped_by]
    methods = list(dict.fromkeys(s.method for s in samples))
    if against is not None and against not in methods:
        raise ConfigError(
            f"There is no method {against!r} in these runs. There are: {', '.join(methods)}."
        )
    against = against or ("alone" if "alone" in methods else None)
    rows = []
    for group, found in groups.items():
        for method in sorted(found, key=_rank):
            _check_once(found[method], rest)
            theirs = _counterpart(against, method, group, groups, grouped_by, remarks)
            comparison = _compare(found[method], theirs, rest, remarks) if theirs else None
            rows.append(
                _row(method, dict(zip(grouped_by, group, strict=True)), found[method], comparison)
            )
            mixed = [key for key in rest if len({s.settings[key] for s in found[method]}) > 1]
            if mixed:
                remarks.append(f"{method}: taken together although {', '.join(mixed)} differ.")
    return Overview(rows, grouped_by, against, list(dict.fromkeys(remarks)))


def runs_below(paths: Sequence[Path]) -> list[Path]:
    """The run folders among ``paths`` and below them, each once."""
    found: dict[Path, Path] = {}
    for path in paths:
        below = [p.parent for p in sorted(path.glob("**/config.toml"))]
        here = (
            [path]
            if path in below
            else [
                p for p in below if not any(n.startswith(".") for n in p.parts[len(path.parts) :])
            ]
        )
        if not here:
            raise RunError(
                f"{path} holds no run: expected a run's folder, or one of runs as `proxyfl sweep` "
                f"makes it."
            )
        found |= {run.resolve(): run for run in here if run.resolve() not in found}
    return list(found.values())


def read(
    run: Path, metric: Metric, role: Which, round: int | None, remarks: list[str]
) -> list[Sample]:
    """The scores in one run's folder; what cannot be read of it, and why, goes to ``remarks``."""
    config = folder.read_config(run)
    finished = sweep.state(run) == "finished"
    if round is None and not finished:
        remarks.append(f"Left out: {run} is not finished (`proxyfl resume {run}` goes on with it).")
        return []
    settings, samples = sweep.settings(config), []
    records, keeps = _records(run, round)
    for method in config.methods:
        wanted = keeps.get(method, "private") if role == "kept" else role
        found = [
            (record, _score(record, wanted, metric, role)) for record in records.get(method, [])
        ]
        scored = [(record, value) for record, value in found if value is not None]
        if not scored and any(key.endswith("_accuracy") for record, _ in found for key in record):
            remarks.append(f"Left out: {method} has no {wanted} model to score.")
        elif not scored and finished:
            raise RunError(
                f"{method} was not evaluated after round {round} in {run}. "
                f"{_evaluated(run, method)}"
            )
        elif not scored:
            remarks.append(
                f"Left out: {method} in {run} has not come to round {round}, or was not evaluated "
                f"there."
            )
        samples += [
            Sample(run, method, settings, r["client"], value, *_price(r)) for r, value in scored
        ]
    return samples


def _records(
    run: Path, round: int | None
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """Each method's records, one per client, and which model it keeps."""
    keeps = {name: str(method.keeps) for name, method in METHODS.items()}
    try:
        about = json.loads((run / "summary.json").read_text(encoding="utf-8"))["methods"]
        keeps |= {name: entry["keeps"] for name, entry in about.items()}
        if round is None:
            return {name: entry["clients"] for name, entry in about.items()}, keeps
    except (OSError, ValueError, KeyError, TypeError) as error:
        if round is None:
            raise RunError(
                f"{run / 'summary.json'} cannot be read: {type(error).__name__} {error}."
            ) from error
    records: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in folder.read_metrics(run):
        if (
            row["round"] == round - 1
        ):  # records count rounds from 0, people count those that are done
            records[row["method"]].append(row)
    return records, keeps


def _score(record: Mapping[str, Any], wanted: str, metric: str, role: str) -> float | None:
    value: float | None = record.get(f"{wanted}_{metric}")
    if value is None and role == "kept" and wanted == "received":
        # A client that left before the exchange has received nothing in it: it keeps the proxy it
        # had.
        value = record.get(f"proxy_{metric}")
    return value


def _price(record: Mapping[str, Any]) -> tuple[float | None, float, str]:
    found = [e for e in (record["epsilon_rdp"], record["epsilon_pld"]) if e is not None]
    return (min(found) if found else None), record["delta"], record["epsilon_kind"]


def _evaluated(run: Path, method: str) -> str:
    rows = [
        r
        for r in folder.read_metrics(run)
        if r["method"] == method and any(k.endswith("_accuracy") for k in r)
    ]
    return f"Evaluated: after {', '.join(str(n + 1) for n in sorted({r['round'] for r in rows}))}."


def _differing(samples: Sequence[Sample]) -> list[str]:
    candidates = [key for key in keys() if key not in _APART + _INCIDENTAL]
    return [key for key in candidates if len({s.settings[key] for s in samples}) > 1]


def _setting(key: str) -> str:
    """The setting called ``key``, or the only one that ends in it."""
    known = keys()
    matching = [name for name in known if name == key] or [
        n for n in known if n.endswith(f".{key}")
    ]
    if len(matching) != 1:
        raise ConfigError(
            f"Unknown setting {key!r} to group by. Known: {', '.join(matching or known)}."
        )
    return matching[0]


def _rank(method: str) -> tuple[int, str]:
    return (list(METHODS).index(method) if method in METHODS else len(METHODS)), method


def _seed(sample: Sample, rest: Sequence[str]) -> tuple[Hashable, ...]:
    """What pairs must share besides the client: the seed, and whatever else differs within the
    row."""
    return sample.settings["seed"], *(sample.settings[key] for key in rest)


def _check_once(samples: Sequence[Sample], rest: Sequence[str]) -> None:
    seen: dict[Hashable, Path] = {}
    for sample in samples:
        first = seen.setdefault((_seed(sample, rest), sample.client), sample.run)
        if first != sample.run:
            raise RunError(
                f"{first} and {sample.run} hold the same method ({sample.method}), settings and "
                f"seed. Name one of them."
            )


def _counterpart(
    against: str | None,
    method: str,
    group: tuple[Any, ...],
    groups: Mapping[tuple[Any, ...], Mapping[str, list[Sample]]],
    by: Sequence[str],
    remarks: list[str],
) -> list[Sample]:
    """The samples to compare with: those of the same group, else those of the only group that has
    any."""
    if against is None or method == against:
        return []
    if against in groups[group]:
        return groups[group][against]
    having = [other for other, found in groups.items() if against in found]
    shown = ", ".join(f"{key}={value}" for key, value in zip(by, group, strict=True))
    if len(having) > 1:
        remarks.append(
            f"{method} ({shown}) is not compared: {against} was not run with these settings."
        )
        return []
    only = ", ".join(f"{key}={value}" for key, value in zip(by, having[0], strict=True))
    remarks.append(f"{method} ({shown}) is compared with the only {against} there is, at {only}.")
    return groups[having[0]][against]


def _compare(
    ours: Sequence[Sample], theirs: Sequence[Sample], rest: Sequence[str], remarks: list[str]
) -> Comparison | None:
    pooled = [
        bool(METHODS[s.method].pooled) if s.method in METHODS else False
        for s in (ours[0], theirs[0])
    ]
    found = differences(
        *({(_seed(s, rest), s.client): s.value for s in side} for side in (ours, theirs)),
        ours_pooled=pooled[0],
        theirs_pooled=pooled[1],
    )
    pairs, expected = sum(map(len, found.values())), len(theirs if pooled[0] else ours)
    if pairs < expected:
        names = f"{ours[0].method} and {theirs[0].method}"
        remarks.append(
            f"{names}: {pairs} of {expected} scores have a counterpart with the same seed and "
            f"client."
        )
    by_seed: dict[Hashable, list[float]] = defaultdict(list)
    for (seed, *_), some in found.items():
        by_seed[seed] += some
    return compare(by_seed) if pairs else None


def _row(
    method: str, group: Mapping[str, Any], samples: Sequence[Sample], comparison: Comparison | None
) -> Row:
    per_seed: dict[int, set[int]] = defaultdict(set)
    for sample in samples:
        per_seed[sample.settings["seed"]].add(sample.client)
    counts = {len(clients) for clients in per_seed.values()}
    weakest = max((s.kind for s in samples), key=_KINDS.index)
    worst = max(samples, key=lambda s: float("inf") if s.epsilon is None else s.epsilon)
    return Row(
        method=method,
        group=group,
        score=spread(s.value for s in samples),
        clients=counts.pop() if len(counts) == 1 else None,
        seeds=len(per_seed),
        epsilon=worst.epsilon,
        delta=worst.delta,
        kind=weakest,
        comparison=comparison,
    )
