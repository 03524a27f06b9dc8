"""What communication costs: the command of ``python -m benchmarks.communication``."""

import argparse
import csv
import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.communication import measure, mixing, wiremodel
from benchmarks.communication.measure import Link, Point
from proxyfl import _validate
from proxyfl.errors import ConfigError, InputError, ProxyFLError, RunError
from proxyfl.transport.mpi import Mail, launched

_EPILOG = """\
examples:
  COMM="python -m benchmarks.communication"
  $COMM measure --clients 2,4,8,16 --models mlp,cnn1 --out points.json --figure measured
  mpiexec -n 64 $COMM measure --clients 2,8,64 --models mlp      on a cluster: this job's ranks
  $COMM measure --clients 2,8 --models mlp --bandwidth 100 --latency 10    a network card per rank
  $COMM model points.json --bandwidth 100 --latency 10 --figure model      up to 10,000 clients
  $COMM mix --clients 10,100,1000,10000 --figure mixing                    rounds to consensus
"""

_MEGABIT = 1e6 / 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and do what it asks; returns the exit code."""
    args = parser().parse_args(arguments)
    try:
        code: int = args.run(args)
    except ProxyFLError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    return code


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.communication",
        description="Measure the exchange of each method over MPI, extend what was measured to "
        "thousands of clients\nby a model of the wire, and simulate how fast the graphs average. "
        "Nothing is trained.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_subparsers(title="what", metavar="WHAT", required=True)
    one = _sub(
        what, "measure", "time and bytes per client and round, one MPI rank per client", _measure
    )
    one.add_argument(
        "--clients", default="2,4,8", metavar="N,N", help="numbers of clients (default 2,4,8)"
    )
    one.add_argument(
        "--models", default="mlp,cnn1", metavar="M,M", help=f"of {', '.join(measure.SHAPES)}"
    )
    one.add_argument(
        "--methods",
        default=",".join(measure.SHARING),
        metavar="M,M",
        help="default: all that share",
    )
    one.add_argument(
        "--rounds", type=int, default=15, metavar="T", help="rounds per point (default 15)"
    )
    one.add_argument(
        "--bandwidth", type=float, metavar="MBIT", help="emulate a link of MBIT/s for every client"
    )
    one.add_argument(
        "--latency", type=float, default=0.0, metavar="MS", help="and its latency (default 0 ms)"
    )
    one.add_argument(
        "--time-limit", type=float, default=900.0, metavar="S", help="give up after S seconds (900)"
    )
    two = _sub(
        what, "model", "fit the wire model to measured points; extend it to many clients", _model
    )
    two.add_argument(
        "points",
        nargs="+",
        type=Path,
        metavar="POINTS.json",
        help="what `measure --out` wrote",
    )
    two.add_argument(
        "--bandwidth",
        type=float,
        default=100.0,
        metavar="MBIT",
        help="everyone's link (default 100)",
    )
    two.add_argument(
        "--latency", type=float, default=10.0, metavar="MS", help="its latency (default 10 ms)"
    )
    two.add_argument(
        "--hub",
        type=float,
        default=10_000.0,
        metavar="MBIT",
        help="a better hub's link (default 10000)",
    )
    two.add_argument(
        "--fit-up-to",
        type=int,
        default=16,
        metavar="N",
        help="fit on at most N clients, test on the rest",
    )
    two.add_argument(
        "--limit", type=int, default=10_000, metavar="N", help="extend to N clients (default 10000)"
    )
    two.add_argument(
        "--cores",
        type=int,
        default=os.cpu_count(),
        metavar="C",
        help="of the machine that measured",
    )
    three = _sub(
        what, "mix", "rounds and bytes to consensus, with lost messages and absent clients", _mix
    )
    three.add_argument(
        "--clients", default="10,100,1000,10000", metavar="N,N", help="numbers of clients"
    )
    three.add_argument(
        "--target",
        type=float,
        default=1e-3,
        metavar="E",
        help="distance from the mean (default 0.001)",
    )
    three.add_argument(
        "--model", default="mlp", metavar="M", help="whose size gives the bytes (default mlp)"
    )
    three.add_argument(
        "--failures",
        type=int,
        default=1000,
        metavar="N",
        help="clients in the tables with failures",
    )
    three.add_argument(
        "--rounds",
        type=int,
        default=100,
        metavar="T",
        help="rounds of the table with lost messages",
    )
    three.add_argument("--seed", type=int, default=0, help="of the simulations (default 0)")
    return parser


def _sub(
    what: Any, name: str, text: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = what.add_parser(
        name,
        help=text,
        description=text,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the result as JSON, and CSV beside it"
    )
    parser.add_argument(
        "--figure",
        type=Path,
        metavar="NAME",
        help="draw it, as NAME.png and NAME.pdf (some draw a second, NAME-...)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document and nothing else"
    )
    parser.set_defaults(run=run)
    return parser


def _measure(args: argparse.Namespace) -> int:
    link = None if args.bandwidth is None else Link(args.latency / 1e3, args.bandwidth * _MEGABIT)
    todo = measure.cases(
        _words(args.methods), _words(args.models), _numbers(args.clients), args.rounds, link
    )
    if launched() > 1:
        mail = Mail()
        points = measure.measure_here(mail, todo if mail.rank == 0 else None)
        mail.close()
        if mail.rank > 0:
            return 0
    else:
        points = measure.measure(todo, timeout=args.time_limit)
    rows = [asdict(point) for point in points]
    _finish(args, {"points": rows}, rows)
    if args.figure is not None:
        _draw(args.figure, lambda plots: plots.measured(points, None))
    if not args.json:
        table = Table(
            "method",
            "model",
            "clients",
            "ms",
            "quartiles",
            "slowest client",
            "MB sent",
            "busiest link, MB",
        )
        for p in points:
            table.add_row(
                p.method,
                p.model,
                str(p.clients),
                _ms(p.seconds),
                f"{_ms(p.low)} to {_ms(p.high)}",
                _ms(p.slowest),
                f"{p.bytes_sent / 1e6:.2f}",
                f"{p.bytes_busiest / 1e6:.2f}",
            )
        Console().print(table)
        print(
            "Per client and round; ms: median over rounds of the mean over clients. Ranks share "
            "this machine's cores."
        )
    return 0


def _model(args: argparse.Namespace) -> int:
    points = [point for path in args.points for point in measure.read(path)]
    near = [point for point in points if point.clients <= args.fit_up_to]
    wire = wiremodel.fit(near, cores=_validate.whole("--cores", args.cores))
    link, hub = (Link(args.latency / 1e3, rate * _MEGABIT) for rate in (args.bandwidth, args.hub))
    sizes = {p.model: wiremodel.size_of(p) for p in points}
    checks = [
        {
            "points": name,
            "number": len(some),
            "median_error": statistics.median(map(abs, wiremodel.errors(wire, some))),
        }
        for name, some in _groups(points, args.fit_up_to).items()
        if some
    ]
    counts = [n for n in (2, 8, 64, 1000, 10_000) if n < args.limit] + [args.limit]
    wide = replace(wire, cores=None, link=link)
    rows = [
        {
            "model": model,
            "clients": n,
            "bytes": round(size),
            "gossip_seconds": wiremodel.seconds(wide, "gossip", n, size),
            "hub_seconds": wiremodel.seconds(wide, "hub", n, size),
            "fast_hub_seconds": wiremodel.seconds(replace(wide, hub_link=hub), "hub", n, size),
            "hub_bytes": wiremodel.bytes_busiest("hub", n, size),
        }
        for model, size in sizes.items()
        for n in counts
    ]
    _finish(
        args,
        {
            "wire": asdict(wire),
            "link": asdict(link),
            "hub_link": asdict(hub),
            "checks": checks,
            "rows": rows,
        },
        rows,
    )
    if args.figure is not None:
        _draw(args.figure, lambda plots: plots.extended(wire, points, link, hub, args.limit))
        _draw(_beside(args.figure, "measured"), lambda plots: plots.measured(points, wire))
    if not args.json:
        _table("model clients gossip_seconds hub_seconds fast_hub_seconds hub_bytes", rows)
        print(
            f"Processor per message: gossip {_cost(wire.gossip)}; hub {_cost(wire.hub)}. The "
            f"model's relative error:"
        )
        _table("points number median_error", checks)
    return 0


def _groups(points: Sequence[Point], near: int) -> dict[str, list[Point]]:
    bare = [point for point in points if point.bandwidth is None]
    return {
        f"fitted, up to {near} clients": [point for point in bare if point.clients <= near],
        f"predicted, more than {near} clients": [point for point in bare if point.clients > near],
        "predicted, emulated link": [point for point in points if point.bandwidth is not None],
    }


def _mix(args: argparse.Namespace) -> int:
    size = 4 * measure.parameters(args.model)
    _validate.number("--target", args.target, above=0, below=1)
    rows = mixing.consensus_table(_numbers(args.clients), args.target, size, seed=args.seed)
    losses = mixing.loss_table(
        args.failures, (0.0, 0.01, 0.05, 0.2), args.target, args.rounds, seed=args.seed
    )
    absences = mixing.absence_table(
        args.failures, (0.0, 0.1, 0.3, 0.5), args.target, seed=args.seed
    )
    _finish(
        args, {"target": args.target, "consensus": rows, "lost": losses, "absent": absences}, rows
    )
    if args.figure is not None:
        _draw(
            args.figure,
            lambda plots: plots.mixing([r for r in rows if r["self_weight"] != 0], args.target),
        )
        curves = _curves(args.failures, args.seed)
        _draw(
            _beside(args.figure, "failures"),
            lambda plots: plots.failures(curves, absences, args.failures),
        )
    if not args.json:
        _table("graph self_weight clients rounds messages megabytes", rows)
        print(
            f"Lost messages, exponential graph, {args.failures} clients, after {args.rounds} "
            f"rounds:"
        )
        _table(
            "loss self_weight kept_by_sender rounds_to_agreement rounds_to_mean error weight bare",
            losses,
        )
        print(f"Absent clients, {args.failures} in all:")
        _table("graph absence rounds", absences)
    return 0


def _curves(clients: int, seed: int) -> dict[str, list[float]]:
    settings = {"nothing lost": mixing.Setting("exponential", clients)}
    for loss in (0.01, 0.2):
        settings[f"{loss:.0%} lost"] = mixing.Setting("exponential", clients, loss=loss)
        settings[f"{loss:.0%}, kept by the sender"] = mixing.Setting(
            "exponential", clients, loss=loss, keep=True
        )
    return {name: mixing.error_curve(setting, 60, seed=seed) for name, setting in settings.items()}


def _finish(
    args: argparse.Namespace, document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> None:
    if args.out is not None:
        try:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            with args.out.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
        except OSError as error:
            raise RunError(f"Cannot write {args.out}: {error.strerror or error}.") from error
    if args.json:
        json.dump(document, sys.stdout)
        print()


def _draw(path: Path, figure: Callable[[Any], Any]) -> None:
    try:
        from benchmarks.communication import plots as commplots
    except ImportError as error:
        raise ConfigError(
            f"Figures need matplotlib: {error}. Install it with `pip install 'proxyfl[mpi]'`."
        ) from error
    commplots.save(figure(commplots), path)


def _beside(path: Path, more: str) -> Path:
    return path.with_name(f"{path.name}-{more}")


def _table(columns: str, rows: Sequence[Mapping[str, Any]]) -> None:
    names = columns.split()
    table = Table(*(name.replace("_", " ") for name in names))
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in names))
    Console().print(table)


def _cell(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "never", True: "yes", False: "no"}[value]
    return (
        f"{value:,.3g}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


def _cost(processor: wiremodel.Processor) -> str:
    return f"{1e3 * processor.a:.2g} ms and {1e9 * processor.b:.2g} ns per byte"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in _words(text)]
    except ValueError as error:
        raise ConfigError(
            f"Expected whole numbers such as 2,4,8 for --clients, got {text!r}."
        ) from error
