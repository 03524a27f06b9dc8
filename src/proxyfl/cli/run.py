"""``proxyfl run``: run what a config describes."""

import argparse
import json
import sys
from pathlib import Path

from proxyfl.cli.progress import Progress
from proxyfl.cli.results import show_result
from proxyfl.experiment import config as settings
from proxyfl.experiment import folder, runner

_EPILOG = """\
examples:
  proxyfl run                                          the demo: eight clients, scikit-learn's digits
  proxyfl run experiments/mnist.toml --data-dir data   a config file, with real data
  proxyfl run --set methods=alone,proxyfl --set privacy.noise_multiplier=2 --set rounds=100
  proxyfl run --print-config > my.toml                 every setting with its value, to start from

The run's folder holds the config, the metrics (metrics.jsonl), the privacy ledgers and the final models.
Results compare each method with `alone`: the private model trained without joining anybody.
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "run",
        help="run one or more methods and compare them",
        description="Run the methods of a config on the same data, partition and seeds; record everything.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG.toml", help="settings; the demo's without it")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE",
        help="change one setting, for example privacy.noise_multiplier=1.1; may be repeated",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="the run's folder (default: a new one below runs/)")
    parser.add_argument("--data-dir", metavar="DIR", help="where datasets lie or are downloaded to (or PROXYFL_DATA)")
    parser.add_argument("--device", metavar="DEVICE", help='a PyTorch device such as "cuda" (default: cpu)')
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object, nothing else")
    parser.add_argument("--print-config", action="store_true", help="print the resolved config as TOML and stop")
    parser.set_defaults(run=start)


def start(args: argparse.Namespace) -> int:
    """Run, show progress, show the result."""
    overrides = list(args.overrides)
    for key, value in (("data.directory", args.data_dir), ("device", args.device)):
        if value is not None:
            overrides.append(f"{key}={json.dumps(value)}")
    config = settings.load(args.config, overrides)
    if args.print_config:
        sys.stdout.write(settings.to_toml(config))
        return 0
    out = args.out if args.out is not None else folder.fresh(Path("runs"), config)
    prepared = runner.prepare(config)
    progress = Progress(quiet=args.json)
    with progress:
        result = runner.execute(prepared, out=out, callbacks=[progress])
    if args.json:
        print(json.dumps(folder.finite(runner.summary(result, prepared) | {"out": str(out)})))
    else:
        show_result(result, prepared.sites)
    return 0
