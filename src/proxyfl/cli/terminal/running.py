"""Begins or resumes a run, with progress and result in the terminal.

The commands import this module when they run something: it loads PyTorch, and their options and
``--print-config`` need none."""

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from proxyfl._command import command
from proxyfl._terminal.spinner import spinner
from proxyfl.cli.options import STUDY, print_json
from proxyfl.cli.terminal.result import show_notes, show_result
from proxyfl.cli.terminal.verdict import show_verdict
from proxyfl.data.sources import SOURCES
from proxyfl.errors import ConfigError, WorkerDied
from proxyfl.machine import physical_cores
from proxyfl.records import folder
from proxyfl.records.run import Run
from proxyfl.simulation import run as runner
from proxyfl.simulation import tracking
from proxyfl.simulation.config import Config
from proxyfl.simulation.engines import Engine
from proxyfl.simulation.prepare import Prepared
from proxyfl.simulation.progress import Progress

SMALL_TABLE = 2000
"""Records below which the tables of a project are split several times."""

SPLITS = 5


def begin(config: Config, args: Namespace, engine: Engine | None) -> int:
    """Run ``config`` in a new folder, once or with several seeds; the exit code."""
    called = Path.cwd().name if _is_project(args) else ""
    out: Path = args.out or folder.fresh(Path("runs"), called or config.data.name)
    quiet = args.json
    source = SOURCES.get(config.data.name)
    if source is not None and source.find(config.data.directory) is None:
        quiet = True  # the data are fetched first, which shows a bar of its own
    with spinner("Loading the data and building the models", quiet=quiet):
        prepared = runner.prepare(config)
        _check_partners(prepared)
    show_notes(prepared.dataset.notes, Console(stderr=True))
    splits = _number_of_splits(prepared, args)
    if splits == 1:
        action = partial(runner.execute, prepared, out=out, engine=engine)
        return _carry_out(action, _followers(args), out, args)
    results = []
    for number in range(splits):
        below = out / f"split-{number}"
        if number:
            prepared = runner.prepare(replace(config, seed=config.seed + number))
        if not args.json:
            print(f"Split {number + 1} of {splits}", file=sys.stderr)
        action = partial(runner.execute, prepared, out=below, engine=engine)
        result = _run_shown(action, _followers(args), below, args)
        if isinstance(result, int):
            return result
        results.append(result)
    _show(results, out, args)
    return 0


def _check_partners(prepared: Prepared) -> None:
    """Raise ConfigError if the only client is to share with nobody: most likely a mistake."""
    shared = [name for name, method in prepared.methods.items() if method.shares]
    if shared and len(prepared.clients) < 2:
        raise ConfigError(
            f"Expected two or more clients for {', '.join(shared)}, got one, which has nobody to "
            'share with. Set partition.clients to 2 or more, or methods to "alone".'
        )


def _number_of_splits(prepared: Prepared, args: Namespace) -> int:
    """As asked for; else several for a small table in a project's folder."""
    if args.splits is not None:
        asked: int = args.splits
        return asked
    dataset = prepared.dataset
    records = len(dataset.train) + len(dataset.test)
    return SPLITS if _is_project(args) and dataset.schema and records < SMALL_TABLE else 1


def _is_project(args: Namespace) -> bool:
    """True for the study of the current folder."""
    return args.config is None and args.federation is None and STUDY.is_file()


def resume(args: Namespace, engine: Engine | None) -> int:
    """Continue the run in the folder ``args.run_folder``; the exit code."""
    path = folder.existing(args.run_folder)
    action = partial(runner.resume, path, engine=engine, progress=False)
    return _carry_out(action, _followers(args), path, args)


def _followers(args: Namespace) -> list[runner.Callback]:
    """The callbacks besides the terminal's that the options ask for."""
    followers = tracking.from_names(args.track)
    if args.live:
        # a run without it pays nothing
        from proxyfl.report.callback import LivePage

        followers.append(LivePage())
    return followers


def _carry_out(
    action: Callable[..., Run], others: Sequence[runner.Callback], out: Path, args: Namespace
) -> int:
    """Do ``action`` with progress shown, then show its result."""
    result = _run_shown(action, others, out, args)
    if isinstance(result, int):
        return result
    _show([result], out, args)
    return 0


def _run_shown(
    action: Callable[..., Run], others: Sequence[runner.Callback], out: Path, args: Namespace
) -> Run | int:
    """Do ``action`` with progress shown; if it is interrupted, say how to resume and return the
    exit code."""
    workers = physical_cores() if args.workers is None else args.workers
    try:
        with Progress(quiet=args.json) as progress:
            return action(callbacks=[progress, *others], workers=workers)
    except KeyboardInterrupt:
        print(f"proxyfl: interrupted; {_what_is_left(out)}", file=sys.stderr)
        return 130
    except WorkerDied as error:
        print(f"proxyfl: {error} It ended here; {_what_is_left(out)}", file=sys.stderr)
        return 1


def _show(results: Sequence[Run], out: Path, args: Namespace) -> None:
    """Print the results: as JSON, in full, or the verdict."""
    if args.json:
        documents = []
        for result in results:
            notes = result.environment.get("notes", [])
            documents.append({**result.summed_up, "notes": notes, "out": str(result.path)})
        one = len(documents) == 1
        print_json(documents[0] if one else {"splits": documents, "out": str(out)})
        return
    show_verdict(results, out)
    if args.explain:
        for result in results:
            print()
            show_result(result)


def _what_is_left(out: Path) -> str:
    if not (out / "config.toml").exists():
        return "nothing was begun."
    return f"what was recorded is intact. Continue with: {command('resume', out)}"
