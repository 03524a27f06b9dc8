"""``proxyfl predict``: use a client's private model."""

import csv
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from proxyfl._command import command
from proxyfl.cli.options import JSON, Document, flag, option, print_json, repeatable
from proxyfl.data.sources.inputs import load_inputs
from proxyfl.data.tables.predicting import NamedRows, by_name, by_schema
from proxyfl.errors import RunError
from proxyfl.federation import modelfile
from proxyfl.federation.methods import METHODS
from proxyfl.federation.prevalence import Meaning, headings
from proxyfl.outcomes import survival_of, value_of
from proxyfl.records import folder
from proxyfl.simulation.config import of_run
from proxyfl.tasks import MULTILABEL, REGRESSION, TIME_TO_EVENT, Task, classification

DESCRIPTION = """\
Load a model and apply it to new examples. It comes from a run's folder, from a real site's, or
from what `proxyfl node export SITE EXPORT` wrote.
"""

EPILOG = """\
examples:
  proxyfl predict runs/a --client 3 scan.png
  proxyfl predict runs/a --client hospital-b new.npz --json    x of shape (n, ...) as in training
  proxyfl predict runs/a --client 0 new.csv --model proxy      columns by name, no label needed
  proxyfl predict runs/a --client north new.csv --csv --id patient > predictions.csv
  proxyfl predict SITE new.csv             the model that a real site keeps
  proxyfl predict EXPORT new.csv           a folder that `proxyfl node export SITE EXPORT` wrote
"""

EXPORTED = "private.safetensors"
"""The model's file in what `proxyfl node export` writes."""

OPTIONS = (
    option("run_folder RUN", "folder of a run, of a site, or of an export", Path),
    option("input INPUT", ".npz, .npy, .csv, .parquet or an image", Path),
    option("--client K", "number or name of the client; not needed if there is only one"),
    option(
        "--method NAME", "the method (default: the last that has such a model, not a pooled one)"
    ),
    option("--model", "which of the client's models", str, "private", choices=("private", "proxy")),
    option("--id COLUMN", "the column of a table that names its rows"),
    flag("--csv", "print id, prediction and all probabilities as CSV"),
    flag(
        "--unpickle", "open a private model that is kept as a pickle: it runs the code in the file"
    ),
    repeatable(
        "--trust MODULE",
        "run code of this module or package if the model's file names it as its architecture",
        default=[],
    ),
    JSON,
)


@torch.no_grad()
def execute(args: Namespace) -> int:
    """Print what the model says of each example."""
    path = _exported_model(args) or model_file(
        folder.existing(args.run_folder), args.client, args.method, args.model
    )
    model, about = modelfile.load_model(path, unpickle=args.unpickle, trust=args.trust)
    given = _inputs(args, about)
    task = _task(about)
    meaning = Meaning.read(about)
    outputs = model(given.x)
    if task.is_classification:
        shown = _classes(outputs, task, meaning)
    else:
        shown = SAID[task.kind](outputs, task)
    predictions = [{"id": name, **one} for name, one in zip(given.ids, shown.rows, strict=True)]
    for note in given.notes:
        print(f"proxyfl: {args.input.name}: {note}", file=sys.stderr)
    if args.json:
        document = {"model": about, "predictions": predictions, "notes": list(given.notes)}
        if meaning.of:
            document["probabilities_for"] = meaning.of
            document["prevalence"] = dict(zip(task.names, meaning.prevalence, strict=False))
        print_json(document)
        return 0
    if args.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["id", *shown.columns])
        for row in predictions:
            writer.writerow([row["id"], *_cells(row)])
        return 0
    owner = about.get("client", about.get("site", ""))
    title = escape(f"{about.get('method', 'proxyfl')}, {owner}, {args.model} model")
    table = Table("example", *shown.headings, title=title)
    for row, cells in zip(predictions, shown.cells, strict=True):
        table.add_row(escape(row["id"]), *map(escape, cells))
    console = Console()
    console.print(table)
    if meaning.of:
        console.print(escape(_explain(meaning, task)), soft_wrap=True, highlight=False)
    return 0


def _explain(meaning: Meaning, task: Task) -> str:
    """What the probabilities of a model that learnt with a balance are for, and its classes."""
    decided = "the class is the one that is likeliest if all are equally common"
    if not meaning.prevalence:
        return f"Probabilities are for {meaning.of}, not for how common they are; {decided}."
    shares = zip(task.names, meaning.prevalence, strict=True)
    stated = ", ".join(f"{name} {share:g}" for name, share in shares)
    return f"Probabilities are for {meaning.of} ({stated}); {decided}."


def _task(about: dict[str, str]) -> Task:
    """The task of a model, as its file has it."""
    if "task" not in about:
        return classification(json.loads(about["class_names"]))
    stated = json.loads(about["task"])
    for name in ("names", "range", "intervals"):
        stated[name] = tuple(stated[name])
    return Task(**stated)


def _cells(row: Document) -> list[object]:
    """A prediction as the cells of a CSV line."""
    cells: list[object] = []
    for name, value in row.items():
        if name == "probability" or name == "id":
            continue
        cells += value if isinstance(value, list) else [value]
    return cells


def _exported_model(args: Namespace) -> Path | None:
    """Returns the model file of an export; None for the folder of a run or site."""
    path: Path = args.run_folder / EXPORTED
    if not path.is_file():
        return None
    if args.client or args.method or args.model != "private":
        raise RunError(
            f"{args.run_folder} was written by `proxyfl node export SITE OUT` and holds one model, "
            "the site's private one: leave out --client, --method and --model."
        )
    return path


def _inputs(args: Namespace, about: dict[str, str]) -> NamedRows:
    """The new examples: a table's by the names of its columns, others by their shape."""
    if "schema" in about:
        return by_schema(args.input, about["schema"], ids=args.id)
    if "feature_names" in about and args.input.suffix in (".csv", ".parquet", ".xlsx"):
        features = json.loads(about["feature_names"])
        others = json.loads(about["not_features"])
        return by_name(args.input, features, ids=args.id, others=others)
    x = load_inputs(args.input, tuple(json.loads(about["shape"])))
    return NamedRows(x, [str(number) for number in range(len(x))], ())


@dataclass(frozen=True)
class Said:
    """A model's answer for each example: as a document, and as cells of a table."""

    columns: Sequence[str]
    """The columns of a CSV file, besides the id."""
    headings: Sequence[str]
    rows: Sequence[Document]
    cells: Sequence[Sequence[str]]


def _classes(outputs: Tensor, task: Task, meaning: Meaning) -> Said:
    """Each example's class, its probability, and those of all classes.

    The class is that of the model's own logits, as in every score: a balance is for decisions. The
    probabilities are for the public prevalence, where there is one."""
    rows = []
    cells = []
    decided = outputs.argmax(1).tolist()
    shares = meaning.shifted(outputs).softmax(1).tolist()
    for place, row in zip(decided, shares, strict=True):
        name = task.names[place]
        rows.append(
            {
                "class": name,
                "probability": round(row[place], 6),
                "probabilities": [round(value, 6) for value in row],
            }
        )
        cells.append([name, f"{row[place]:.3f}"])
    columns = ["class", *headings(task.names, meaning)]
    return Said(columns, ["class", *headings(["probability"], meaning)], rows, cells)


def _value(outputs: Tensor, task: Task) -> Said:
    """Each example's value, clipped to the public range."""
    values = value_of(outputs[:, 0].double().numpy(), task).tolist()
    (name,) = task.output_names
    heading = f"{name} ({task.unit})" if task.unit else name
    rows = [{"value": round(value, 6)} for value in values]
    return Said([name], [heading], rows, [[f"{value:.4g}"] for value in values])


def _findings(outputs: Tensor, task: Task) -> Said:
    """The probability of each finding."""
    rows = []
    cells = []
    for row in outputs.sigmoid().tolist():
        rows.append({"probabilities": [round(value, 6) for value in row]})
        cells.append([f"{value:.3f}" for value in row])
    return Said(task.names, task.names, rows, cells)


def _survival(outputs: Tensor, task: Task) -> Said:
    """The probability to be free of the event at the end of each interval."""
    rows = []
    cells = []
    for row in survival_of(outputs.double().numpy()).tolist():
        rows.append({"survival": [round(value, 6) for value in row]})
        cells.append([f"{value:.3f}" for value in row])
    return Said(task.headings, task.headings, rows, cells)


SAID: dict[str, Callable[[Tensor, Task], Said]] = {
    REGRESSION: _value,
    MULTILABEL: _findings,
    TIME_TO_EVENT: _survival,
}
"""What a model of each other task says of new examples."""


def model_file(run: Path, client: str | None, method: str | None, role: str) -> Path:
    """Returns the model file that the arguments mean. The message of an error lists what there is.

    A client's name goes before its number: an institution may be called 7. Without ``client`` the
    run must have only one. A model of everybody's records, which no site can have, is for those
    who name its method.
    """
    listed = reversed(of_run(run).methods)
    methods = [method] if method else sorted(listed, key=_is_pooled)
    for name in methods:
        paths = sorted((run / "models" / name).glob(f"*-{role}.safetensors"))
        if client is None and len(paths) == 1:
            return paths[0]
        if client is None and paths:
            raise RunError(
                f"{run} holds {role} models of {len(paths)} clients: name one with --client. "
                f"It holds: {_models(run)}."
            )
        for path in paths:
            if modelfile.about_model(path).get("client") == client:
                return path
        for path in paths:
            number, _, _ = path.name.partition("-")
            if client is not None and client.isdecimal() and int(number) == int(client):
                return path
    of = f" of client {client!r}" if client is not None else ""
    by = f" for {method}" if method else ""
    raise RunError(
        f"{run} holds no {role} model{of}{by}. It holds: "
        f"{_models(run) or 'none; did the run finish?'} To continue one, "
        f"run: {command('resume', run)}"
    )


def _is_pooled(method: str) -> bool:
    return method in METHODS and METHODS[method].pooled


def _models(run: Path) -> str:
    """The models that a run holds, in words: method and role, and the clients that have one."""
    clients_of: dict[str, list[str]] = {}
    for path in sorted((run / "models").glob("*/*.safetensors")):
        role = path.stem.partition("-")[2]
        client = modelfile.about_model(path).get("client", path.stem)
        clients_of.setdefault(f"{path.parent.name} {role}", []).append(client)
    return "; ".join(f"{kind}: {', '.join(who)}" for kind, who in clients_of.items())
