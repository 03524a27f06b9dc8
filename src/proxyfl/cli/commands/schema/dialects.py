"""The options that say how a site's file is written."""

import argparse

from proxyfl.cli.options import option
from proxyfl.data.tables.reading import DECIMALS, SEPARATORS, Dialect


def add_dialect(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    auto = "auto recognises it"
    option(parser, "--separator", auto, str, "auto", choices=("auto", *SEPARATORS))
    option(parser, "--decimal", auto, str, "auto", choices=("auto", *DECIMALS))
    option(parser, "--encoding NAME", auto, str, "auto")


def dialect(args: argparse.Namespace) -> Dialect:
    """The dialect that the options ask for."""
    return Dialect(args.separator, args.decimal, args.encoding)
