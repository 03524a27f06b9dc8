"""``proxyfl effects``: odds ratios behind a linear proxy, with intervals that know the noise."""

from argparse import ArgumentTypeError, Namespace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proxyfl._files import write_json, write_text
from proxyfl.cli.options import JSON, flag, option, print_json, repeatable
from proxyfl.records.effects import FILE, Effects

DESCRIPTION = """\
Odds ratios per column of the table, with 95 % intervals, behind the linear proxy of a finished run
or of a real site in a federation of masked sums. The proxy's own coefficients are none: clipping
can double them, and noise is in them. The public mechanism is simulated and turned around. That
costs no privacy.
"""

EPILOG = """\
examples:
  proxyfl effects runs/a --csv effects.csv --plot effects.svg
  proxyfl effects runs/a --report                 keep it for proxyfl report runs/a
  proxyfl effects runs/a --inputs public.csv      from public facts and the proxy alone
  proxyfl effects SITE --records south=240 --records east=182
"""


def _size(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not name or not number.isdecimal():
        raise ArgumentTypeError(f"expected NAME=RECORDS such as south=240, got {text!r}")
    return name, int(number)


OPTIONS = (
    option("folder RUN", "folder of a finished run, or of a real site", Path),
    option("--client K", "number or name of the client whose proxy it is (default: the first)"),
    option("--method NAME", "which method's proxy (default: the last that shares one)"),
    flag("--own-inputs", "let the client's own inputs stand for all, as a real site must"),
    option("--inputs FILE", "table by the study's schema whose rows stand for all sites'", Path),
    repeatable(
        "--records NAME=N", "of a real site: training records of another member", type=_size
    ),
    option("--csv FILE", "write the table as CSV", Path),
    option("--plot FILE", "write the intervals as SVG", Path),
    flag("--report", f"keep the table as {FILE} in the folder, where the report finds it"),
    option("--draws N", "simulated proxies behind the intervals", int, 2000),
    option("--seed N", "seed of the simulation", int, 0),
    JSON,
)


def execute(args: Namespace) -> int:
    """Print the odds ratios, and write them where they were asked for."""
    from proxyfl.simulation.effects import effects

    table = effects(
        args.folder,
        client=args.client,
        method=args.method,
        own_inputs=args.own_inputs,
        inputs=args.inputs,
        records=dict(args.records or ()),
        draws=args.draws,
        seed=args.seed,
    )
    if args.csv is not None:
        write_text(args.csv, table.csv())
    if args.plot is not None:
        table.figure().save(args.plot)
    if args.report:
        write_json(args.folder / FILE, table.document())
    if args.json:
        print_json(table.document())
        return 0
    console = Console()
    console.print(_table(table))
    for note in table.notes:
        console.print(note, markup=False, style="dim")
    return 0


def _table(table: Effects) -> Table:
    title = f"{table.client}, {table.method}: odds of {table.event} against {table.otherwise}"
    shown = Table("column", "change", "odds ratio (95 %)", title=escape(title))
    for each in table.effects:
        shown.add_row(escape(each.column), escape(each.change), escape(str(each)))
    return shown
