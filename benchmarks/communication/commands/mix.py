"""``mix``: rounds and bytes to consensus, with lost messages and absent clients."""

import argparse
from collections.abc import Sequence

from benchmarks import checks
from benchmarks.communication import measure, output, tables
from benchmarks.communication.mixing import Setting

_EPILOG = """\
examples:
  python -m benchmarks.communication mix --clients 10,100,1000
  python -m benchmarks.communication mix --target 0.01 --model cnn1 --out mixing.json
  python -m benchmarks.communication mix --figure mixing
"""

_LOSSES = (0.0, 0.01, 0.05, 0.2)
_ABSENCES = (0.0, 0.1, 0.3, 0.5)
_CURVE = 60


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    text = "rounds and bytes to consensus, with lost messages and absent clients"
    parser = commands.add_parser(
        "mix",
        help=text,
        description=f"Simulate {text}.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--clients",
        default="10,100,1000,10000",
        metavar="N,N",
        help="numbers of clients (default 10,100,1000,10000)",
    )
    parser.add_argument(
        "--target",
        type=float,
        default=1e-3,
        metavar="E",
        help="distance from the mean (default 0.001)",
    )
    parser.add_argument(
        "--model", default="mlp", metavar="M", help="whose size gives the bytes (default mlp)"
    )
    parser.add_argument(
        "--failures",
        type=int,
        default=1000,
        metavar="N",
        help="clients in the tables with failures (default 1000)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=100,
        metavar="T",
        help="rounds of the table with lost messages (default 100)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the simulations (default 0)")
    output.add_options(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Simulate, save, draw and show."""
    target = checks.within("--target", args.target, 0, 1)
    clients = output.numbers("--clients", args.clients)
    size = 4 * measure.parameters(args.model)
    rows = tables.consensus(clients, target, size, seed=args.seed)
    lost = tables.losses(args.failures, _LOSSES, target, args.rounds, seed=args.seed)
    absent = tables.absences(args.failures, _ABSENCES, target, seed=args.seed)
    document = {"target": target, "consensus": rows, "lost": lost, "absent": absent}
    output.save(args, document, rows)
    if args.figure is not None:
        _draw(args, rows, absent)
    if not args.json:
        _show(args, rows, lost, absent)
    return 0


def _draw(
    args: argparse.Namespace, rows: Sequence[output.Row], absent: Sequence[output.Row]
) -> None:
    averaging = [row for row in rows if row["self_weight"] != 0]
    output.draw(args.figure, lambda plots: plots.mixing(averaging, args.target))
    curves = _curves(args.failures, args.seed)
    failures = output.beside(args.figure, "failures")
    output.draw(failures, lambda plots: plots.failures(curves, absent, args.failures))


def _curves(clients: int, seed: int) -> dict[str, list[float]]:
    """The error round by round, without losses, with them, and with shares that are kept."""
    settings = {"nothing lost": Setting("exponential", clients)}
    for loss in (0.01, 0.2):
        lost = Setting("exponential", clients, loss=loss)
        kept = Setting("exponential", clients, loss=loss, keep=True)
        settings[f"{loss:.0%} lost"] = lost
        settings[f"{loss:.0%}, kept by the sender"] = kept
    return {
        name: tables.error_curve(setting, _CURVE, seed=seed) for name, setting in settings.items()
    }


def _show(
    args: argparse.Namespace,
    rows: Sequence[output.Row],
    lost: Sequence[output.Row],
    absent: Sequence[output.Row],
) -> None:
    output.show(["graph", "self_weight", "clients", "rounds", "messages", "megabytes"], rows)
    print(f"Lost messages, exponential graph, {args.failures} clients, after {args.rounds} rounds:")
    output.show(
        [
            "loss",
            "self_weight",
            "kept_by_sender",
            "rounds_to_agreement",
            "rounds_to_mean",
            "error",
            "weight",
            "bare",
        ],
        lost,
    )
    print(f"Absent clients, {args.failures} in all:")
    output.show(["graph", "absence", "rounds"], absent)
