"""``proxyfl topology``: who sends to whom, and how soon everyone has heard from everyone."""

import argparse
import inspect
import json
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proxyfl import _validate
from proxyfl.errors import TopologyError
from proxyfl.gossip import reach as spreading
from proxyfl.gossip import routes as routing
from proxyfl.gossip import topology as gossip

_SHOWN = 8
_DENSE_LIMIT = 512

_LEGEND = (
    "heard by: clients that hold some of one client's starting mass; been with: clients that "
    "trained the proxy that "
    "one client holds (both: the fewest). to mean: distance of the de-biased proxies from their "
    "mean, 1 at the start. "
    "sent/got: messages of one client (the most)."
)

_EPILOG = """\
examples:
  proxyfl topology exponential --clients 8 --rounds 6                   the paper's graph: proxies are passed on whole
  proxyfl topology exponential --clients 8 --rounds 6 --self-weight 0.5     keep half, send half: proxies are averaged
  proxyfl topology random --clients 100 --rounds 10 --degree 2 --seed 7 --json
  proxyfl topology my_matrices.npy --clients 5 --rounds 4          your own K x K matrices: rows receive, columns send
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "topology",
        help="who sends to whom in each round, and how fast news spreads",
        description="Print who sends which share of its proxy to whom, after how many rounds "
        "everyone has heard from\n"
        "everyone, and what that costs each client. Nothing is trained and nothing is sent.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "name",
        metavar="NAME",
        help=f"{', '.join(gossip.TOPOLOGIES)}; a .json or .npy file with matrices; or "
        f"package.module:function",
    )
    parser.add_argument(
        "--clients", type=int, default=8, metavar="K", help="number of clients (default 8)"
    )
    parser.add_argument(
        "--rounds", type=int, metavar="T", help="rounds to show (default ceil(log2 K), at least 1)"
    )
    parser.add_argument(
        "--self-weight", type=float, metavar="W", help="share a client keeps, 0 <= W < 1"
    )
    parser.add_argument(
        "--degree", type=int, metavar="D", help="receivers per client and round (random)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the random topology (default 0)"
    )
    parser.add_argument(
        "--parameters",
        type=int,
        metavar="N",
        help="parameters of the proxy, to print bytes as well",
    )
    parser.add_argument(
        "--limit", type=int, metavar="T", help="give up on 'everyone has heard' after T rounds"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document and nothing else"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the analysis; 0 unless the topology is refused."""
    found = analyse(arguments)
    if arguments.json:
        print(json.dumps(found))
    else:
        _show(found, Console())
    return 0


def analyse(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything the command knows, as the JSON document it prints."""
    clients = _validate.whole("--clients", arguments.clients, error=TopologyError)
    rounds = max((clients - 1).bit_length(), 1) if arguments.rounds is None else arguments.rounds
    _validate.whole("--rounds", rounds, error=TopologyError)
    # A ring of K needs K - 1 rounds, a passed-on proxy more; with thousands of clients the search
    # would take minutes.
    limit = (
        max(rounds, min(4 * clients, 250_000 // clients))
        if arguments.limit is None
        else arguments.limit
    )
    _validate.whole("--limit", limit, error=TopologyError)
    if arguments.parameters is not None:
        _validate.whole("--parameters", arguments.parameters, error=TopologyError)
    topology = gossip.make(
        arguments.name,
        self_weight=arguments.self_weight,
        degree=arguments.degree,
        seed=arguments.seed,
    )
    heard_after = spreading.rounds_to_all_heard(topology, clients, limit)
    been_with = spreading.visits(topology, clients, rounds if heard_after is not None else limit)
    return {
        "topology": arguments.name,
        "rule": _rule(arguments.name),
        "clients": clients,
        "self_weight": arguments.self_weight,
        "degree": arguments.degree,
        "seed": arguments.seed,
        "rounds": [
            _round(topology, round, clients, arguments.parameters) for round in range(rounds)
        ],
        "column_sums_ok": True,  # ``routes`` refuses every other matrix
        "limit": limit,
        "all_heard_after": heard_after,
        "heard_by": spreading.reach(topology, clients, rounds).min(axis=1).tolist(),
        "been_with": been_with[:rounds],
        "been_with_all_after": next(
            (t for t, count in enumerate(been_with, 1) if count == clients), None
        ),
        "consensus_error": spreading.consensus_error(topology, clients, rounds)
        if clients <= _DENSE_LIMIT
        else None,
    }


def _round(
    topology: gossip.Topology, round: int, clients: int, parameters: int | None
) -> dict[str, Any]:
    plan = routing.routes(topology, round, range(clients))
    sent = [len(plan.receivers(client)) for client in range(clients)]
    received = [len(plan.senders(client)) for client in range(clients)]
    most = {"messages_sent": max(sent), "messages_received": max(received)}
    if parameters is not None:
        most |= {
            "bytes_sent": 4 * parameters * max(sent),
            "bytes_received": 4 * parameters * max(received),
        }
    return {
        "round": round,
        "shares": [plan.shares(client) for client in range(clients)],
        "most_per_client": most,
    }


def _rule(name: str) -> str:
    factory = gossip.TOPOLOGIES.get(name)
    return (inspect.getdoc(factory) or name).splitlines()[0] if factory else f"As given by {name}."


def _show(found: dict[str, Any], console: Console) -> None:
    clients, shown = found["clients"], min(found["clients"], _SHOWN)
    console.print(
        f"[bold]{escape(found['topology'])}[/bold], {_count(clients, 'client')}. "
        f"{escape(found['rule'])}"
    )
    if clients > shown:
        console.print(f"Shown: the first {shown} of {clients} clients; --json lists all.")
    table = Table(
        "round", "sender → receivers", "shares", "heard by", "been with", "to mean", "sent/got"
    )
    errors = found["consensus_error"] or [None] * len(found["rounds"])
    for row, heard_by, been_with, error in zip(
        found["rounds"], found["heard_by"], found["been_with"], errors, strict=True
    ):
        table.add_row(
            str(row["round"]),
            "  ".join(_sends(client, row["shares"][client]) for client in range(shown)),
            _shares(row["shares"]),
            str(heard_by),
            str(been_with),
            "-" if error is None else f"{error:.3g}",
            _cost(row["most_per_client"]),
        )
    console.print(table)
    console.print(_LEGEND)
    console.print(_verdict(found))


def _sends(client: int, shares: dict[int, float]) -> str:
    others = sorted(receiver for receiver in shares if receiver != client)
    more = f"+{len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
    return f"{client}→{','.join(map(str, others[:_SHOWN])) or 'nobody'}{more}"


def _shares(columns: list[dict[int, float]]) -> str:
    sent = [share for j, column in enumerate(columns) for k, share in column.items() if k != j]
    kept = [column.get(j, 0.0) for j, column in enumerate(columns)]
    return f"send {_span(sent)}\nkeep {_span(kept)}" if sent else f"keep {_span(kept)}"


def _span(values: list[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def _cost(most: dict[str, int]) -> str:
    text = f"{most['messages_sent']} / {most['messages_received']}"
    return (
        f"{text}\n{most['bytes_sent']:,} B /\n{most['bytes_received']:,} B"
        if "bytes_sent" in most
        else text
    )


def _verdict(found: dict[str, Any]) -> str:
    clients, limit, shown = found["clients"], found["limit"], found["been_with"]
    sums = "Every column sums to 1: no mass is lost or made."
    if found["all_heard_after"] is not None:
        return f"{sums}\nEveryone has heard from everyone after {_count(found['all_heard_after'], 'round')}."
    lines = [sums, f"Not everyone has heard from everyone within {_count(limit, 'round')}."]
    if all(len(shares) == 1 for row in found["rounds"] for shares in row["shares"]):
        lines[-1] += (
            " Proxies are passed on whole: each client holds one client's mass, nothing is "
            "averaged."
        )
    after = found["been_with_all_after"]
    lines.append(
        f"After {_count(len(shown), 'round')} each proxy has been with {shown[-1]} of "
        f"{_count(clients, 'client')} or "
        "more, who trained it in turn; "
        + (
            f"with all {clients} after {_count(after, 'round')}."
            if after
            else f"not with all within {limit}."
        )
    )
    if found["topology"] in ("exponential", "ring") and not found["self_weight"]:
        lines.append(
            "A self weight above 0 (such as --self-weight 0.5) mixes what a client holds with "
            "what arrives."
        )
    return "\n".join(lines)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
