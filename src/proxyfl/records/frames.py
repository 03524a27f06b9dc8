"""Runs as data frames and ready plots for notebooks. The home of pandas among the readers.

    runs = proxyfl.load("runs/a", "runs/b")     # or the folder that holds them
    runs.gains                                  # one row per run, method and client
    runs.plot("accuracy")                       # an SVG figure

Guarantees:
    * reading changes nothing in a run's folder, and works while the run is under way or after it
      was interrupted;
    * settings are taken as they stand in ``config.toml``, so a run of another release can be read;
    * no data frame has an epsilon without its kind next to it; where there is no bound it is
      infinite, not absent.
"""

import csv
import io
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl import _validate, measures
from proxyfl._validate import choice
from proxyfl.errors import ConfigError, InputError
from proxyfl.records import folder
from proxyfl.records.answers import Question, answer
from proxyfl.records.groups import Group, distinct, groups
from proxyfl.records.reading import find, read
from proxyfl.records.row import Row, measures_in
from proxyfl.records.run import Run
from proxyfl.tasks import CLASSIFICATION

if TYPE_CHECKING:
    import pandas

    from proxyfl.records.plots import Figure


@dataclass(frozen=True)
class Runs:
    """One or more runs, as data frames and plots (extra ``proxyfl[report]``)."""

    runs: tuple[Run, ...]

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def __repr__(self) -> str:
        return f"Runs({', '.join(str(run.path) for run in self.runs)})"

    @cached_property
    def metrics(self) -> "pandas.DataFrame":
        """Every line of every metrics.jsonl, with the columns ``run`` and ``seed`` in front."""
        return _frame(_metric_rows(self.runs))

    @cached_property
    def gains(self) -> "pandas.DataFrame":
        """Per run, method and client: what the kept model reaches by every measure, what it gains
        over ``alone`` (``gain`` by the run's own measure), and the epsilon."""
        rows: list[Row] = []
        for group in groups(self.runs):
            for method in group.methods:
                rows += _method_gains(group, method)
        return _frame(rows)

    @cached_property
    def ledger(self) -> "pandas.DataFrame":
        """Every charge on every ledger."""
        return _frame(_ledger_rows(self.runs))

    def plot(self, what: str = "accuracy", *, measure: str | None = None) -> "Figure":
        """A ready figure: ``accuracy`` (or another measure) over rounds, ``gain`` per client, or
        ``epsilon`` over rounds."""
        choice("plot", what, ("accuracy", "gain", "epsilon"))
        measure = self.runs[0].measure if measure is None else measure
        choice("measure", measure, measures.names())
        try:
            from proxyfl.records import plots
        except ImportError as error:
            raise _missing(error) from error
        return plots.PLOTS[what](self, measure)


def load(*paths: Path | str) -> Runs:
    """The runs in the folders given; a folder that holds runs stands for all of them."""
    for path in paths:
        _validate.path("the run's folder", path)
    return Runs(tuple(read(path) for path in find(paths)))


def metrics_csv(path: Path) -> str:
    """A run's metrics as CSV: one line per method, client and round; empty where a round was not
    evaluated."""
    rows = list(folder.read_metrics(path))
    columns = distinct(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _metric_rows(runs: Iterable[Run]) -> Iterator[Row]:
    for run in runs:
        for row in run.rows:
            bounded = dict(row)
            for key in ("epsilon_rdp", "epsilon_pld"):
                if row.get(key) is None:
                    bounded[key] = math.inf
            yield {"run": run.name, "seed": run.seed, **bounded}


def _method_gains(group: Group, method: str) -> Iterator[Row]:
    finals = chain.from_iterable(run.finals(method) for run in group.runs)
    answers = {}
    asked = measures_in(finals)
    if not asked or "accuracy" in asked:
        asked = [*measures.of(CLASSIFICATION), *asked]
    for measure in dict.fromkeys(asked):
        answers[measure] = answer(group, method, Question(measure))
    for number, run in enumerate(group.runs):
        if method not in run.methods:
            continue
        for client, name in run.clients.items():
            holder = run.holder(method, client)
            row: Row = {
                "run": run.name,
                "seed": run.seed,
                "method": method,
                "client": client,
                "name": name,
                "model": run.method(method).keeps,
            }
            gains: Row = {}
            for measure, one in answers.items():
                row[measure] = one and one.scores.get((number, holder))
                gains[f"{measure}_gain"] = one and one.gains.get((number, client))
            row |= gains
            row["gain"] = gains.get(f"{run.measure}_gain")
            own = answers.get(run.measure)
            after = own.rounds.get(number) if own else None
            spent = run.spent(method, holder, after=after)
            if spent is not None:
                row["round"] = run.progress[method] if after is None else after
                yield row | {
                    "epsilon": spent.best,
                    "delta": spent.delta,
                    "epsilon_kind": str(spent.kind),
                    "epsilon_unit": str(spent.unit),
                }


def _ledger_rows(runs: Iterable[Run]) -> Iterator[Row]:
    for run in runs:
        for method, client, header, charges in run.ledgers():
            about = {
                "run": run.name,
                "method": method,
                "client": client,
                "name": header.get("client"),
                "kind": header.get("kind"),
                "delta": header.get("delta"),
            }
            for charge in charges:
                yield about | charge


def _frame(rows: Iterable[Row]) -> "pandas.DataFrame":
    try:
        import pandas
    except ImportError as error:
        raise _missing(error) from error
    return pandas.DataFrame(list(rows))


def _missing(error: ImportError) -> InputError:
    return ConfigError(
        f"Data frames and plots need {error.name}, which is not installed. "
        "Install the extra: pip install 'proxyfl[report]'."
    )
