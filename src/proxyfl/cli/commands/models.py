"""``proxyfl models``: the architectures by name, and what each costs for a given kind of data."""

import argparse

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from proxyfl.cli.options import JSON, Document, option, print_json
from proxyfl.errors import ModelError
from proxyfl.models import MODELS, build, parameter_count
from proxyfl.privacy.perexample.validation import checked_clipper

DESCRIPTION = """\
List models by name with the number of parameters they have for your data. Every client may have
another private model; all clients share one proxy architecture. A proxy of few parameters is cheap
to send and suffers less from the noise that protects it.
"""

EPILOG = """\
examples:
  proxyfl models                                        for 28x28 grey images and ten classes
  proxyfl models --shape 3x80x100 --classes 8           for endoscopy images
  proxyfl models --shape 30 --classes 2 --json          for a table with 30 features
  proxyfl models my_models:wide --shape 1x28x28         your own: wide(shape, classes)
"""

_LEGEND = """\
bytes a round: what a client sends to one peer if this is the proxy (4 bytes a parameter).
Your own: package.module:factory, called as factory(shape, classes)."""


OPTIONS = (
    option("names MODEL", "only these: names, or package.module:factory", nargs="*"),
    option("--shape", "shape of one example, channels first", str, "1x28x28"),
    option("--classes N", "number of classes", int, 10),
    JSON,
)


def execute(args: argparse.Namespace) -> int:
    """Print the table; 0 unless the shape or a name cannot be read."""
    shape = _shape(args.shape)
    if args.classes < 1:
        raise ModelError(f"Expected --classes >= 1, got {args.classes}.")
    rows = [_row(name, shape, args.classes) for name in args.names or MODELS]
    if args.json:
        print_json({"shape": list(shape), "classes": args.classes, "models": rows})
    else:
        _show(rows, shape, args.classes, Console())
    return 0


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.lower().split("x")
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        expected = "Expected --shape as whole numbers joined by x, such as 3x32x32 or 30"
        raise ModelError(f"{expected}, got {text!r}.")
    return tuple(map(int, sizes))


def _row(name: str, shape: tuple[int, ...], classes: int) -> Document:
    """One model's row.

    A built-in one that does not fit is a row; the user's own that fails is an error."""
    row: Document = {
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
    count = parameter_count(model)
    row |= {"parameters": count, "bytes_per_round": 4 * count}
    try:
        checked_clipper(model, shape)
    except ModelError as problem:
        return row | {"problem": str(problem)}
    return row | {"proxy": True}


def _show(rows: list[Document], shape: tuple[int, ...], classes: int, console: Console) -> None:
    table = Table(
        Column("name", no_wrap=True),
        Column("parameters", justify="right", no_wrap=True),
        Column("bytes a round", justify="right", no_wrap=True),
        "proxy",
        "description",
        title=f"Models for examples of {'x'.join(map(str, shape))} and {classes} classes",
    )
    for row in rows:
        parameters, size = "does not fit", "-"
        fits = row["parameters"] is not None
        if fits:
            parameters, size = (f"{row['parameters']:,}", f"{row['bytes_per_round']:,}")
        description = row["description"]
        # That image models do not fit a table needs no explanation in every row; --json has it.
        if row["problem"] and (fits or len(shape) == 3):
            description += f". {row['problem']}"
        proxy = "yes" if row["proxy"] else "no"
        table.add_row(escape(row["name"]), parameters, size, proxy, escape(description))
    console.print(table)
    console.print(_LEGEND, soft_wrap=True)
