"""The options that say how a site's file is written."""

import argparse

from proxyfl.data.tables.reading import DECIMALS, SEPARATORS, Dialect


def add_dialect(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    auto = "(default: recognised)"
    parser.add_argument(
        "--separator", choices=("auto", *SEPARATORS), default="auto", help=auto
    )
    parser.add_argument(
        "--decimal", choices=("auto", *DECIMALS), default="auto", help=auto
    )
    parser.add_argument("--encoding", default="auto", metavar="NAME", help=auto)


def dialect(args: argparse.Namespace) -> Dialect:
    """The dialect that the options ask for."""
    return Dialect(args.separator, args.decimal, args.encoding)
