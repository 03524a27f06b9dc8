"""The options that say how a site's file is written."""

import argparse

from proxyfl.cli.options import option
from proxyfl.data.tables.reading import DECIMALS, SEPARATORS, Dialect

DIALECT = (
    option(
        "--separator",
        "auto recognises it",
        str,
        "auto",
        choices=("auto", *SEPARATORS),
    ),
    option(
        "--decimal", "auto recognises it", str, "auto", choices=("auto", *DECIMALS)
    ),
    option("--encoding NAME", "auto recognises it", str, "auto"),
)


def dialect(args: argparse.Namespace) -> Dialect:
    """The dialect that the options ask for."""
    return Dialect(args.separator, args.decimal, args.encoding)
