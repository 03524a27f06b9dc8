"""``proxyfl audit --membership``: who was in the data, by likelihood ratio."""

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from proxyfl._files import write_json
from proxyfl._validate import whole
from proxyfl.audit import membership, shadows
from proxyfl.cli.options import Document, flag, option, print_json
from proxyfl.cli.terminal.spinner import spinner
from proxyfl.records.reading import ADDITIONS
from proxyfl.simulation.config import Config

SHADOWS = 32
RECORD = "shadows.jsonl"


OPTIONS = (
    flag("--membership", "membership inference with shadow federations instead"),
    option(
        "--shadows K", "shadow federations; more resolve lower rates", int, SHADOWS
    ),
    option(
        "--out FOLDER",
        "where federations and result are kept (default: the run's folder); run again to "
        "continue",
        Path,
    ),
)


def execute(args: argparse.Namespace, config: Config, run: Path | None) -> int:
    """Train, attack and print."""
    whole("shadows", args.shadows, at_least=membership.FEWEST_SHADOWS)
    folder: Path | None = args.out or run
    record = None if folder is None else folder / RECORD
    with spinner(
        "Training shadow federations", total=args.shadows, quiet=args.json
    ) as progress:
        trained = shadows.train(
            config,
            args.shadows,
            client=args.client,
            record=record,
            progress=progress,
        )
    curves = membership.attack(trained)
    found = membership.as_dict(curves, federations=len(trained), client=args.client)
    if folder is not None:
        write_json(folder / ADDITIONS["membership"], found)
    if args.json:
        print_json(found)
    else:
        _show(found, Console(highlight=False))
    return 0


def _show(found: Document, console: Console) -> None:
    table = Table("target", "TPR at 0.1 % FPR", "TPR at 1 % FPR", "AUC")
    for row in found["targets"]:
        table.add_row(
            row["target"],
            f"{row['tpr_at_0.001']:.2%}",
            f"{row['tpr_at_0.01']:.2%}",
            f"{row['auc']:.3f}",
        )
    console.print(table)
    row = found["targets"][0]
    console.print(
        f"Client {found['client']}, {found['federations']} federations: {row['members']} scores of "
        f"members, {row['non_members']} of others."
    )
    if row["non_members"] < 1000:
        console.print(
            "Too few to resolve 0.1 %: the rate is at no false positive. Raise --shadows."
        )
