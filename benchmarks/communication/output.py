"""What the three commands share: their common options, files, figures and tables."""

import argparse
import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from proxyfl.errors import ConfigError, RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEGABIT = 1e6 / 8
"""Bytes."""

Row = Mapping[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that all three commands take."""
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the result as JSON, and CSV beside it"
    )
    parser.add_argument(
        "--figure", type=Path, metavar="NAME", help="draw it, as NAME.png (some draw NAME-....png)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document and nothing else"
    )


def save(args: argparse.Namespace, document: Row, rows: Sequence[Row]) -> None:
    """Write or print the result as the options say: ``document`` as JSON, ``rows`` as CSV."""
    if args.out is not None:
        try:
            _write(args.out, document, rows)
        except OSError as error:
            raise RunError(f"Cannot write {args.out}: {error.strerror or error}.") from error
    if args.json:
        json.dump(document, sys.stdout)
        print()


def draw(path: Path, figure: Callable[[ModuleType], "Figure"]) -> None:
    """Save the figure that ``figure`` makes with the module of plots."""
    try:
        from benchmarks.communication import plots
    except ImportError as error:
        raise ConfigError(
            f"Figures need matplotlib: {error}. Install it with `pip install matplotlib`."
        ) from error
    plots.save(figure(plots), path)


def beside(path: Path, more: str) -> Path:
    """The name of a second figure."""
    return path.with_name(f"{path.name}-{more}")


def show(columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Print these columns as a table."""
    table = Table(*(name.replace("_", " ") for name in columns))
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in columns))
    Console().print(table)


def words(text: str) -> list[str]:
    """The parts of a list such as "mlp,cnn1"."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(option: str, text: str) -> list[int]:
    """The whole numbers of a list such as "2,4,8"."""
    try:
        return [int(word) for word in words(text)]
    except ValueError as error:
        raise ConfigError(
            f"Expected whole numbers such as 2,4,8 for {option}, got {text!r}."
        ) from error


def _write(path: Path, document: Row, rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    with path.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _cell(value: Any) -> str:
    if value is None:
        return "never"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.3g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)
