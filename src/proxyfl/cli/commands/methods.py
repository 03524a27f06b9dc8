"""``proxyfl methods``: the table of methods."""

import argparse
import dataclasses
import json

from rich.console import Console
from rich.table import Table

from proxyfl.federation.methods import METHODS

_EPILOG = """\
examples:
  proxyfl methods
  proxyfl methods --json
  proxyfl run --set methods=alone,fml,proxyfl
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "methods",
        help="list the methods and what distinguishes them",
        description="Every method is one row: what learns locally, with or without DP, and how "
        "models mix.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=show)


def show(args: argparse.Namespace) -> int:
    """Print the table."""
    if args.json:
        print(
            json.dumps(
                {name: dataclasses.asdict(method) for name, method in METHODS.items()}, indent=1
            )
        )
        return 0
    table = Table("method", "learns", "exchange", "DP", "kept model", "in words", title="Methods")
    for name, method in METHODS.items():
        learns = f"{method.learner}, pooled data" if method.pooled else method.learner
        table.add_row(
            name,
            learns,
            method.exchange,
            "yes" if method.private else "no",
            method.keeps,
            method.summary,
        )
    Console().print(table)
    return 0
