"""``proxyfl sweep``: many runs over one base config, in parallel, skipping what is done."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from proxyfl._machine import physical_cores
from proxyfl._validate import whole
from proxyfl.errors import ConfigError
from proxyfl.records.run import State
from proxyfl.sweeps import file as sweeps
from proxyfl.sweeps import pool as processes
from proxyfl.sweeps.file import Run
from proxyfl.sweeps.pool import Outcome, Status
from proxyfl.transport.mpi import launched

_EPILOG = """\
examples:
  proxyfl sweep noise.toml --dry-run            what would run, and what is done already
  proxyfl sweep noise.toml --out runs/noise     run it; the same line again goes on where it was stopped
  proxyfl table runs/noise                      means, standard deviations and tests over its runs

A sweep file (docs/sweeps.md):
  base = "base/images.toml"                     beside this file; the demo's settings without it
  [set]
  rounds = 100                                  the same in every run
  [grid]                                        every combination of
  seed = [0, 1, 2]
  methods = ["alone", "proxyfl"]                one run per method
  privacy.noise_multiplier = [1, 2]
  [[variant]]                                   settings that vary together
  name = "honest"
  learning.beta = 0.0
  [quick]                                       what --quick changes
  rounds = 5
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "sweep",
        help="run a grid of settings and seeds over one config",
        description="Run every combination of the settings that a sweep file lists, each in a "
        "process and a folder of\n"
        "its own. Finished runs are skipped, begun ones resumed; one that fails stops no other.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "sweep", type=Path, metavar="SWEEP.toml", help="what varies, over which base config"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="run the file's quick variant ([quick]), in SWEEP-quick",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the runs' common folder (default: runs/SWEEP)"
    )
    parser.add_argument(
        "--parallel", type=int, metavar="N", help="runs at a time (default: the physical cores)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check every run's settings, list the runs and stop"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document and nothing else"
    )
    parser.set_defaults(run=start)


def start(args: argparse.Namespace, *, command: Sequence[str] = processes.COMMAND) -> int:
    """Plan, run what is not done, say how it ended; 1 if some run failed."""
    if launched() > 1:
        raise ConfigError("A sweep starts its runs itself, in parallel. Start it without mpiexec.")
    out: Path = args.out or Path("runs") / (args.sweep.stem + ("-quick" if args.quick else ""))
    runs = sweeps.plan(args.sweep, out, quick=args.quick)
    parallel = (
        whole("--parallel", args.parallel) if args.parallel is not None else _default_parallel(runs)
    )
    before = {run.name: sweeps.state(run.folder) for run in runs}
    if args.dry_run:
        _print_plan(runs, before, out, parallel, as_json=args.json)
        return 0
    try:
        with Progress(
            len(runs), list(before.values()).count("finished"), quiet=args.json
        ) as progress:
            outcomes = processes.execute(
                runs, parallel=parallel, command=command, tell=progress.tell
            )
    except KeyboardInterrupt:
        print(f"Stopped. To go on: {_again(args, out)}", file=sys.stderr)
        raise
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if args.json:
        print(
            json.dumps(
                _document(runs, before, out)
                | {"failed": len(failed), "outcomes": [*map(_plain, outcomes)]}
            )
        )
    else:
        _print_end(runs, outcomes, failed, _again(args, out), out)
    return 1 if failed else 0


def _again(args: argparse.Namespace, out: Path) -> str:
    """The line that goes on with the sweep."""
    return f"proxyfl sweep {args.sweep} {'--quick ' if args.quick else ''}--out {out}"


def _default_parallel(runs: Sequence[Run]) -> int:
    return max(1, physical_cores() // max(run.config.threads for run in runs))


class Progress:
    """A bar with the time remaining and the running runs; plain lines where standard error is no
    terminal."""

    def __init__(
        self, runs: int, skipped: int, *, quiet: bool = False, console: Console | None = None
    ) -> None:
        self.console = console or Console(stderr=True)
        self.runs, self.skipped, self.quiet = runs, skipped, quiet
        self._live: Live | None = None
        self._begun: set[str] = set()
        self._ended = 0

    def __enter__(self) -> Self:
        if not self.quiet and self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        self._say(f"{self.runs} runs, {self.skipped} of them finished before")
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, status: Status) -> None:
        """Show where the sweep stands; say each start and each end once."""
        done, left = self.skipped + len(status.outcomes), _remaining(status)
        for outcome in status.outcomes[self._ended :]:
            how = "finished" if outcome.error is None else "FAILED"
            self._say(
                f"{how} after {_duration(outcome.seconds)}: {outcome.run.name} ({done} of "
                f"{self.runs} done{left})"
            )
            if outcome.error is not None:
                self._say(_indented(outcome.error))
        self._ended = len(status.outcomes)
        for name in status.running:
            if name not in self._begun:
                self._begun.add(name)
                self._say(f"started: {name}")
        if self._live is not None:
            self._live.update(self._view(status, f"{done} of {self.runs} runs{left}"))

    def _say(self, line: str) -> None:
        if not self.quiet:
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _view(self, status: Status, line: str) -> Group:
        width = min(40, max(10, self.console.width // 3))
        table = Table.grid(padding=(0, 1))
        table.add_row(ProgressBar(total=1, completed=status.part_done, width=width), Text(line))
        for name, part in status.running.items():
            table.add_row(
                ProgressBar(total=1, completed=part, width=width), Text(name, overflow="ellipsis")
            )
        return Group(table)


def _remaining(status: Status) -> str:
    unknown = status.seconds_left is None or not (status.running or status.waiting)
    return "" if unknown else f", about {_duration(status.seconds_left or 0)} left"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _document(runs: Sequence[Run], before: dict[str, State], out: Path) -> dict[str, Any]:
    return {
        "out": str(out),
        "runs": [
            {
                "name": run.name,
                "folder": str(run.folder),
                "settings": dict(run.settings),
                "before": before[run.name],
                "state": sweeps.state(run.folder),
            }
            for run in runs
        ],
    }


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {"name": outcome.run.name, "seconds": outcome.seconds, "error": outcome.error}


def _print_plan(
    runs: Sequence[Run], before: dict[str, State], out: Path, parallel: int, *, as_json: bool
) -> None:
    if as_json:
        print(json.dumps(_document(runs, before, out) | {"parallel": parallel}))
        return
    table = Table("run", "rounds", "state")
    for run in runs:
        table.add_row(escape(run.name), str(run.work), before[run.name])
    console = Console()
    console.print(table)
    todo = sum(state != "finished" for state in before.values())
    console.print(
        f"{len(runs)} runs, {todo} to do, {parallel} at a time, below {out}",
        highlight=False,
        soft_wrap=True,
    )


def _print_end(
    runs: Sequence[Run],
    outcomes: Sequence[Outcome],
    failed: Sequence[Outcome],
    again: str,
    out: Path,
) -> None:
    console = Console()
    finished = sum(sweeps.state(run.folder) == "finished" for run in runs)
    skipped = len(runs) - len(outcomes)
    lines = [
        f"{finished} of {len(runs)} runs are finished ({skipped} were before), {len(failed)} "
        f"failed."
    ]
    lines += [
        f"failed: {outcome.run.name} (what it said: {outcome.run.beside('.log')})"
        for outcome in failed
    ]
    if failed:
        lines.append(f"To try them again: {again}")
    lines.append(f"To compare: proxyfl table {out}")
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
