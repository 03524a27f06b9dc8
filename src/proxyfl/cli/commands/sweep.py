"""``proxyfl sweep``: many runs over one base config, in parallel, skipping what is done."""

import sys
import textwrap
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from proxyfl._command import command
from proxyfl._terminal.display import Display
from proxyfl._terminal.spinner import duration
from proxyfl._validate import whole
from proxyfl.cli.options import JSON, Document, flag, option, print_json, repeatable
from proxyfl.errors import ConfigError
from proxyfl.machine import physical_cores
from proxyfl.records.reading import State, state
from proxyfl.sweeps import pool
from proxyfl.sweeps.file import Point, only, plan
from proxyfl.sweeps.pool import Outcome, Status
from proxyfl.transport.mpi import rank_count

DESCRIPTION = """\
Run every combination of the settings that a sweep file lists, each in a process and a folder of its
own. Finished runs are skipped, interrupted ones resumed; one that fails stops no other.
"""

EPILOG = """\
examples:
  proxyfl sweep noise.toml --dry-run            what would run, and what is done already
  proxyfl sweep noise.toml --out runs/noise     run it; the same line again continues it
  proxyfl sweep noise.toml --until 20           each run to its 20th round; without it, the rest
  proxyfl sweep noise.toml --only seed=0,1 --only methods=proxyfl         some of the runs
  proxyfl table runs/noise                      means, standard deviations and tests over its runs

A sweep file (docs/guides/sweeps.md):
  base = "base/images.toml"                     relative to this file; without it: the defaults
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


OPTIONS = (
    option("sweep SWEEP.toml", "what varies, over which base config", Path),
    flag("--quick", "run the file's quick variant ([quick]), in SWEEP-quick"),
    option("--out DIR", "the runs' common folder (default: runs/SWEEP)", Path),
    option("--parallel N", "runs at a time (default: the physical cores)", int),
    option("--until ROUNDS", "stop each run there, to be continued later", int),
    repeatable("--only KEY=VALUE[,VALUE]", "runs with this setting", default=[]),
    flag("--dry-run", "check every run's settings, list the runs and stop"),
    JSON,
)


def execute(args: Namespace, *, command: Sequence[str] = pool.COMMAND) -> int:
    """Plan, run what is not done, say how it ended; 1 if some run failed."""
    if rank_count() > 1:
        raise ConfigError("A sweep starts its runs itself, in parallel. Start it without mpiexec.")
    out = _folder(args)
    points = only(plan(args.sweep, out, quick=args.quick), args.only)
    parallel = _parallel(args.parallel, points)
    pool.check_until(args.until, points)
    before = {point.name: state(point.folder) for point in points}
    if args.dry_run:
        if args.json:
            print_json(_document(points, before, out) | {"parallel": parallel})
        else:
            _print_plan(points, before, out, parallel, args.until)
        return 0
    finished = list(before.values()).count("finished")
    done = sum(pool.is_done(point, args.until) for point in points)
    try:
        with Progress(len(points), done, quiet=args.json) as progress:
            progress.say(f"{len(points)} runs, {finished} of them finished before")
            outcomes = pool.execute(
                points, parallel=parallel, until=args.until, command=command, tell=progress.tell
            )
    except KeyboardInterrupt:
        print(f"Stopped. To continue: {_again(args, out)}", file=sys.stderr)
        raise
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if args.json:
        ended = []
        for one in outcomes:
            about = {"name": one.point.name, "seconds": one.seconds}
            ended.append(about | {"error": one.error})
        counts = {"failed": len(failed), "outcomes": ended}
        print_json(_document(points, before, out) | counts)
    else:
        _print_end(points, finished, failed, args, out)
    return 1 if failed else 0


def _folder(args: Namespace) -> Path:
    if args.out is not None:
        return Path(args.out)
    ending = "-quick" if args.quick else ""
    return Path("runs") / f"{args.sweep.stem}{ending}"


def _again(args: Namespace, out: Path) -> str:
    """The line that continues the sweep."""
    line = ["proxyfl", "sweep", str(args.sweep)]
    if args.quick:
        line.append("--quick")
    line += ["--out", str(out)]
    if args.until is not None:
        line += ["--until", str(args.until)]
    for each in args.only:
        line += ["--only", each]
    return " ".join(line)


def _parallel(given: int | None, points: Sequence[Point]) -> int:
    if given is not None:
        return whole("--parallel", given)
    return max(1, physical_cores() // max(point.config.threads for point in points))


class Progress(Display):
    """A bar with the time remaining and the running runs; plain lines where standard error is no
    terminal."""

    def __init__(
        self, runs: int, skipped: int, *, quiet: bool = False, console: Console | None = None
    ) -> None:
        super().__init__(quiet=quiet, console=console)
        self.runs = runs
        self.skipped = skipped
        self._status = Status((), {}, runs, 0.0, None)
        self._begun: set[str] = set()
        self._ended = 0

    def tell(self, status: Status) -> None:
        """Show where the sweep stands; say each start and each end once."""
        self._status = status
        so_far = self._so_far()
        for outcome in status.outcomes[self._ended :]:
            how = "FAILED"
            if outcome.error is None:
                is_whole = state(outcome.point.folder) == "finished"
                how = "finished" if is_whole else "stopped as asked"
            after = f"{how} after {duration(outcome.seconds)}"
            self.say(f"{after}: {outcome.point.name} ({so_far})")
            if outcome.error is not None:
                self.say(textwrap.indent(outcome.error, "    "))
        self._ended = len(status.outcomes)
        for name in status.running:
            if name not in self._begun:
                self._begun.add(name)
                self.say(f"started: {name}")

    def view(self) -> Table:
        """A bar for the sweep and one for each running run."""
        status = self._status
        width = min(40, max(10, self.console.width // 3))
        table = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=1, completed=status.part_done, width=width)
        table.add_row(bar, Text(self._so_far()))
        for name, part in status.running.items():
            bar = ProgressBar(total=1, completed=part, width=width)
            table.add_row(bar, Text(name, overflow="ellipsis"))
        return table

    def _so_far(self) -> str:
        status = self._status
        done = self.skipped + len(status.outcomes)
        said = f"{done} of {self.runs} done"
        if status.seconds_left is None or not (status.running or status.waiting):
            return said
        return f"{said}, about {duration(status.seconds_left)} left"


def _document(points: Sequence[Point], before: dict[str, State], out: Path) -> Document:
    runs = []
    for point in points:
        about = {
            "name": point.name,
            "folder": str(point.folder),
            "settings": dict(point.settings),
            "before": before[point.name],
            "state": state(point.folder),
        }
        runs.append(about)
    return {"out": str(out), "runs": runs}


def _print_plan(
    points: Sequence[Point], before: dict[str, State], out: Path, parallel: int, until: int | None
) -> None:
    table = Table("run", "rounds", "state")
    for point in points:
        rounds = str(pool.goal(point, until))
        table.add_row(escape(point.name), rounds, before[point.name])
    Console().print(table)
    todo = sum(not pool.is_done(point, until) for point in points)
    print(f"{len(points)} runs, {todo} to do, {parallel} at a time, below {out}")


def _print_end(
    points: Sequence[Point], before: int, failed: Sequence[Outcome], args: Namespace, out: Path
) -> None:
    finished = sum(state(point.folder) == "finished" for point in points)
    ended = f"{finished} of {len(points)} runs are finished ({before} were before)"
    lines = [f"{ended}, {len(failed)} failed."]
    if args.until is not None:
        far = sum(pool.is_done(point, args.until) for point in points)
        lines.append(f"{far} of {len(points)} have come to round {args.until}.")
    for outcome in failed:
        log = outcome.point.beside(".log")
        lines.append(f"failed: {outcome.point.name} (what it said: {log})")
    if failed:
        lines.append(f"To try them again: {_again(args, out)}")
    words = ["table", out]
    if args.until is not None and finished < len(points):
        words += ["--round", args.until]
    lines.append(f"To compare: {command(*words)}")
    print("\n".join(lines))
