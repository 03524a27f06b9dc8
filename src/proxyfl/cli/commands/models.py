"""``proxyfl models``: the architectures by name, and what each costs for a given kind of data."""

import argparse
import json
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from proxyfl.errors import ModelError
from proxyfl.models import MODELS, build, parameter_count
from proxyfl.privacy.validation import check_private_trainable

_EPILOG = """\
examples:
  proxyfl models                                              for 28x28 grey images and ten classes
  proxyfl models --shape 3x80x100 --classes 8                 for endoscopy images
  proxyfl models --shape 30 --classes 2 --json                for a table with 30 features
  proxyfl models my_models:wide --shape 1x28x28               your own: wide(shape, classes) in my_models.py
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "models",
        help="the model architectures, their sizes, and which may be a proxy",
        description="List models by name with the number of parameters they have for your data. "
        "Every client may have\n"
        "another private model; all clients share one proxy architecture. A proxy of few "
        "parameters is\n"
        "cheap to send and suffers less from the noise that protects it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="MODEL", help="only these: names, or package.module:factory"
    )
    parser.add_argument(
        "--shape", default="1x28x28", help="shape of one example, channels first (default 1x28x28)"
    )
    parser.add_argument(
        "--classes", type=int, default=10, metavar="N", help="number of classes (default 10)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document and nothing else"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the table; 0 unless the shape or a name cannot be read."""
    shape = _shape(arguments.shape)
    if arguments.classes < 1:
        raise ModelError(f"Expected --classes >= 1, got {arguments.classes}.")
    rows = [_row(name, shape, arguments.classes) for name in arguments.names or MODELS]
    if arguments.json:
        print(json.dumps({"shape": list(shape), "classes": arguments.classes, "models": rows}))
    else:
        _show(rows, shape, arguments.classes, Console())
    return 0


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.lower().split("x")
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise ModelError(
            f"Expected --shape as whole numbers joined by x, such as 3x32x32 or 30, got {text!r}."
        )
    return tuple(map(int, sizes))


def _row(name: str, shape: tuple[int, ...], classes: int) -> dict[str, Any]:
    """What is known of one model. A built-in one that does not fit is a row; the user's own that
    fails is an error."""
    row: dict[str, Any] = {
        "name": name,
        "description": MODELS[name].description if name in MODELS else "your own",
        "parameters": None,
        "bytes_per_round": None,
        "proxy": False,
        "problem": None,
    }
    try:
        model = build(name, shape=shape, classes=classes, seed=0)
    except ModelError as problem:
        if name not in MODELS:
            raise
        return row | {"problem": str(problem)}
    row |= {"parameters": parameter_count(model), "bytes_per_round": 4 * parameter_count(model)}
    try:
        check_private_trainable(model, shape)
    except ModelError as problem:
        return row | {"problem": str(problem)}
    return row | {"proxy": True}


def _show(
    rows: list[dict[str, Any]], shape: tuple[int, ...], classes: int, console: Console
) -> None:
    table = Table(
        Column("name", no_wrap=True),
        Column("parameters", justify="right", no_wrap=True),
        Column("bytes a round", justify="right", no_wrap=True),
        "proxy",
        "description",
        title=f"Models for examples of {'x'.join(map(str, shape))} and {classes} classes",
    )
    for row in rows:
        fits = row["parameters"] is not None
        # That image models do not fit a table needs no explanation in every row; --json has it.
        explained = row["problem"] and (fits or len(shape) == 3)
        table.add_row(
            escape(row["name"]),
            f"{row['parameters']:,}" if fits else "does not fit",
            f"{row['bytes_per_round']:,}" if fits else "-",
            "yes" if row["proxy"] else "no",
            escape(row["description"] + (f". {row['problem']}" if explained else "")),
        )
    console.print(table)
    console.print(
        "bytes a round: what a client sends to one peer if this is the proxy (4 bytes a "
        "parameter).\n"
        "Your own: package.module:factory, called as factory(shape, classes).",
        soft_wrap=True,
    )
