"""``proxyfl methods``: the table of methods."""

import argparse

from rich.console import Console
from rich.table import Table

from proxyfl.cli.options import JSON, print_json
from proxyfl.federation.methods import METHODS

DESCRIPTION = """\
Every method is one row: what learns locally, with or without DP, and how models mix.
"""

EPILOG = """\
examples:
  proxyfl methods
  proxyfl methods --json
  proxyfl run --set methods=alone,fml,proxyfl
"""


OPTIONS = (JSON,)


def execute(args: argparse.Namespace) -> int:
    """Print the table."""
    if args.json:
        document = {name: method.written() for name, method in METHODS.items()}
        print_json(document)
        return 0
    table = Table("method", "learns", "exchange", "DP", "kept model", "in words", title="Methods")
    for name, method in METHODS.items():
        learns = f"{method.learner}, pooled data" if method.pooled else str(method.learner)
        dp = "yes" if method.dp else "no"
        table.add_row(name, learns, str(method.exchange), dp, method.keeps, method.summary)
    Console().print(table)
    return 0
