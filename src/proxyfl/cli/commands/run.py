"""``proxyfl run``: run what a config describes."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl import _settings
from proxyfl._machine import physical_cores
from proxyfl.cli.commands import add_json, federation, opening
from proxyfl.cli.terminal.progress import Progress
from proxyfl.cli.terminal.result import show_result
from proxyfl.cli.terminal.spinner import waiting
from proxyfl.data import SOURCES
from proxyfl.errors import WorkerDied
from proxyfl.records import folder
from proxyfl.records.run import Run
from proxyfl.simulation import config as configs
from proxyfl.simulation import run as runner
from proxyfl.simulation import tracking
from proxyfl.simulation.engines import mpi
from proxyfl.simulation.engines.serial import Engine

if TYPE_CHECKING:
    from proxyfl.cli.commands import Commands

DESCRIPTION = """\
Run the methods of a config on the same data, partition and seeds; record everything.
"""

EPILOG = """\
examples:
  proxyfl run                                    the demo: eight clients, scikit-learn's digits
  proxyfl run experiments/base/images.toml --data-dir data      a config file, with real data
  proxyfl run --set methods=alone,proxyfl --set privacy.noise_multiplier=2 --set rounds=50
  proxyfl run --print-config > my.toml           every setting with its value, to start from

The run's folder holds the config, the metrics (metrics.jsonl), the privacy ledgers and the final
models. Results compare each method with `alone`: the private model trained without joining
anybody. docs/settings.md explains every setting.
"""


def add(commands: "Commands") -> None:
    """Add the command to the program."""
    parser = opening(commands, "run", execute, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument(
        "config",
        nargs="?",
        type=Path,
        metavar="CONFIG.toml",
        help="settings; the demo's without it",
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change one setting, for example privacy.noise_multiplier=1.1; may be repeated",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the run's folder (default: a new one below runs/)"
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="where datasets lie or are downloaded to (or PROXYFL_DATA)",
    )
    parser.add_argument(
        "--device", metavar="DEVICE", help='a PyTorch device such as "cuda" (default: cpu)'
    )
    add_run_options(parser)
    parser.add_argument(
        "--print-config", action="store_true", help="print the resolved config as TOML and stop"
    )
    parser.add_argument(
        "--federation",
        type=Path,
        metavar="DIR",
        help="simulate the real federation of this folder's manifest and site folders",
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """The options that running and resuming share."""
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes (default: the physical cores)"
    )
    parser.add_argument(
        "--track",
        action="append",
        default=[],
        metavar="NAME",
        help="also report to tensorboard or mlflow (extras of the same names); may be repeated",
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="serve a page that follows the run, on this machine only",
    )
    add_json(parser)


def execute(args: argparse.Namespace) -> int:
    """Run, show progress, show the result; under mpiexec, on all ranks of the job."""
    if args.federation is not None:
        return federation.predict(args.federation, as_json=args.json)
    return mpi.on_rank_zero(partial(_execute, args))


def _execute(args: argparse.Namespace, engine: Engine | None) -> int:
    config = _config(args)
    if args.print_config:
        sys.stdout.write(_settings.to_toml(config, complete=True))
        return 0
    out: Path = args.out or folder.fresh(Path("runs"), config.data.name)
    others = followers(args, out)
    quiet = args.json or _will_download(config)
    with waiting("Loading the data and building the models", quiet=quiet):
        prepared = runner.prepare(config)

    def action(callbacks: Sequence[runner.Callback]) -> Run:
        return runner.execute(
            prepared, out=out, callbacks=callbacks, workers=workers(args), engine=engine
        )

    return carry_out(action, others, out, as_json=args.json)


def _config(args: argparse.Namespace) -> configs.Config:
    overrides = list(args.overrides)
    if args.data_dir is not None:
        overrides.append(f"data.directory={json.dumps(args.data_dir)}")
    if args.device is not None:
        overrides.append(f"device={json.dumps(args.device)}")
    return configs.load(args.config, overrides)


def _will_download(config: configs.Config) -> bool:
    """Whether the data is fetched first, which shows a bar of its own."""
    source = SOURCES.get(config.data.name)
    return source is not None and source.find(config.data.directory) is None


def workers(args: argparse.Namespace) -> int:
    """How many processes to use."""
    given: int | None = args.workers
    return physical_cores() if given is None else given


def followers(args: argparse.Namespace, out: Path) -> list[runner.Callback]:
    """Whoever follows the run besides the terminal, as the options say."""
    found = tracking.from_names(args.track, out)
    if args.live:
        from proxyfl.report.callback import LivePage  # a run without it pays nothing

        found.append(LivePage())
    return found


def carry_out(
    action: Callable[[Sequence[runner.Callback]], Run],
    others: Sequence[runner.Callback],
    out: Path,
    *,
    as_json: bool,
) -> int:
    """Do ``action`` with progress shown, then show its result; if it is cut off, say how to
    resume."""
    try:
        with Progress(quiet=as_json) as progress:
            result = action([progress, *others])
    except KeyboardInterrupt:
        print(f"proxyfl: interrupted; {_what_is_left(out)}", file=sys.stderr)
        return 130
    except WorkerDied as error:
        print(f"proxyfl: {error} It ended here; {_what_is_left(out)}", file=sys.stderr)
        return 1
    if as_json:
        print(json.dumps({**(result.summary or {}), "out": str(out)}))
    else:
        show_result(result)
    return 0


def _what_is_left(out: Path) -> str:
    if not (out / "config.toml").exists():
        return "nothing was begun."
    return f"what was recorded is intact. Go on with: proxyfl resume {out}"
