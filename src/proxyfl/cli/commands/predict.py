"""``proxyfl predict``: use a client's private model."""

import argparse
import json
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proxyfl import data
from proxyfl.errors import RunError
from proxyfl.federation import modelfile
from proxyfl.records import folder
from proxyfl.simulation.config import of_run

_EPILOG = """\
examples:
  proxyfl predict runs/a --client 3 scan.png
  proxyfl predict runs/a --client hospital-b new.npz --json     an array x of shape (n, ...) as in training
  proxyfl predict runs/a --client 0 new.csv --model proxy       numeric columns, no label column needed
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "predict",
        help="predict with a client's private model from a finished run",
        description="Load a client's model from a run's folder and apply it to new examples.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=predict)


@torch.no_grad()
def predict(args: argparse.Namespace) -> int:
    """Print each example's class and its probability."""
    path = model_file(folder.existing(args.run_folder), args.client, args.method, args.model)
    model, about = modelfile.load_model(path)
    names: list[str] = json.loads(about["class_names"])
    x = data.load_inputs(args.input, tuple(json.loads(about["shape"])))
    probabilities = model(x).softmax(1)
    best = probabilities.max(1)
    if args.json:
        rows = [
            {
                "class": names[c],
                "probability": round(p, 6),
                "probabilities": [round(v, 6) for v in all_],
            }
            for p, c, all_ in zip(
                best.values.tolist(), best.indices.tolist(), probabilities.tolist(), strict=True
            )
        ]
        print(json.dumps({"model": about, "predictions": rows}))
        return 0
    title = escape(f"{about['method']}, {about['client']}, {args.model} model")
    table = Table("example", "class", "probability", title=title)
    for i, (p, c) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
        table.add_row(str(i), escape(names[c]), f"{p:.3f}")
    Console().print(table)
    return 0


def model_file(run: Path, client: str, method: str | None, role: str) -> Path:
    """The model file that the arguments mean; the message of an error lists what there is.

    A client's name goes before its number: an institution may be called 7.
    """
    config = of_run(run)
    for name in [method] if method else reversed(config.methods):
        paths = sorted((run / "models" / name).glob(f"*-{role}.safetensors"))
        named = [path for path in paths if modelfile.about_model(path).get("client") == client]
        numbered = [
            path
            for path in paths
            if client.isdecimal() and path.name.split("-")[0] == f"{int(client):03d}"
        ]
        if found := (*named, *numbered):
            return found[0]
    there = sorted(str(p.relative_to(run)) for p in (run / "models").glob("*/*.safetensors"))
    raise RunError(
        f"{run} holds no {role} model of client {client!r}{f' for {method}' if method else ''}. "
        f"It holds: {', '.join(there) or 'none; did the run finish?'}."
    )
