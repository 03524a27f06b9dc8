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
    if launched() < 2:
        # PyTorch takes seconds to load: what is wrong with the settings is said before
        return _begin(_config(args), args)
    with stopping_at_once():
        from proxyfl.simulation.engines import mpi

    def action(engine: "Engine | None") -> int:
        return _begin(_config(args), args, engine)

    return mpi.on_rank_zero(action)


def _begin(
    config: configs.Config,
    args: Namespace,
    engine: "Engine | None" = None,
) -> int:
    if args.print_config:
        text = _settings.to_toml(config, complete=True)
        sys.stdout.write(text)
        return 0
    with stopping_at_once():
        from proxyfl.cli.terminal import running

    return running.begin(config, args, engine)


def _config(args: Namespace) -> configs.Config:
    overrides = list(args.overrides)
    if args.data_dir is not None:
        overrides.append(f"data.directory={json.dumps(args.data_dir)}")
    if args.device is not None:
        overrides.append(f"device={json.dumps(args.device)}")
    return configs.load(args.config, overrides)
