"""``measure``: time and bytes per client and round, one MPI rank per client."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.communication import output
from benchmarks.communication.link import Link
from benchmarks.communication.measure import (
    SHAPES,
    SHARING,
    Case,
    Point,
    cases,
    measure,
    measure_here,
)
from proxyfl.transport.mpi import MpiEndpoint, rank_count

_EPILOG = """\
examples:
  python -m benchmarks.communication measure --clients 2,4,8,16 --out points.json --figure measured
  python -m benchmarks.communication measure --clients 2,8 --models mlp --bandwidth 100 --latency 10
                              with an emulated network card for each client
  mpiexec -n 64 python -m benchmarks.communication measure --clients 2,8,64 --models mlp
                              on a cluster: on the ranks of this job
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    text = "time and bytes per client and round, one MPI rank per client"
    parser = commands.add_parser(
        "measure",
        help=text,
        description=f"Measure {text}.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--clients", default="2,4,8", metavar="N,N", help="numbers of clients (default 2,4,8)"
    )
    parser.add_argument(
        "--models", default="mlp,cnn1", metavar="M,M", help=f"of {', '.join(SHAPES)}"
    )
    parser.add_argument(
        "--methods", default=",".join(SHARING), metavar="M,M", help="default: all that share"
    )
    parser.add_argument(
        "--rounds", type=int, default=15, metavar="T", help="rounds per point (default 15)"
    )
    parser.add_argument(
        "--bandwidth", type=float, metavar="MBIT", help="emulate a link of MBIT/s for every client"
    )
    parser.add_argument(
        "--latency", type=float, default=0.0, metavar="MS", help="and its latency (default 0 ms)"
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=900.0,
        metavar="S",
        help="give up after S seconds (default 900; not under mpiexec)",
    )
    output.add_options(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Measure, save, draw and show the points."""
    points = _measured(_cases(args), args.time_limit)
    if points is None:
        return 0  # rank 0 has them
    rows = [asdict(point) for point in points]
    output.save(args, {"points": rows}, rows)
    if args.figure is not None:
        output.draw(args.figure, lambda plots: plots.measured(points, None))
    if not args.json:
        _show(points)
    return 0


def _cases(args: argparse.Namespace) -> list[Case]:
    link = None
    if args.bandwidth is not None:
        link = Link(args.latency / 1e3, args.bandwidth * output.MEGABIT)
    methods = output.words(args.methods)
    models = output.words(args.models)
    clients = output.numbers("--clients", args.clients)
    return cases(methods, models, clients, args.rounds, link)


def _measured(todo: Sequence[Case], time_limit: float) -> list[Point] | None:
    """The points; under mpiexec on rank 0 alone."""
    if rank_count() == 1:
        return measure(todo, timeout=time_limit)
    endpoint = MpiEndpoint()
    points = measure_here(endpoint, todo)
    return points if endpoint.rank == 0 else None


def _show(points: Sequence[Point]) -> None:
    rows = []
    for point in points:
        rows.append(
            {
                "method": point.method,
                "model": point.model,
                "clients": point.clients,
                "ms": 1e3 * point.seconds,
                "quartiles": f"{1e3 * point.low:.3g} to {1e3 * point.high:.3g}",
                "slowest_client": 1e3 * point.slowest,
                "MB_sent": point.bytes_sent / 1e6,
                "busiest_link,_MB": point.bytes_busiest / 1e6,
            }
        )
    output.show(list(rows[0]), rows)
    print("Per client and round; ms: median over rounds of the mean over clients.")
    print("Ranks on one machine share its cores.")
