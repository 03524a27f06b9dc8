"""``proxyfl predict``: use a client's private model."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from proxyfl import data
from proxyfl.cli.commands import add_json, opening
from proxyfl.errors import RunError
from proxyfl.federation import modelfile
from proxyfl.records import folder
from proxyfl.simulation.config import of_run

if TYPE_CHECKING:
    from proxyfl.cli.commands import Commands

DESCRIPTION = """\
Load a client's model from a run's folder and apply it to new examples.
"""

EPILOG = """\
examples:
  proxyfl predict runs/a --client 3 scan.png
  proxyfl predict runs/a --client hospital-b new.npz --json    x of shape (n, ...) as in training
  proxyfl predict runs/a --client 0 new.csv --model proxy      numeric columns, no label needed
"""


def add(commands: "Commands") -> None:
    """Add the command to the program."""
    parser = opening(commands, "predict", execute, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument(
        "input", type=Path, metavar="INPUT", help=".npz, .npy, .csv, .parquet or an image"
    )
    parser.add_argument("--client", required=True, metavar="K", help="number or name of the client")
    parser.add_argument(
        "--method",
        metavar="NAME",
        help="which method's model (default: the last that has such a model)",
    )
    parser.add_argument(
        "--model", choices=("private", "proxy"), default="private", help="default: private"
    )
    add_json(parser)


@torch.no_grad()
def execute(args: argparse.Namespace) -> int:
    """Print each example's class and its probability."""
    path = model_file(folder.existing(args.run_folder), args.client, args.method, args.model)
    model, about = modelfile.load_model(path)
    x = data.load_inputs(args.input, tuple(json.loads(about["shape"])))
    probabilities = model(x).softmax(1)
    names: list[str] = json.loads(about["class_names"])
    if args.json:
        print(json.dumps({"model": about, "predictions": _predictions(probabilities, names)}))
        return 0
    title = escape(f"{about['method']}, {about['client']}, {args.model} model")
    table = Table("example", "class", "probability", title=title)
    for number, row in enumerate(_predictions(probabilities, names)):
        table.add_row(str(number), escape(row["class"]), f"{row['probability']:.3f}")
    Console().print(table)
    return 0


def _predictions(probabilities: Tensor, names: list[str]) -> list[dict[str, Any]]:
    """Each example's class, its probability, and those of all classes."""
    rows = []
    for row in probabilities.tolist():
        best = max(row)
        rows.append(
            {
                "class": names[row.index(best)],
                "probability": round(best, 6),
                "probabilities": [round(value, 6) for value in row],
            }
        )
    return rows


def model_file(run: Path, client: str, method: str | None, role: str) -> Path:
    """The model file that the arguments mean; the message of an error lists what there is.

    A client's name goes before its number: an institution may be called 7.
    """
    methods = [method] if method else reversed(of_run(run).methods)
    for name in methods:
        paths = sorted((run / "models" / name).glob(f"*-{role}.safetensors"))
        for path in paths:
            if modelfile.about_model(path).get("client") == client:
                return path
        for path in paths:
            if client.isdecimal() and path.name.split("-")[0] == f"{int(client):03d}":
                return path
    there = sorted(str(p.relative_to(run)) for p in (run / "models").glob("*/*.safetensors"))
    by = f" for {method}" if method else ""
    raise RunError(
        f"{run} holds no {role} model of client {client!r}{by}. It holds: "
        f"{', '.join(there) or 'none; did the run finish?'}."
    )
