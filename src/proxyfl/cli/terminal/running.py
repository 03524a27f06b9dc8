"""Begins or resumes a run, with progress and result in the terminal.

The commands import this module when they run something: it loads PyTorch, and their options and
``--print-config`` need none."""

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from proxyfl._machine import physical_cores
from proxyfl.cli.options import print_json
from proxyfl.cli.terminal.progress import Progress
from proxyfl.cli.terminal.result import show_notes, show_result
from proxyfl.cli.terminal.spinner import spinner
from proxyfl.data import SOURCES
from proxyfl.errors import WorkerDied
from proxyfl.records import folder
from proxyfl.records.run import Run
from proxyfl.simulation import run as runner
from proxyfl.simulation import tracking
from proxyfl.simulation.config import Config
from proxyfl.simulation.engines.serial import Engine


def begin(config: Config, args: Namespace, engine: Engine | None) -> int:
    """Run ``config`` in a new folder; the exit code."""
    out: Path = args.out or folder.fresh(Path("runs"), config.data.name)
    others = _followers(args)
    quiet = args.json
    source = SOURCES.get(config.data.name)
    if source is not None and source.find(config.data.directory) is None:
        quiet = True  # the data are fetched first, which shows a bar of its own
    with spinner("Loading the data and building the models", quiet=quiet):
        prepared = runner.prepare(config)
    show_notes(prepared.dataset.notes, Console(stderr=True))
    action = partial(runner.execute, prepared, out=out, engine=engine)
    return _carry_out(action, others, out, args)


def resume(args: Namespace, engine: Engine | None) -> int:
    """Continue the run in the folder ``args.run_folder``; the exit code."""
    path = folder.existing(args.run_folder)
    action = partial(runner.resume, path, engine=engine)
    return _carry_out(action, _followers(args), path, args)


def _followers(args: Namespace) -> list[runner.Callback]:
    """The callbacks besides the terminal's that the options ask for."""
    found = tracking.from_names(args.track)
    if args.live:
        # a run without it pays nothing
        from proxyfl.report.callback import LivePage

        found.append(LivePage())
    return found


def _carry_out(
    action: Callable[..., Run],
    others: Sequence[runner.Callback],
    out: Path,
    args: Namespace,
) -> int:
    """Do ``action`` with progress shown, then show its result; if it is interrupted, say how
    to resume."""
    workers = physical_cores() if args.workers is None else args.workers
    try:
        with Progress(quiet=args.json) as progress:
            result = action(callbacks=[progress, *others], workers=workers)
    except KeyboardInterrupt:
        print(f"proxyfl: interrupted; {_what_is_left(out)}", file=sys.stderr)
        return 130
    except WorkerDied as error:
        print(
            f"proxyfl: {error} It ended here; {_what_is_left(out)}", file=sys.stderr
        )
        return 1
    if args.json:
        notes = result.environment.get("notes", [])
        print_json({**result.summed_up, "notes": notes, "out": str(out)})
    else:
        show_result(result)
    return 0


def _what_is_left(out: Path) -> str:
    if not (out / "config.toml").exists():
        return "nothing was begun."
    return f"what was recorded is intact. Continue with: proxyfl resume {out}"
