"""Tables that keep their form in a narrow terminal: of several ways to show something, the fullest
that fits."""

from collections.abc import Callable, Iterable

from rich import box
from rich.console import Console
from rich.table import Table

_ENDLESS = 10_000


def framed(title: str | None = None) -> Table:
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


def tight(title: str | None = None) -> Table:
    """The same with one space."""
    return Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=0,
    )


FRAMES: tuple[Callable[[str | None], Table], ...] = (framed, airy, tight)
"""From the one that reads best to the one that fits best."""


def fitting(console: Console, tables: Iterable[Table]) -> Table:
    """The first of ``tables`` (at least one) that fits the console uncut and unwrapped; the last if
    none does."""
    for table in tables:
        if natural_width(console, table) <= console.width:
            break
    return table


def natural_width(console: Console, table: Table) -> int:
    """How wide ``table`` is if nothing in it is wrapped or cut; its title and caption do not
    count."""
    return console.measure(
        table, options=console.options.update(max_width=_ENDLESS, width=_ENDLESS)
    ).maximum
