"""The graph of each round: who sent what to whom, worked out again from the settings and
from who has a line in the records."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from proxyfl._files import Document
from proxyfl.errors import TopologyError
from proxyfl.federation.methods import EXCHANGES, name_of
from proxyfl.gossip import topology
from proxyfl.gossip.routes import by_kind, routes
from proxyfl.gossip.topology import Topology
from proxyfl.records.row import Row
from proxyfl.records.run import Run

Edges = list[tuple[int, int, float]]

OWN_ROWS_ONLY = "A real site has records of its own rounds only; see Peers for the other members."


def graph(run: Run) -> Document:
    """The rounds of a run as pictures of the graph: per method the round numbers and which picture
    each shows. A picture is named by its content, so a schedule that repeats costs nothing."""
    pictures: Document = {}
    methods: dict[str, dict[str, list[Any]]] = {}
    if run.environment.get("simulation") is False:
        return {"methods": methods, "pictures": pictures, "note": OWN_ROWS_ONLY}
    schedule, note = _topology(run.settings)
    kinds = run.settings.get("exchange", {}).get("kinds", ())
    by_round = groupby(run.rows, key=itemgetter("method", "round"))
    for (name, round), here in by_round:
        exchange = run.method(name).exchange
        if exchange == "none":
            continue
        rows = list(here)
        present, leaving = _who(rows)
        picture: Document = {"present": present, "leaving": sorted(leaving), "edges": []}
        try:
            if exchange == "masked":
                for group in by_kind(present, kinds):
                    here_of_kind = [row for row in rows if row["client"] in group]
                    picture["edges"] += _everybody_to_everybody(here_of_kind)
                picture["leaving"] = []  # nobody has a mass to hand over
            elif not isinstance(exchange, str) or exchange not in EXCHANGES:
                note = note or (
                    f"The exchange {name_of(exchange)} is a function of the run's author, whose "
                    "messages a report does not know."
                )
            else:
                for group in by_kind(present, kinds):
                    own = leaving & set(group)
                    picture["edges"] += _edges(exchange, schedule, round, group, own)
        except TopologyError as error:
            note = note or str(error)
        content = json.dumps(picture).encode()
        key = hashlib.blake2b(content, digest_size=6).hexdigest()
        pictures[key] = picture
        shown = methods.setdefault(name, {"rounds": [], "pictures": []})
        shown["rounds"].append(round)
        shown["pictures"].append(key)
    return {"methods": methods, "pictures": pictures, "note": note}


def _who(rows: Sequence[Row]) -> tuple[tuple[int, ...], frozenset[int]]:
    """The clients that were there in a round, and those that hand over in it."""
    present = tuple(sorted(row["client"] for row in rows))
    leaving = frozenset(row["client"] for row in rows if row.get("left"))
    if len(leaving) == len(present):
        # nobody stays to take over: they exchange as usual a last time
        leaving = frozenset()
    return present, leaving


def _topology(settings: Mapping[str, Any]) -> tuple[Topology | None, str | None]:
    """The pushsum methods' topology, or why it cannot be shown."""
    exchange = settings.get("exchange", {})
    name = exchange.get("topology", "exponential")
    if ":" in name:
        # A report may be made of somebody else's folder: what its settings name is not run.
        return (
            None,
            f"The graph of pushsum methods came from the function {name}, which a report does not "
            f"call.",
        )
    try:
        made = topology.make(
            name,
            self_weight=_number(exchange.get("self_weight")),
            degree=_number(exchange.get("degree")),
            seed=settings.get("models", {}).get("proxy_seed", settings.get("seed", 0)),
        )
    except TopologyError as error:
        return None, str(error)
    return made, None


def _edges(
    exchange: str,
    pushsum: Topology | None,
    round: int,
    present: tuple[int, ...],
    leaving: frozenset[int],
) -> Edges:
    if exchange == "mean":
        return _star(present, leaving)
    schedule = topology.cycle() if exchange == "cycle" else pushsum
    if schedule is None:
        return []
    plan = routes(schedule, round, present, leaving=leaving)
    edges = []
    for sender in present:
        for receiver, share in sorted(plan.shares(sender).items()):
            if receiver != sender:
                edges.append((sender, receiver, _short(share)))
    return edges


def _everybody_to_everybody(rows: Sequence[Row]) -> Edges:
    """The messages of a masked sum: each client that took a step sent to all present."""
    edges = []
    for sender in rows:
        for receiver in rows:
            if sender is not receiver and sender["steps"]:
                edges.append((sender["client"], receiver["client"], 1.0))
    return edges


def _star(present: tuple[int, ...], leaving: frozenset[int]) -> Edges:
    """Everyone sends all to the first client that stays, and those who stay get an equal share
    back."""
    staying = [client for client in present if client not in leaving]
    hub = staying[0]
    share = _short(1 / len(staying))
    edges = [(client, hub, 1.0) for client in present if client != hub]
    for client in staying[1:]:
        edges.append((hub, client, share))
    return edges


def _short(share: float) -> float:
    return float(f"{share:.4g}")


def _number(setting: Any) -> Any:
    # A file says "none" where a setting has no value.
    return None if isinstance(setting, str) else setting
