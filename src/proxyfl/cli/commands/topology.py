"""``proxyfl topology``: who sends to whom, and how soon everyone has heard from everyone."""

import inspect
from argparse import Namespace

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proxyfl._validate import whole
from proxyfl.cli.options import JSON, Document, option, print_json
from proxyfl.errors import TopologyError
from proxyfl.gossip import reach as spreading
from proxyfl.gossip import topology as gossip
from proxyfl.gossip.routes import routes

DESCRIPTION = """\
Print who sends which share of its proxy to whom, after how many rounds everyone has heard from
everyone, and what that costs each client. Nothing is trained and nothing is sent.
"""

EPILOG = """\
examples:
  proxyfl topology exponential --clients 8 --rounds 6       the paper's: proxies passed on whole
  proxyfl topology exponential --clients 8 --self-weight 0.5    keep half: proxies are averaged
  proxyfl topology random --clients 100 --rounds 10 --degree 2 --seed 7 --json
  proxyfl topology my_matrices.npy --clients 5 --rounds 4   your own: rows receive, columns send
"""

_LEGEND = (
    "heard by: clients that hold some of one client's starting mass; been with: clients that "
    "trained the proxy that one client holds (both: the fewest). to mean: distance of the "
    "de-biased proxies from their mean, 1 at the start. sent/got: messages of one client (the "
    "most)."
)

_SHOWN = 8
_MOST_FOR_ERROR = 512
_MOST_FOR_SPREAD = 5_000
"""The table of who has heard from whom takes n * n bits; the distance to the mean takes n * n
numbers."""
_MOST_SHARES = 1_000_000
"""Shares of all rounds that are worked out: some seconds."""


OPTIONS = (
    option(
        "name NAME",
        f"{', '.join(gossip.TOPOLOGIES)}; a .json or .npy file with matrices; or "
        "package.module:function",
    ),
    option("--clients K", "number of clients", int, 8),
    option("--rounds T", "rounds to show (default ceil(log2 K), at least 1)", int),
    option("--self-weight W", "share a client keeps, 0 <= W < 1", float),
    option("--degree D", "receivers per client and round (random)", int),
    option("--seed", "seed of the random topology", int, 0),
    option("--parameters N", "parameters of the proxy, to print bytes as well", int),
    option("--limit T", "give up on 'everyone has heard' after T rounds", int),
    JSON,
)


def execute(args: Namespace) -> int:
    """Print the analysis; 0 unless the topology is refused."""
    document = analyse(args)
    if args.json:
        print_json(document, indent=None)
    else:
        _show(document, Console())
    return 0


def analyse(args: Namespace) -> Document:
    """Returns everything the command knows, as the JSON document it prints."""
    clients = whole("--clients", args.clients, error=TopologyError)
    rounds = args.rounds
    if rounds is None:
        rounds = max((clients - 1).bit_length(), 1)
    whole("--rounds", rounds, error=TopologyError)
    if args.parameters is not None:
        whole("--parameters", args.parameters, error=TopologyError)
    topology = gossip.make(
        args.name, self_weight=args.self_weight, degree=args.degree, seed=args.seed
    )
    _check_size(topology, clients, rounds)
    document = {
        "topology": args.name,
        "rule": _rule(args.name),
        "clients": clients,
        "self_weight": args.self_weight,
        "degree": args.degree,
        "seed": args.seed,
        "rounds": [_round(topology, t, clients, args.parameters) for t in range(rounds)],
        "column_sums_ok": True,  # ``routes`` refuses every other matrix
        "consensus_error": None,
    }
    if clients <= _MOST_FOR_ERROR:
        document["consensus_error"] = spreading.consensus_error(topology, clients, rounds)
    return document | _spread(topology, clients, rounds, _limit(args.limit, clients, rounds))


def _check_size(topology: gossip.Topology, clients: int, rounds: int) -> None:
    """Refuse what would take minutes and gigabytes."""
    if clients * rounds > _MOST_SHARES:
        # at the least; the columns themselves would take long
        count = clients * rounds
    else:
        count = rounds * sum(map(len, topology(0, clients)))
    if count > _MOST_SHARES:
        raise TopologyError(
            f"Expected at most {_MOST_SHARES:,} shares in all rounds (clients x receivers x "
            f"rounds), got {count:,}. Ask for fewer --clients or --rounds."
        )


def _limit(given: int | None, clients: int, rounds: int) -> int:
    if given is not None:
        return whole("--limit", given, error=TopologyError)
    # A ring of K needs K - 1 rounds, a passed-on proxy more; with thousands of clients the search
    # would take minutes.
    return max(rounds, min(4 * clients, 250_000 // clients))


def _spread(topology: gossip.Topology, clients: int, rounds: int, limit: int) -> Document:
    """The spread of news; None for each answer where there are too many clients to say."""
    document: Document = {"limit": limit, "all_heard_after": None, "been_with_all_after": None}
    if clients > _MOST_FOR_SPREAD:
        return document | {"limit": None, "heard_by": None, "been_with": None}
    heard_after = spreading.rounds_to_all_heard(topology, clients, limit)
    looked_at = limit if heard_after is None else rounds
    been_with = spreading.visits(topology, clients, looked_at)
    if clients in been_with:
        document["been_with_all_after"] = been_with.index(clients) + 1
    heard_by = spreading.reach(topology, clients, rounds).min(axis=1).tolist()
    document |= {"all_heard_after": heard_after, "heard_by": heard_by}
    return document | {"been_with": been_with[:rounds]}


def _round(topology: gossip.Topology, round: int, clients: int, parameters: int | None) -> Document:
    plan = routes(topology, round, range(clients))
    shares = [plan.shares(client) for client in range(clients)]
    sent = max(len(column) - (client in column) for client, column in enumerate(shares))
    received = max(len(senders) for senders in plan.incoming.values())
    most = {"messages_sent": sent, "messages_received": received}
    if parameters is not None:
        most |= {"bytes_sent": 4 * parameters * sent, "bytes_received": 4 * parameters * received}
    return {"round": round, "shares": shares, "most_per_client": most}


def _rule(name: str) -> str:
    factory = gossip.TOPOLOGIES.get(name)
    if factory is None:
        return f"As given by {name}."
    return (inspect.getdoc(factory) or name).splitlines()[0]


def _show(document: Document, console: Console) -> None:
    clients = document["clients"]
    name = escape(document["topology"])
    console.print(f"[bold]{name}[/bold], {_count(clients, 'client')}. {escape(document['rule'])}")
    if clients > _SHOWN:
        console.print(f"Shown: the first {_SHOWN} of {clients} clients; --json lists all.")
    console.print(_table(document))
    console.print(_LEGEND)
    for line in _verdict(document):
        console.print(line)


def _table(document: Document) -> Table:
    table = Table(
        "round", "sender → receivers", "shares", "heard by", "been with", "to mean", "sent/got"
    )
    for row in document["rounds"]:
        first = row["shares"][:_SHOWN]
        table.add_row(
            str(row["round"]),
            "  ".join(_sends(client, shares) for client, shares in enumerate(first)),
            _shares(row["shares"]),
            _entry(document["heard_by"], row["round"]),
            _entry(document["been_with"], row["round"]),
            _entry(document["consensus_error"], row["round"]),
            _cost(row["most_per_client"]),
        )
    return table


def _entry(values: list[float] | None, round: int) -> str:
    return "-" if values is None else f"{values[round]:.3g}"


def _sends(client: int, shares: dict[int, float]) -> str:
    others = sorted(receiver for receiver in shares if receiver != client)
    named = ",".join(map(str, others[:_SHOWN])) or "nobody"
    more = f"+{len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
    return f"{client}→{named}{more}"


def _shares(columns: list[dict[int, float]]) -> str:
    sent: list[float] = []
    kept = []
    for client, shares in enumerate(columns):
        kept.append(shares.get(client, 0.0))
        sent += [share for receiver, share in shares.items() if receiver != client]
    text = f"keep {_span(kept)}"
    return f"send {_span(sent)}\n{text}" if sent else text


def _span(values: list[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def _cost(most: dict[str, int]) -> str:
    text = f"{most['messages_sent']} / {most['messages_received']}"
    if "bytes_sent" in most:
        text += f"\n{most['bytes_sent']:,} B /\n{most['bytes_received']:,} B"
    return text


def _verdict(document: Document) -> list[str]:
    lines = ["Every column sums to 1: no mass is lost or made."]
    if document["limit"] is None:
        lines.append(
            f"Who has heard from whom is worked out for at most {_MOST_FOR_SPREAD:,} clients: it "
            "takes the square of their number in bits."
        )
    elif document["all_heard_after"] is not None:
        rounds = _count(document["all_heard_after"], "round")
        lines.append(f"Everyone has heard from everyone after {rounds}.")
    else:
        lines += _not_all_heard(document)
    return lines


def _not_all_heard(document: Document) -> list[str]:
    limit = _count(document["limit"], "round")
    lines = [f"Not everyone has heard from everyone within {limit}."]
    most = 0
    for row in document["rounds"]:
        most = max(most, *map(len, row["shares"]))
    if most == 1:
        lines[0] += (
            " Proxies are passed on whole: each client holds one client's mass, nothing is "
            "averaged."
        )
    clients, been_with = document["clients"], document["been_with"]
    after = document["been_with_all_after"]
    ending = f"with all {clients} after {_count(after, 'round')}"
    if after is None:
        ending = f"not with all within {document['limit']}"
    lines.append(
        f"After {_count(len(been_with), 'round')} each proxy has been with {been_with[-1]} of "
        f"{_count(clients, 'client')} or more, who trained it in turn; {ending}."
    )
    if document["topology"] in ("exponential", "ring") and not document["self_weight"]:
        lines.append(
            "A self weight above 0 (such as --self-weight 0.5) mixes what a client holds with "
            "what arrives."
        )
    return lines


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
