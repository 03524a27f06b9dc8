"""``proxyfl run``: run what a config describes."""

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl import _settings
from proxyfl.cli.options import JSON, STUDY, config_options, flag, option, repeatable
from proxyfl.cli.stopping import stopping_at_once
from proxyfl.errors import ConfigError
from proxyfl.simulation import config as configs
from proxyfl.transport.mpi import rank_count

if TYPE_CHECKING:
    from proxyfl.simulation.engines import Engine

DESCRIPTION = """\
Run the methods of a config on the same data, partition and seeds; record everything.
"""

EPILOG = """\
examples:
  proxyfl run                                    the study.toml of this folder, else
                                                 eight clients with scikit-learn's digits
  proxyfl run experiments/base/images.toml --data-dir data      a config file, with real data
  proxyfl run --set methods=alone,proxyfl --set privacy.noise_multiplier=2 --set rounds=50
  proxyfl run --print-config > my.toml           every setting with its value, to start from
  proxyfl run --federation study --out runs/study      a real federation, before it begins

The run's folder holds the config, the metrics (metrics.jsonl), the privacy ledgers and the final
models. Results compare each method with `alone`: the private model trained without joining
anybody. docs/reference/settings.md explains every setting.
"""

RUN_OPTIONS = (
    option("--workers N", "processes (default: the physical cores)", int),
    repeatable(
        "--track NAME",
        "also report to tensorboard or mlflow (extras of the same names)",
        default=[],
    ),
    flag("--explain", "show every table and what the words mean, besides the verdict"),
    flag("--live", "serve a page that follows the run, on this machine only"),
    JSON,
)

OPTIONS = (
    *config_options(),
    option("--out DIR", "the run's folder (default: a new one below runs/)", Path),
    option(
        "--splits N",
        "run N seeds, each with a split of its own, and judge them together (default: 5 for the "
        "study of this folder if it has tables of fewer than 2000 records, else 1)",
        int,
    ),
    option("--data-dir DIR", "where datasets lie or are downloaded to (or PROXYFL_DATA)"),
    option("--device DEVICE", 'a PyTorch device such as "cuda" (default: cpu)'),
    *RUN_OPTIONS,
    flag("--print-config", "print the resolved config as TOML and stop"),
    option(
        "--federation DIR",
        "run the real federation of this folder's manifest and site folders, as a simulation",
        Path,
    ),
    repeatable(
        "--trust MODULE",
        "with --federation: run code of this module or package if the files name it",
        default=[],
    ),
)


def execute(args: Namespace) -> int:
    """Run, show progress, show the result; under mpiexec, on all ranks of the job."""
    _check_options(args)
    if rank_count() < 2:
        # PyTorch takes seconds to load: what is wrong with the settings is said before
        return _begin(_config(args), args)
    with stopping_at_once():
        from proxyfl.simulation import mpi

    def action(engine: "Engine | None") -> int:
        return _begin(_config(args), args, engine)

    return mpi.on_rank_zero(action)


def _begin(config: configs.Config, args: Namespace, engine: "Engine | None" = None) -> int:
    if args.print_config:
        text = configs.to_toml(config, complete=True)
        sys.stdout.write(text)
        return 0
    with stopping_at_once():
        from proxyfl.cli.terminal import running

    return running.begin(config, args, engine)


def _config(args: Namespace) -> configs.Config:
    overrides = list(args.overrides)
    for key, last in _settings.set_twice(overrides).items():
        print(f"proxyfl: {key} is set more than once; the last counts: {last}", file=sys.stderr)
    if args.data_dir is not None:
        overrides.append(f"data.directory={json.dumps(args.data_dir)}")
    if args.device is not None:
        overrides.append(f"device={json.dumps(args.device)}")
    if args.federation is not None:
        from proxyfl.simulation import federation  # which other runs need not wait for

        return federation.config_of(args.federation, trust=args.trust, overrides=overrides)
    return configs.load(_study_of(args), overrides)


def _check_options(args: Namespace) -> None:
    """Raise ConfigError for options that cannot act together."""
    if args.out == Path():
        raise ConfigError(
            "Expected the name of a new folder after --out, got none. Leave --out out for a new "
            "folder below runs/."
        )
    if args.splits is not None and args.splits < 1:
        raise ConfigError(f"Expected --splits of 1 or more, got {args.splits}.")
    if args.federation is None:
        if args.trust:
            raise ConfigError(
                f"--trust {args.trust[0]} is for --federation, whose files may be others'. A run "
                "of your own config runs whatever code it names. Leave --trust out."
            )
        return
    if args.config is not None:
        raise ConfigError(
            f"--federation takes every setting from {args.federation}, got also the config "
            f"{args.config}. Leave one of them out; --set changes single settings."
        )
    if args.data_dir is not None:
        raise ConfigError(
            f"With --federation each site's data lie where its site.toml says, got also --data-dir "
            f"{args.data_dir}. Leave it out."
        )


def _study_of(args: Namespace) -> Path | None:
    """The config to run: the one that is named, else the study of the current folder."""
    if args.config is not None or not STUDY.is_file():
        named: Path | None = args.config
        return named
    if not args.print_config and not args.json:
        print(f"Running {STUDY} of this folder.", file=sys.stderr)
    return STUDY
