"""``proxyfl subgroups``: how a kept model does in groups of a site's own test persons."""

from argparse import ArgumentTypeError, Namespace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proxyfl.cli.options import JSON, flag, option, print_json, repeatable
from proxyfl.federation.subgroups import Score, Subgroup
from proxyfl.measures import title_of
from proxyfl.simulation.subgroups import Subgroups, subgroups

DESCRIPTION = """\
How the model that a client keeps does by sex, age band or another column of its table, and what
joining changes in each group, on the client's own test part. Nothing is sent or written. What is
printed has no noise and is not covered by any epsilon: it is for people who may see the records.
"""

EPILOG = """\
examples:
  proxyfl subgroups runs/a --client north --by sex
  proxyfl subgroups SITE --by sex --by age --bands 40,60    a real site, by sex and by age band
  proxyfl subgroups SITE --by age --bands 65 --json
"""


def _cuts(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ArgumentTypeError(f"expected cut points such as 40,60, got {text!r}") from None


OPTIONS = (
    option("folder RUN", "folder of a finished run, or of a real site", Path),
    repeatable("--by COLUMN", "column of the table that makes the groups", required=True),
    option("--bands CUTS", "cut points of a column of numbers, such as 40,60", _cuts, ()),
    option("--client K", "number or name of the client; not needed if there is only one"),
    option("--method NAME", "which method's model (default: the last that joins)"),
    option("--measure NAME", "the measure (default: the run's)"),
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


def execute(args: Namespace) -> int:
    """Print each group's measures, and a warning for each that falls by joining."""
    result = subgroups(
        args.folder,
        args.by,
        client=args.client,
        bands=args.bands,
        method=args.method,
        measure=args.measure,
        unpickle=args.unpickle,
        trust=args.trust,
    )
    if args.json:
        print_json(result.document())
        return 0
    console = Console()
    for column, groups in result.by.items():
        console.print(_table(result, column, groups))
    for warning in result.warnings():
        console.print(f"Warning: {warning}", markup=False, style="bold")
    for column, groups in result.by.items():
        for each in groups:
            if each.reason:
                console.print(f"{column} {each.name}: not judged, {each.reason}.", markup=False)
    for note in result.notes:
        console.print(note, markup=False, style="dim")
    return 0


def _table(result: Subgroups, column: str, groups: list[Subgroup]) -> Table:
    title = f"{result.client}: {title_of(result.measure)} by {column}, 95 % intervals"
    headings = (column, "persons", result.method, "alone", "gain")
    table = Table(*map(escape, headings), title=escape(title))
    for each in groups:
        gain = _said(each.gain, sign="+")
        shown = f"[bold]{gain}[/]" if each.falls else gain
        persons = str(each.persons)
        table.add_row(escape(each.name), persons, _said(each.joined), _said(each.alone), shown)
    return table


def _said(score: Score | None, sign: str = "") -> str:
    if score is None or score.value is None:
        return "-"
    text = f"{score.value:{sign}.3f}"
    if score.interval is not None:
        low, high = score.interval
        text += f" ({low:{sign}.3f} to {high:{sign}.3f})"
    return text
