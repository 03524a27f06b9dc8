"""Tables of the models that clients keep: every measure with its interval, site by site, on the
common test set and on each site's own; confusion counts; calibration. The numbers are those of
``records.judged``."""

from collections.abc import Callable, Iterator

from rich.markup import escape
from rich.table import Table

from proxyfl.cli.terminal.layouts import airy
from proxyfl.measures import title_of
from proxyfl.records.answers import spread
from proxyfl.records.groups import distinct
from proxyfl.records.judged import ClientJudged, Judged, judged
from proxyfl.records.run import Run


def measures(run: Run) -> Table:
    """Every measure of every method, as the mean over clients and the range."""
    table = airy(
        "Every measure of the models kept, mean over clients (lowest to highest)"
    )
    table.add_column("measure")
    found = list(_each(run))
    methods = list(dict.fromkeys(one.method for one, _, _ in found))
    for method in methods:
        table.add_column(escape(method), justify="right", no_wrap=True)
    for where in ("common", "own"):
        here = [(one.method, on) for one, place, on in found if place == where]
        if where == "own" and here:
            table.add_section()
            table.add_row("each on its own test part:")
        for measure in distinct(_defined(on) for _, on in here):
            cells = [_over_clients(here, method, measure) for method in methods]
            table.add_row(title_of(measure), *cells)
    return table


def sites(run: Run) -> Table:
    """The run's measure client by client, on both test sets, with intervals."""
    table = airy(f"Client by client: {title_of(run.measure)} (95 % interval)")
    for column in ("client", "method"):
        table.add_column(column, overflow="fold")
    for column in ("common test set", "its own test part"):
        table.add_column(column, justify="right", no_wrap=True)
    # Client by client, and the one model of a pooled method at the end.
    found = sorted(
        judged(run), key=lambda one: (one.name == one.method, one.client)
    )
    for one in found:
        cells = [_with_interval(one.common, run.measure)]
        cells.append(
            "" if one.own is None else _with_interval(one.own, run.measure)
        )
        table.add_row(escape(one.name), escape(one.method), *cells)
    return table


def confusion(run: Run) -> Table:
    """What was taken for what: counts, and the share of each true class."""
    classes = run.classes
    table = airy("Confusion counts (share of the true class)")
    for column in ("method", "client", "test set", "true class"):
        table.add_column(column, overflow="fold")
    for name in classes:
        table.add_column(f"taken for {escape(name)}", justify="right")
    for one, where, found in _each(run):
        shares = found.shares or []
        for label, counts, parts in zip(
            classes, found.confusion or [], shares, strict=False
        ):
            cells = []
            for count, part in zip(counts, parts, strict=True):
                cells.append(
                    str(count) if part is None else f"{count} ({part:.0%})"
                )
            table.add_row(
                escape(one.method), escape(one.name), where, escape(label), *cells
            )
    return table


def calibration(run: Run) -> Table:
    """What the models say, and what came true, in tenths of the probability."""
    table = airy("Calibration: probability said, share that came true")
    for column in ("method", "client", "test set"):
        table.add_column(column, overflow="fold")
    for column in ("said", "came true", "examples"):
        table.add_column(column, justify="right")
    for one, where, found in _each(run):
        for said, true, examples in found.calibration:
            cells = (f"{said:.3f}", f"{true:.3f}", str(examples))
            table.add_row(escape(one.method), escape(one.name), where, *cells)
    return table


SHOWN: dict[str, Callable[[Run], Table]] = {
    "measures": measures,
    "sites": sites,
    "confusion": confusion,
    "calibration": calibration,
}
"""What `proxyfl table --show` can show of each run."""


def _each(run: Run) -> Iterator[tuple[ClientJudged, str, Judged]]:
    for one in judged(run):
        yield one, "common", one.common
        if one.own is not None:
            yield one, "own", one.own


def _defined(found: Judged) -> list[str]:
    """The measures in which a model has a score."""
    return [name for name, value in found.measures.items() if value is not None]


def _over_clients(
    found: list[tuple[str, Judged]], method: str, measure: str
) -> str:
    values = []
    for name, on in found:
        value = on.measures.get(measure)
        if name == method and value is not None:
            values.append(value)
    if not values:
        return ""
    seen = spread(values)
    if seen.n == 1:
        return f"{seen.mean:.3f}"
    return f"{seen.mean:.3f} ({seen.low:.3f} to {seen.high:.3f})"


def _with_interval(found: Judged, measure: str) -> str:
    value = found.measures.get(measure)
    if value is None:
        return "not defined"
    ends = found.intervals.get(measure)
    if ends is None:
        return f"{value:.3f}"
    return f"{value:.3f} ({ends[0]:.3f} to {ends[1]:.3f})"
