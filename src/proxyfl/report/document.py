"""What the page shows, as one document of plain data: the browser draws from it and from nothing
else.

Numbers are rounded to what a chart can show (scores to 1e-4, epsilons to four digits, up), which
keeps a large comparison in a few megabytes. Increments of a live run have the same form and are
added at the end (``series``, ``graph``)."""

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from proxyfl.privacy.guarantee import Kind, upward
from proxyfl.records.answers import Answer, Question, answers, groups
from proxyfl.records.row import Row
from proxyfl.records.run import Run
from proxyfl.report.graph import graph

ROLES = ("private", "proxy", "received")
MEASURES = ("accuracy", "macro_accuracy")
SUMS = (
    "seconds_training",
    "seconds_evaluation",
    "seconds_exchange",
    "bytes_sent",
    "bytes_received",
    "messages_sent",
)


def document(runs: Sequence[Run], *, live: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Everything about ``runs``; ``live`` is what a page that follows a run needs to ask for
    more."""
    return {
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "live": live,
        "groups": grouped(runs),
        "runs": [
            {**about(run), "series": series(run.rows), "graph": graph(run, run.rows)}
            for run in runs
        ],
    }


def about(run: Run) -> dict[str, Any]:
    """What is known of a run besides its rounds."""
    summary = run.summary or {}
    return {
        "name": run.name,
        "seed": run.seed,
        "rounds": run.rounds,
        "progress": run.progress,
        "finished": run.finished,
        "ended": run.summary is not None,
        "settings": flat(run.settings),
        "environment": flat(run.environment),
        "simulation": bool(run.environment.get("simulation", False)),
        "methods": {name: _method(run, name) for name in run.methods},
        "budget": _budget(run.settings),
        "classes": summary.get("classes", []),
        "clients": summary.get("clients", []),
        "confusion": {
            name: {str(c["client"]): c.get("confusion", {}) for c in method.get("clients", [])}
            for name, method in summary.get("methods", {}).items()
        },
        "additions": run.additions,
    }


def series(rows: Iterable[Row]) -> dict[str, Any]:
    """Rounds as columns: per method the rounds, those that were scored, and per client one value
    for each of them.

    A client that was away has null there. Seconds and bytes are only shown as totals, so only those
    are kept."""
    methods: dict[str, Any] = {}
    for (name, round), group in groupby(rows, key=lambda row: (row["method"], row["round"])):
        method = methods.setdefault(name, {"rounds": [], "scored": [], "clients": {}})
        here = list(group)
        method["rounds"].append(round)
        if any(f"{role}_accuracy" in row for row in here for role in ROLES):
            method["scored"].append(round)
        for row in here:
            _add(method, row)
    for method in methods.values():
        for client in method["clients"].values():
            for role in client["scores"].values():
                _pad(role, len(method["scored"]))
            for accountant in ("rdp", "pld"):
                _pad(client[accountant], len(method["rounds"]))
    return methods


def grouped(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Runs with equal settings but for the seed belong together; the groups are named by the
    settings that differ."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, run in enumerate(runs):
        settings = {key: value for key, value in flat(run.settings).items() if key != "seed"}
        groups.setdefault(
            tuple(sorted((key, repr(value)) for key, value in settings.items())), []
        ).append(index)
    labels = _labels([flat(runs[members[0]].settings) for members in groups.values()])
    return [
        {"label": label, "runs": members}
        for label, members in zip(labels, groups.values(), strict=True)
    ]


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping with dotted keys."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


def _method(run: Run, name: str) -> dict[str, Any]:
    method = run.method(name)
    return {
        "summary": method.summary,
        "keeps": method.keeps,
        "exchange": method.exchange,
        "pooled": method.pooled,
        "mutual": method.learner == "mutual",
    }


def _budget(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The epsilon that each client may spend (one for all, or a list), and by which accountant."""
    privacy = settings.get("privacy", {})
    budget = privacy.get("budget")
    if not isinstance(budget, int | float | list):
        return None
    return {"epsilon": budget, "accountant": privacy.get("accountant", "pld")}


def _labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    if len(settings) == 1:
        return [""]
    keys = sorted({key for one in settings for key in one if key != "seed"})
    differing = [key for key in keys if len({repr(one.get(key)) for one in settings}) > 1]
    if len(differing) > 1:
        # The list of methods is long, and the charts show it anyway.
        shorter = [key for key in differing if key != "methods"]
        named = {tuple(repr(one.get(key)) for key in shorter) for one in settings}
        differing = shorter if len(named) == len(settings) else differing
    return [", ".join(f"{key}={_word(one.get(key))}" for key in differing) for one in settings]


def _word(value: Any) -> str:
    if isinstance(value, list):
        return "+".join(map(_word, value))
    return "unset" if value is None else str(value)


def _add(method: dict[str, Any], row: Row) -> None:
    client = method["clients"].setdefault(
        str(row["client"]),
        {
            "name": row["name"],
            "kind": "none",
            "delta": None,
            "scores": {},
            "rdp": [],
            "pld": [],
            "sums": dict.fromkeys(SUMS, 0.0),
            "present": 0,
            "left": None,
        },
    )
    client["kind"], client["delta"] = row.get("epsilon_kind", "none"), row.get("delta")
    client["left"] = row.get("left")
    client["present"] += 1
    for key in SUMS:
        client["sums"][key] = round(client["sums"][key] + (row.get(key) or 0.0), 6)
    for role in ROLES:
        for measure in MEASURES:
            value = row.get(f"{role}_{measure}")
            if value is not None:
                values = client["scores"].setdefault(f"{role}_{measure}", [])
                _pad(values, len(method["scored"]) - 1)
                values.append(round(value, 4))
    for accountant in ("rdp", "pld"):
        _pad(client[accountant], len(method["rounds"]) - 1)
        value = row.get(f"epsilon_{accountant}")
        client[accountant].append(
            None if value is None or not math.isfinite(value) else upward(value, 4)
        )


def _pad(values: list[Any], length: int) -> None:
    values.extend([None] * (length - len(values)))


def told(run: Run) -> list[dict[str, Any]]:
    """Per method but ``alone``: how many clients gain over it, by how much, and the largest epsilon
    with its kind."""
    (group,) = groups([run])
    said = []
    for found in answers(group, Question(run.measure)):
        if found.method != "alone":
            said.append(verdict(found))
    return said


def verdict(found: Answer) -> dict[str, Any]:
    """An answer as plain data."""
    bounded = found.epsilon.kind is not Kind.NONE
    return {
        "method": found.method,
        "measure": found.asked.measure,
        "clients": len(found.gains),
        "gaining": found.gaining,
        "losing": found.losing,
        "mean_gain": found.gain.mean if found.gain else None,
        "lowest_gain": found.gain.low if found.gain else None,
        "highest_gain": found.gain.high if found.gain else None,
        "after": found.after,
        "epsilon": found.epsilon.best if bounded else None,
        "delta": found.epsilon.delta,
        "epsilon_kind": str(found.epsilon.kind),
    }
