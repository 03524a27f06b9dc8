"""Proposals for what a site has to declare: how many examples, which delta, the form of its file.

A proposal is for the operator to judge and to write down. Nothing here is computed at a start of
the site: a number that were counted anew each time would follow from the data.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from proxyfl.data import sources
from proxyfl.data.sources import SOURCES
from proxyfl.data.tables import reading
from proxyfl.data.tables.databases import is_url
from proxyfl.errors import ProxyFLError
from proxyfl.node.members.site import Data, Privacy
from proxyfl.privacy import accounting
from proxyfl.privacy.accounting import Segment
from proxyfl.privacy.coalition import Coalition
from proxyfl.privacy.guarantee import upward
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.sampling import cautious_delta, public_number

_TABLES = (".csv", ".parquet", ".xlsx")
_LARGEST_NOISE = 1e4


def privacy(examples: int | None) -> Privacy:
    """The privacy settings of a new site that declares ``examples`` examples; if None, its operator
    is still to declare a number."""
    if examples is None:
        return Privacy()
    return Privacy(delta=cautious_delta(examples), examples=examples)


def locate(source: str, folder: Path) -> tuple[str, str]:
    """``source`` as site.toml names it, by a path from the site's folder, and a line on where it
    was looked for, if that may surprise.

    A file that lies in the current folder and not in the site's is named from there: the shell
    completes such names."""
    is_path = source not in SOURCES and not is_url(source) and not Path(source).is_absolute()
    if not is_path or ":" in source or (folder / source).exists():
        return source, ""
    if Path(source).exists():
        return (
            Path(os.path.relpath(source, folder)).as_posix(),
            f"The records are read from {source}, which is not in the site's folder.\n",
        )
    return source, f"There is no {folder / source} yet. Put the records there before preflight.\n"


def count_examples(source: Data, folder: Path) -> int | None:
    """About how many examples a site with this source would train on; None if nobody can tell yet.

    A table's rows are counted without a look at their content: its schema comes later."""
    path = folder / source.source
    try:
        database = sources.parse_query(source.source, source.query, folder)
        if database is not None:
            rows = sum(len(part.rows) for part in reading.read(database))
            return round((1 - source.test_fraction) * rows)
        if path.suffix in _TABLES and path.is_file():
            rows = sum(len(part.rows) for part in reading.read(path))
            return round((1 - source.test_fraction) * rows)
        if path.exists():
            return len(sources.load(str(path), label=source.label).train)
        if source.source in SOURCES:
            return len(sources.load(source.source, download=False).train)
    except ProxyFLError:
        return None  # preflight says what is wrong with it, once there is a manifest
    return None


def state_form(source: Data, folder: Path) -> Data:
    """``source`` with the form of its CSV file stated, where it can be told.

    What is left at ``auto`` is recognised at each start, so that one record can change how all
    others are read: a byte that is no UTF-8 makes other names of everybody's."""
    path = folder / source.source
    if path.suffix != ".csv" or not path.is_file():
        return source
    asked = reading.Dialect(source.separator, source.decimal, source.encoding)
    try:
        dialect = reading.recognise(path, asked)
    except ProxyFLError:
        return source  # preflight says what is wrong with it
    return replace(
        source, separator=dialect.separator, decimal=dialect.decimal, encoding=dialect.encoding
    )


@dataclass(frozen=True)
class Plan:
    """The steps that a site means to take, and the ledger that has to allow them."""

    ledger: Ledger
    sampling_rate: float
    noise_multiplier: float
    steps: int
    rounds: int
    coalition: Coalition | None = None
    """The terms of a masked sum, if the steps are such."""

    @property
    def wanted(self) -> int:
        """The number of all steps."""
        return self.steps * self.rounds

    @property
    def has_begun(self) -> bool:
        """True if something was charged already."""
        return bool(self.ledger.charges)

    def affordable_rounds(self) -> int:
        """The number of whole rounds that fit the budget, and what is left in the account."""
        limit = self.wanted
        affordable = self.ledger.affordable_steps(
            self.sampling_rate, self.noise_multiplier, limit, self.coalition
        )
        return affordable // self.steps

    def noise_that_fits(self) -> float | None:
        """The smallest noise multiplier, to two digits, under which all rounds fit; None if there
        is none."""
        low, high = self.noise_multiplier, 2 * self.noise_multiplier
        while not self._fits(high):
            low, high = high, 2 * high
            if high > _LARGEST_NOISE:
                return None
        while upward(high, 2) > upward(low * 1.01, 2):
            middle = (low * high) ** 0.5
            low, high = (low, middle) if self._fits(middle) else (middle, high)
        return upward(high, 2)

    def budget_that_fits(self) -> float:
        """The epsilon of all rounds at this noise, with what is on the ledger, rounded up."""
        accountant = "pld" if self.ledger.budget is None else self.ledger.budget.accountant
        spent = self.ledger.segments()
        if self.ledger.page is not None:
            spent = self.ledger.page.spent(spent)
        every = (*spent, self._all_steps())
        return upward(accounting.epsilon_of(every, self.ledger.delta, accountant), 2)

    def epsilon_of_all(self) -> float:
        """The epsilon of the steps that are left, at this noise."""
        return accounting.epsilon_of((self._all_steps(),), self.ledger.delta, "pld")

    def epsilon_all_others(self) -> float:
        """The epsilon of all rounds, with what is on the ledger, if all other members collude."""
        every = accounting.if_all_collude((*self.ledger.segments(), self._all_steps()))
        return upward(accounting.epsilon_of(every, self.ledger.delta, "pld"), 2)

    def _all_steps(self) -> Segment:
        return Segment(self.sampling_rate, self.noise_multiplier, self.wanted, self.coalition)

    def _fits(self, noise: float) -> bool:
        limit = self.wanted
        fitting = self.ledger.affordable_steps(self.sampling_rate, noise, limit, self.coalition)
        return fitting == limit


def declaration(examples: int) -> str:
    """The lines of ``site.toml`` that declare a rounded number for ``examples`` examples; empty for
    a handful, of which no rounding hides one."""
    number = public_number(examples)
    if number is None:
        return ""
    return f"examples = {number}, delta = {cautious_delta(number):g}"
