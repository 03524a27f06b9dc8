"""The curves of the page's charts over rounds, for one group of runs: scores, epsilons, costs.

A series is a list with one entry per round that the chart shows; ``below`` and ``above`` are one
standard deviation from the mean. Scores are rounded to 1e-4 and
epsilons up to four digits: all that a chart can show, and a large comparison stays small.
"""

from collections.abc import Iterable, Mapping
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Any

from proxyfl._files import Document
from proxyfl.measures import names
from proxyfl.privacy.guarantee import Epsilon, Kind, upward
from proxyfl.records import row as rows
from proxyfl.records.answers import spread
from proxyfl.records.groups import Group
from proxyfl.records.row import SECONDS, Row
from proxyfl.records.run import Run
from proxyfl.settings import ACCOUNTANTS

SUMS = (*(f"seconds_{part}" for part in SECONDS), "bytes_sent", "bytes_received")

ByRound = dict[int, list[float]]


def curves(group: Group, method: str) -> Document:
    """ROLE_MEASURE -> the score over rounds of all clients together, and of each."""
    everyone: dict[str, ByRound] = {}
    by_client: dict[str, dict[int, ByRound]] = {}
    for row in _rows(group, method):
        for key, value in _scores(row):
            together = everyone.setdefault(key, {})
            own = by_client.setdefault(key, {}).setdefault(row["client"], {})
            together.setdefault(row["round"], []).append(value)
            own.setdefault(row["round"], []).append(value)
    by_key = {}
    for key, together in everyone.items():
        clients = {}
        for client, own in by_client[key].items():
            clients[client] = _summarise(own)
        by_key[key] = {"all": _summarise(together), "clients": clients}
    return by_key


def epsilons(group: Group, method: str) -> Document:
    """The epsilon of the clients' data by each round. What was spent stays spent while a client is
    away, and after it has left."""
    paid: dict[int, dict[int, list[Epsilon]]] = {}
    kinds = set()
    units = set()
    for run in group.runs:
        for number, spent in _paid(run, method):
            here = paid.setdefault(number, {})
            for client, epsilon in spent.items():
                kinds.add(epsilon.kind)
                units.add(epsilon.unit)
                here.setdefault(client, []).append(epsilon)
    named = sorted(kinds - {Kind.NONE})
    series: Document = {"kind": " or ".join(named) or "none", "rounds": []}
    if not named:
        return series
    series["unit"] = " or ".join(sorted(units))
    series["rounds"] = [number + 1 for number in sorted(paid)]
    for accountant in ("best", *ACCOUNTANTS):
        series[accountant] = _range(paid, accountant)
    return series


def costs(group: Group, method: str) -> Document | None:
    """Seconds and bytes, per client and round and in all; None for a method without records."""
    recorded = list(_rows(group, method))
    if not recorded:
        return None
    by_sum = {}
    for key in SUMS:
        total = sum(row.get(key) or 0.0 for row in recorded)
        by_sum[key] = {"each": total / len(recorded), "in_all": total}
    parts = {(row["client"], number) for number, row in _number_rounds(group, method)}
    sent = by_sum["bytes_sent"]["in_all"] / len(parts)
    return {**by_sum, "sent_words": byte_words(sent) if sent else None}


def byte_words(number: float) -> str:
    """Bytes as people say them: 384 B, 16.5 kB, 239 MB."""
    units = ["B", "kB", "MB", "GB"]
    while number >= 999.5 and len(units) > 1:
        number /= 1000
        del units[0]
    return f"{number:.3g} {units[0]}"


def _number_rounds(group: Group, method: str) -> Iterable[tuple[int, Row]]:
    for number, run in enumerate(group.runs):
        for row in run.rows_of(method):
            yield number, row


def _rows(group: Group, method: str) -> Iterable[Row]:
    for run in group.runs:
        yield from run.rows_of(method)


def _scores(row: Row) -> Iterable[tuple[str, float]]:
    for role in rows.roles(row):
        for measure in names():
            key = f"{role}_{measure}"
            if row.get(key) is not None:
                yield key, row[key]


def _summarise(by_round: ByRound) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for number, values in sorted(by_round.items()):
        seen = spread(values)
        deviation = seen.std or 0.0
        here = vars(seen) | {
            "rounds": number + 1,
            "below": seen.mean - deviation,
            "above": seen.mean + deviation,
        }
        for key, value in here.items():
            short = round(value, 4) if isinstance(value, float) else value
            columns.setdefault(key, []).append(short)
    if max(columns["n"]) == 1:
        return {"rounds": columns["rounds"], "mean": columns["mean"]}
    return columns


def _paid(run: Run, method: str) -> Iterable[tuple[int, dict[int, Epsilon]]]:
    """Per round, what each client that has ever been there has spent."""
    in_order = sorted(run.rows_of(method), key=itemgetter("round"))
    spent: dict[int, Epsilon] = {}
    for number, here in groupby(in_order, key=itemgetter("round")):
        for row in here:
            spent[row["client"]] = rows.epsilon(row)
        yield number, dict(spent)


def _range(paid: Mapping[int, Mapping[int, list[Epsilon]]], accountant: str) -> Document:
    """The largest and the smallest over clients and runs, and each client's largest."""
    bound = attrgetter(accountant)
    clients: dict[int, list[float | None]] = {}
    for client in sorted(set().union(*paid.values())):
        clients[client] = []
    extremes: Document = {"high": [], "low": [], "clients": clients}
    for _, here in sorted(paid.items()):
        every = list(map(bound, chain.from_iterable(here.values())))
        extremes["high"].append(upward(max(every)))
        extremes["low"].append(upward(min(every)))
        for client, curve in clients.items():
            own = map(bound, here.get(client, ()))
            largest = max(own, default=None)
            curve.append(None if largest is None else upward(largest))
    return extremes
