"""The curves of the page's charts over rounds, for one group of runs: scores, epsilons, costs.

A series is a list with one entry per round that the chart shows; ``below`` and ``above`` are one
standard deviation from the mean. Scores are rounded to 1e-4 and
epsilons up to four digits: all that a chart can show, and a large comparison stays small.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import chain
from typing import Any

from proxyfl.measures import names
from proxyfl.privacy.guarantee import Kind, upward
from proxyfl.records import row as rows
from proxyfl.records.answers import spread
from proxyfl.records.groups import Group
from proxyfl.records.row import ROLES, SECONDS, Row
from proxyfl.records.run import Run

ACCOUNTANTS = ("best", "pld", "rdp")
SUMS = (*(f"seconds_{part}" for part in SECONDS), "bytes_sent", "bytes_received")

ByRound = dict[int, list[float]]


def curves(group: Group, method: str) -> dict[str, Any]:
    """ROLE_MEASURE -> the score over rounds of all clients together, and of each."""
    everyone: dict[str, ByRound] = {}
    by_client: dict[str, dict[int, ByRound]] = {}
    for row in _rows(group, method):
        for key, value in _scores(row):
            clients = by_client.setdefault(key, {})
            for found in (
                everyone.setdefault(key, {}),
                clients.setdefault(row["client"], {}),
            ):
                found.setdefault(row["round"], []).append(value)
    return {
        key: {
            "all": _summed_up(found),
            "clients": {
                client: _summed_up(one) for client, one in by_client[key].items()
            },
        }
        for key, found in everyone.items()
    }


def epsilons(group: Group, method: str) -> dict[str, Any]:
    """The epsilon of the clients' data by each round. What was spent stays spent while a client is
    away, and after it has left."""
    paid: dict[int, dict[int, dict[str, list[float]]]] = {}
    kinds = set()
    units = set()
    for run in group.runs:
        for number, spent in _paid(run, method):
            for client, epsilon in spent.items():
                kinds.add(epsilon.kind)
                units.add(epsilon.unit)
                here = paid.setdefault(number, {}).setdefault(client, {})
                for accountant in ACCOUNTANTS:
                    here.setdefault(accountant, []).append(
                        getattr(epsilon, accountant)
                    )
    named = sorted(kinds - {Kind.NONE})
    found: dict[str, Any] = {"kind": " or ".join(named) or "none", "rounds": []}
    if not named:
        return found
    found["unit"] = " or ".join(sorted(units))
    found["rounds"] = [number + 1 for number in sorted(paid)]
    for accountant in ACCOUNTANTS:
        found[accountant] = _range(paid, accountant)
    return found


def costs(group: Group, method: str) -> dict[str, Any] | None:
    """Seconds and bytes, per client and round and in all; None for a method without records."""
    recorded = list(_rows(group, method))
    if not recorded:
        return None
    found = {}
    for key in SUMS:
        total = sum(row.get(key) or 0.0 for row in recorded)
        found[key] = {"each": total / len(recorded), "in_all": total}
    return found


def _rows(group: Group, method: str) -> Iterable[Row]:
    for run in group.runs:
        yield from run.rows_of(method)


def _scores(row: Row) -> Iterable[tuple[str, float]]:
    for role in ROLES:
        for measure in names():
            key = f"{role}_{measure}"
            if row.get(key) is not None:
                yield key, row[key]


def _summed_up(by_round: ByRound) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for number, values in sorted(by_round.items()):
        seen = spread(values)
        deviation = seen.std or 0.0
        here = asdict(seen) | {
            "rounds": number + 1,
            "below": seen.mean - deviation,
            "above": seen.mean + deviation,
        }
        for key, value in here.items():
            short = round(value, 4) if isinstance(value, float) else value
            found.setdefault(key, []).append(short)
    if max(found["n"]) == 1:
        return {"rounds": found["rounds"], "mean": found["mean"]}
    return found


def _paid(run: Run, method: str) -> Iterable[tuple[int, dict[int, Any]]]:
    """Per round, what each client that has ever been there has spent."""
    by_round: dict[int, list[Row]] = {}
    for row in run.rows_of(method):
        by_round.setdefault(row["round"], []).append(row)
    spent: dict[int, Any] = {}
    for number, here in sorted(by_round.items()):
        for row in here:
            spent[row["client"]] = rows.epsilon(row)
        yield number, dict(spent)


def _range(
    paid: Mapping[int, Mapping[int, Mapping[str, list[float]]]], accountant: str
) -> dict[str, Any]:
    """The largest and the smallest over clients and runs, and each client's largest."""
    found: dict[str, Any] = {
        "high": [],
        "low": [],
        "clients": {},
    }
    clients = sorted(set().union(*paid.values()))
    for _, here in sorted(paid.items()):
        values = list(
            chain.from_iterable(client[accountant] for client in here.values())
        )
        found["high"].append(upward(max(values)))
        found["low"].append(upward(min(values)))
        for client in clients:
            own = here.get(client, {}).get(accountant)
            shown = None if own is None else upward(max(own))
            found["clients"].setdefault(client, []).append(shown)
    return found
