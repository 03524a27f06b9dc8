"""Tables of the models that clients keep: every measure with its interval, site by site, on the
common test set and on each site's own; confusion counts; calibration. The numbers are those of
``records.judged``."""

from collections.abc import Callable
from operator import itemgetter

from rich.markup import escape
from rich.table import Table

from proxyfl._terminal.layouts import airy
from proxyfl.measures import title_of
from proxyfl.records.answers import spread
from proxyfl.records.groups import distinct
from proxyfl.records.judged import Judged, judged
from proxyfl.records.run import Run
from proxyfl.tasks import REGRESSION, TIME_TO_EVENT


def measures(run: Run) -> Table:
    """Every measure of every method, as the mean over clients and the range."""
    table = airy("Every measure of the models kept, mean over clients (lowest to highest)")
    table.add_column("measure")
    all_kept = list(judged(run))
    methods = list(dict.fromkeys(one.method for one in all_kept))
    for method in methods:
        table.add_column(escape(method), justify="right", no_wrap=True)
    for where in ("common", "own"):
        here = [one for one in all_kept if one.on == where]
        if where == "own" and here:
            table.add_section()
            table.add_row("each on its own test part:")
        for measure in distinct(map(_defined_measures, here)):
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
    rows: dict[tuple[bool, int, str], list[str]] = {}
    for one in judged(run):
        # Client by client, and the one model of a pooled method at the end.
        place = (one.name == one.method, one.client, one.method)
        cells = rows.setdefault(place, [escape(one.name), escape(one.method)])
        cells.append(_with_interval(one, run.measure))
    for place in sorted(rows, key=itemgetter(0, 1)):
        table.add_row(*rows[place])
    return table


def confusion(run: Run) -> Table:
    """The confusion matrix: counts, and the share of each true class."""
    classes = run.classes
    table = airy("Confusion counts (share of the true class)")
    for column in ("method", "client", "test set", "true class"):
        table.add_column(column, overflow="fold")
    for name in classes:
        table.add_column(f"taken for {escape(name)}", justify="right")
    for one in judged(run):
        about = (escape(one.method), escape(one.name), one.on)
        counted = one.confusion or ()
        rows = zip(classes, counted, one.shares or (), strict=False)
        for label, counts, shares in rows:
            cells = []
            for count, share in zip(counts, shares, strict=True):
                shown = "" if share is None else f" ({share:.0%})"
                cells.append(f"{count}{shown}")
            table.add_row(*about, escape(label), *cells)
    return table


def calibration(run: Run) -> Table:
    """Calibration: predicted and observed shares, in tenths of the probability; of a regression,
    mean values in tenths of the examples; of a time to an event, survival by predicted risk."""
    kind = run.task.get("kind")
    if kind == TIME_TO_EVENT:
        return _survival(run)
    what = "mean value said, mean value" if kind == REGRESSION else "probability said, share"
    table = airy(f"Calibration: {what} that came true")
    for column in ("method", "client", "test set"):
        table.add_column(column, overflow="fold")
    for column in ("said", "came true", "examples"):
        table.add_column(column, justify="right")
    meanings = []
    for one in judged(run):
        about = (escape(one.method), escape(one.name), one.on)
        for said, true, examples in one.calibration:
            table.add_row(*about, f"{said:.3f}", f"{true:.3f}", str(examples))
        if one.calibration and one.probabilities:
            meanings.append(one.probabilities)
    if meanings:
        meant = ", or ".join(dict.fromkeys(meanings))
        table.caption = f"Probabilities are for {escape(meant)}: a balance trained the models."
    return table


def _survival(run: Run) -> Table:
    """Predicted survival, and Kaplan and Meier's with its interval, in thirds by predicted risk."""
    table = airy("Survival by predicted risk: predicted, observed (95 % interval)")
    for column in ("method", "client", "test set", "third"):
        table.add_column(column, overflow="fold")
    for column in ("events", "time", "predicted", "observed"):
        table.add_column(column, justify="right")
    for one in judged(run):
        about = (escape(one.method), escape(one.name), one.on)
        for group in one.risk_groups:
            events = f"{group['events']} of {group['examples']}"
            for time, predicted, observed, low, high in group["points"][1:]:
                shown = f"{observed:.3f} ({low:.3f} to {high:.3f})"
                cells = (group["name"], events, f"{time:g}", f"{predicted:.3f}", shown)
                table.add_row(*about, *cells)
    return table


SHOWN: dict[str, Callable[[Run], Table]] = {
    "measures": measures,
    "sites": sites,
    "confusion": confusion,
    "calibration": calibration,
}
"""The views of `proxyfl table --show`."""


def _defined_measures(kept: Judged) -> list[str]:
    """The measures in which a model has a score."""
    defined = []
    for name, value in kept.measures.items():
        if value is not None:
            defined.append(name)
    return defined


def _over_clients(all_kept: list[Judged], method: str, measure: str) -> str:
    values = []
    for one in all_kept:
        value = one.measures.get(measure)
        if one.method == method and value is not None:
            values.append(value)
    if not values:
        return ""
    seen = spread(values)
    if seen.n == 1:
        return f"{seen.mean:.3f}"
    return f"{seen.mean:.3f} ({seen.low:.3f} to {seen.high:.3f})"


def _with_interval(kept: Judged, measure: str) -> str:
    value = kept.measures.get(measure)
    if value is None:
        return "not defined"
    ends = kept.intervals.get(measure)
    if ends is None:
        return f"{value:.3f}"
    return f"{value:.3f} ({ends[0]:.3f} to {ends[1]:.3f})"
