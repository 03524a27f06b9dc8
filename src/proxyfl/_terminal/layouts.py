"""Tables that keep their form: of two ways to show something, the fuller one if it fits."""

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table

_ENDLESS = 10_000


def frame(title: str | None = None) -> Table:
    """A table with lines around its cells, where there is room."""
    return Table(title=title, title_justify="left")


def airy(title: str | None = None) -> Table:
    """A table with two spaces between columns and a line below the headings."""
    return Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )


def first_that_fits(console: Console, tables: Iterable[Table]) -> Table:
    """The first of ``tables`` that fits the console uncut and unwrapped; the last if none does."""
    for table in tables:
        if natural_width(console, table) <= console.width:
            break
    return table


def natural_width(console: Console, table: Table) -> int:
    """The width of ``table`` if nothing in it is wrapped or cut; its title does not count."""
    endless = console.options.update(max_width=_ENDLESS, width=_ENDLESS)
    return console.measure(table, options=endless).maximum
