"""``model``: the wire model, fitted to measured points and extended to many clients."""

import argparse
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.checks import whole
from benchmarks.communication import measure, output, wiremodel
from benchmarks.communication.link import Link
from benchmarks.communication.measure import Point
from benchmarks.communication.wiremodel import Processor, Wire

_EPILOG = """\
examples:
  python -m benchmarks.communication model points.json
  python -m benchmarks.communication model points.json --bandwidth 100 --latency 10 --figure model
"""

_CLIENTS = (2, 8, 64, 1000, 10_000)


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    text = "fit the wire model to measured points; extend it to many clients"
    parser = commands.add_parser(
        "model",
        help=text,
        description=f"{text.capitalize()}, each with its own machine and link.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "points", nargs="+", type=Path, metavar="POINTS.json", help="what `measure --out` wrote"
    )
    parser.add_argument(
        "--bandwidth",
        type=float,
        default=100.0,
        metavar="MBIT",
        help="everyone's link (default 100 Mbit/s)",
    )
    parser.add_argument(
        "--latency", type=float, default=10.0, metavar="MS", help="its latency (default 10 ms)"
    )
    parser.add_argument(
        "--hub",
        type=float,
        default=10_000.0,
        metavar="MBIT",
        help="a better hub's link (default 10000 Mbit/s)",
    )
    parser.add_argument(
        "--fit-up-to",
        type=int,
        default=16,
        metavar="N",
        help="fit on at most N clients (default 16), test on the rest",
    )
    parser.add_argument(
        "--limit", type=int, default=10_000, metavar="N", help="extend to N clients (default 10000)"
    )
    parser.add_argument(
        "--cores",
        type=int,
        default=os.cpu_count(),
        metavar="C",
        help="of the machine that measured (default: this one's)",
    )
    output.add_options(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Fit, extend, save, draw and show."""
    points: list[Point] = []
    for path in args.points:
        points += measure.read(path)
    near = [point for point in points if point.clients <= args.fit_up_to]
    wire = wiremodel.fit(near, cores=whole("--cores", args.cores))
    link = Link(args.latency / 1e3, args.bandwidth * output.MEGABIT)
    hub = Link(args.latency / 1e3, args.hub * output.MEGABIT)
    checks = _checks(wire, points, args.fit_up_to)
    rows = _extended(wire, points, link, hub, args.limit)
    document = {
        "wire": asdict(wire),
        "link": asdict(link),
        "hub_link": asdict(hub),
        "checks": checks,
        "rows": rows,
    }
    output.save(args, document, rows)
    if args.figure is not None:
        output.draw(args.figure, lambda plots: plots.extended(wire, points, link, hub, args.limit))
        measured = output.beside(args.figure, "measured")
        output.draw(measured, lambda plots: plots.measured(points, wire))
    if not args.json:
        _show(wire, rows, checks)
    return 0


def _checks(wire: Wire, points: Sequence[Point], near: int) -> list[dict[str, Any]]:
    """The model's median error on the points it was fitted to and on those it has not seen."""
    bare = [point for point in points if point.bandwidth is None]
    groups = {
        f"fitted, up to {near} clients": [point for point in bare if point.clients <= near],
        f"predicted, more than {near} clients": [point for point in bare if point.clients > near],
        "predicted, emulated link": [point for point in points if point.bandwidth is not None],
    }
    checks = []
    for name, group in groups.items():
        if group:
            error = statistics.median(map(abs, wiremodel.errors(wire, group)))
            checks.append({"points": name, "number": len(group), "median_error": error})
    return checks


def _extended(
    wire: Wire, points: Sequence[Point], link: Link, hub: Link, limit: int
) -> list[dict[str, Any]]:
    """What the model says for each model's size and number of clients."""
    wide = replace(wire, cores=None, link=link)
    fast_hub = replace(wide, hub_link=hub)
    sizes = {point.model: wiremodel.size_of(point) for point in points}
    counts = [clients for clients in _CLIENTS if clients < limit] + [limit]
    rows = []
    for model, size in sizes.items():
        for clients in counts:
            rows.append(
                {
                    "model": model,
                    "clients": clients,
                    "bytes": round(size),
                    "gossip_seconds": wiremodel.seconds(wide, "gossip", clients, size),
                    "hub_seconds": wiremodel.seconds(wide, "hub", clients, size),
                    "fast_hub_seconds": wiremodel.seconds(fast_hub, "hub", clients, size),
                    "hub_bytes": wiremodel.bytes_busiest("hub", clients, size),
                }
            )
    return rows


def _show(wire: Wire, rows: Sequence[output.Row], checks: Sequence[output.Row]) -> None:
    seconds = ["gossip_seconds", "hub_seconds", "fast_hub_seconds"]
    output.show(["model", "clients", *seconds, "hub_bytes"], rows)
    print(f"Processor per message: gossip {_cost(wire.gossip)}; hub {_cost(wire.hub)}.")
    print("The model's relative error:")
    output.show(["points", "number", "median_error"], checks)


def _cost(processor: Processor) -> str:
    return f"{1e3 * processor.a:.2g} ms and {1e9 * processor.b:.2g} ns per byte"
