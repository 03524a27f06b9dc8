"""``proxyfl run``: run what a config describes."""

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl import _settings
from proxyfl.cli.options import JSON, config_options, flag, option, repeated
from proxyfl.cli.stopping import stopping_at_once
from proxyfl.simulation import config as configs
from proxyfl.transport.mpi import launched

if TYPE_CHECKING:
    from proxyfl.simulation.engines.serial import Engine

DESCRIPTION = """\
Run the methods of a config on the same data, partition and seeds; record everything.
"""

EPILOG = """\
examples:
  proxyfl run                                    all defaults: eight clients, scikit-learn's digits
  proxyfl run experiments/base/images.toml --data-dir data      a config file, with real data
  proxyfl run --set methods=alone,proxyfl --set privacy.noise_multiplier=2 --set rounds=50
  proxyfl run --print-config > my.toml           every setting with its value, to start from

The run's folder holds the config, the metrics (metrics.jsonl), the privacy ledgers and the final
models. Results compare each method with `alone`: the private model trained without joining
anybody. docs/settings.md explains every setting.
"""


RUN_OPTIONS = (
    option("--workers N", "processes (default: the physical cores)", int),
    repeated(
        "--track NAME",
        "also report to tensorboard or mlflow (extras of the same names)",
        default=[],
    ),
    flag("--live", "serve a page that follows the run, on this machine only"),
    JSON,
)

OPTIONS = (
    *config_options(),
    option("--out DIR", "the run's folder (default: a new one below runs/)", Path),
    option(
        "--data-dir DIR",
        "where datasets lie or are downloaded to (or PROXYFL_DATA)",
    ),
    option("--device DEVICE", 'a PyTorch device such as "cuda" (default: cpu)'),
    *RUN_OPTIONS,
    flag("--print-config", "print the resolved config as TOML and stop"),
    option(
        "--federation DIR",
        "simulate the real federation of this folder's manifest and site folders",
        Path,
    ),
)


def execute(args: Namespace) -> int:
    """Run, show progress, show the result; under mpiexec, on all ranks of the job."""
    if args.federation is not None:
        from proxyfl.cli.commands.sites import federation_actions

        return federation_actions.predict(args.federation, as_json=args.json)
    if args.print_config and launched() < 2:
        return _print_config(args)  # without PyTorch, which takes seconds to load
    with stopping_at_once():
        from proxyfl.cli.terminal import running
        from proxyfl.simulation.engines import mpi

    def action(engine: "Engine | None") -> int:
        if args.print_config:
            return _print_config(args)
        return running.begin(_config(args), args, engine)

    return mpi.on_rank_zero(action)


def _print_config(args: Namespace) -> int:
    sys.stdout.write(_settings.to_toml(_config(args), complete=True))
    return 0


def _config(args: Namespace) -> configs.Config:
    overrides = list(args.overrides)
    if args.data_dir is not None:
        overrides.append(f"data.directory={json.dumps(args.data_dir)}")
    if args.device is not None:
        overrides.append(f"device={json.dumps(args.device)}")
    return configs.load(args.config, overrides)
