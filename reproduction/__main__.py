"""``python -m reproduction``: run an experiment, record it, draw the figures, write the tables."""

import argparse
import os
import sys
from pathlib import Path

from proxyfl.cli.main import main as run_command
from proxyfl.errors import ProxyFLError
from proxyfl.machine import physical_cores
from proxyfl.simulation import division
from proxyfl.sweeps import file as sweep
from proxyfl.sweeps.pool import is_done
from reproduction import (
    catalogue,
    duration,
    figures,
    imageplots,
    images,
    joining,
    joiningplots,
    merging,
    page,
    records,
)
from reproduction.catalogue import EXPERIMENTS, IMAGES, JOINING, Experiment


def main(arguments: list[str] | None = None) -> int:
    """Parse, do, say; the exit code."""
    args = _parser().parse_args(arguments)
    try:
        return int(args.do(args))
    except ProxyFLError as error:
        print(f"reproduction: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(
        f"  {e.name:14} {e.title} ({e.place})"
        for e in (*EXPERIMENTS.values(), *JOINING.values(), *IMAGES.values())
    )
    parser = argparse.ArgumentParser(
        prog="python -m reproduction",
        description=__doc__,
        epilog=f"experiments:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, do, text in (
        ("run", _run, "run an experiment, or continue it, and record it"),
        ("record", _record, "record what there is of an experiment"),
    ):
        command = commands.add_parser(name, help=text, description=text.capitalize() + ".")
        command.add_argument(
            "experiment",
            metavar="EXPERIMENT",
            help="one of those listed by python -m reproduction --help",
        )
        command.add_argument(
            "--quick",
            action="store_true",
            help="the variant on the embedded digits, a minute or two",
        )
        command.add_argument(
            "--out", type=Path, metavar="DIR", help="the runs' folder (default: runs/EXPERIMENT)"
        )
        command.add_argument(
            "--to",
            type=Path,
            metavar="FILE",
            help="where the record goes (default: experiments/results)",
        )
        command.add_argument(
            "--add",
            action="store_true",
            help="keep the seeds and settings that are recorded and were not run here",
        )
        command.set_defaults(do=do)
        if name == "run":
            _add_how_far(command)
    draw = commands.add_parser("figures", help="draw every figure from the recorded results")
    draw.add_argument(
        "--results", type=Path, default=catalogue.RESULTS, metavar="DIR", help="the records"
    )
    draw.add_argument(
        "--to", type=Path, default=catalogue.FIGURES, metavar="DIR", help="where the figures go"
    )
    draw.set_defaults(do=_figures)
    write = commands.add_parser(
        "page", help="write the tables of docs/research (reproduction, joining, medical)"
    )
    write.set_defaults(do=_page)
    return parser


def _add_how_far(command: argparse.ArgumentParser) -> None:
    """What a study that takes days is divided by."""
    command.add_argument(
        "--until",
        type=int,
        metavar="ROUNDS",
        help="stop each run there; the same line with more, or without, continues",
    )
    command.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="KEY=VALUE[,VALUE]",
        help="the runs with this setting, such as seed=0; may be repeated",
    )


def _run(args: argparse.Namespace) -> int:
    experiment, out = catalogue.experiment(args.experiment), _out(args)
    planned = sweep.plan(experiment.file, out, quick=args.quick)
    runs = sweep.only(planned, args.only)
    # if the data are not there, say so now and once
    division.load_data(runs[0].config)
    _say_how_long(experiment, runs, quick=args.quick, until=args.until)
    line = ["sweep", str(experiment.file), "--out", str(out)]
    if args.quick:
        line.append("--quick")
    if args.until is not None:
        line += ["--until", str(args.until)]
    for setting in args.only:
        line += ["--only", setting]
    return run_command(line) or _record(args)


def in_words(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _say_how_long(
    experiment: Experiment, runs: list[sweep.Point], *, quick: bool, until: int | None
) -> None:
    parallel = physical_cores()
    todo = sum(not is_done(run, until) for run in runs)
    if quick:
        left: float | None = duration.START_SECONDS * -(-todo // parallel)
    else:
        there = records.read(experiment.record) if experiment.record.is_file() else None
        left = duration.seconds_left(
            runs, there, parallel=parallel, here=duration.yardstick(), until=until
        )
    long = "nobody has recorded how long these take" if left is None else f"about {in_words(left)}"
    print(
        f"{experiment.title}: {len(runs)} runs, {todo} to do, {parallel} at a time: {long}.",
        flush=True,
    )


def _record(args: argparse.Namespace) -> int:
    experiment, out = catalogue.experiment(args.experiment), _out(args)
    to: Path = args.to or (out / "record.jsonl" if args.quick else experiment.record)
    runs = sweep.plan(experiment.file, out, quick=args.quick)
    record = records.condense(experiment.name, runs, yardstick=duration.yardstick())
    if args.add and to.is_file():
        record = merging.merged(records.read(to), record)
    records.write(record, to)
    print(f"Recorded in {_short(to)}." + ("" if args.quick else " Then: make figures"))
    return 0


def _figures(args: argparse.Namespace) -> int:
    for path in figures.draw_all(args.results, args.to):
        print(_short(path))
    for path in joiningplots.draw(args.results, args.to):
        print(_short(path))
    for path in imageplots.draw(args.results, args.to):
        print(_short(path))
    return 0


def _page(_args: argparse.Namespace) -> int:
    page.write()
    print(_short(page.PAGE))
    joining.write()
    print(_short(joining.PAGE))
    images.write()
    print(_short(images.PAGE))
    return 0


def _out(args: argparse.Namespace) -> Path:
    given: Path | None = args.out
    return given or Path("runs") / (args.experiment + ("-quick" if args.quick else ""))


def _short(path: Path) -> str:
    return os.path.relpath(path)


if __name__ == "__main__":
    sys.exit(main())
