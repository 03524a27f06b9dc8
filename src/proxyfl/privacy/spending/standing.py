"""The standing of an account: for each dataset what was spent, by which release, what is left.

Every number is composed by the accountants at the account's delta, over the charges that count for
the dataset: its own, and those of datasets that share records with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from proxyfl.errors import ConfigError
from proxyfl.privacy import accounting
from proxyfl.privacy.calibration import steps_left
from proxyfl.privacy.guarantee import Epsilon, Unit, weakest
from proxyfl.privacy.spending.account import Account
from proxyfl.privacy.spending.entries import EVERY, Entry


@dataclass(frozen=True)
class Release:
    """All charges of one ledger of one study: a federation or a run, and a client in it."""

    entries: tuple[Entry, ...]
    unit: Unit
    delta: float

    @property
    def first(self) -> Entry:
        """The release's first charge."""
        return self.entries[0]

    @property
    def steps(self) -> int:
        """The number of steps charged."""
        return sum(entry.charge.steps for entry in self.entries)

    @cached_property
    def epsilon(self) -> Epsilon:
        """The cost of the release by itself, at the account's delta."""
        return _composed(self.entries, self.delta, self.unit)


@dataclass(frozen=True)
class Standing:
    """One dataset's standing: the real entries that count for it, and its own simulations."""

    account: Account
    dataset: str
    counted: tuple[Entry, ...]
    simulations: tuple[Entry, ...]

    @cached_property
    def spent(self) -> Epsilon:
        """The cost of all real releases together."""
        return _composed(self.counted, self.account.delta, self.account.unit)

    @property
    def ids(self) -> str:
        """The nature of the dataset's ids: persons, rows, or unknown."""
        for entry in (*self.counted, *self.simulations):
            if entry.dataset == self.dataset:
                return entry.ids
        return "unknown"

    @property
    def size(self) -> int | None:
        """The number of the dataset's ids; None where they are not known."""
        if self.dataset == EVERY:
            return None
        return len(self.account.known(self.dataset))

    @property
    def left(self) -> float | None:
        """The budget minus what is spent; None without a budget. The steps that still fit are worth
        more than that: costs do not add."""
        budget = self.account.budget
        if budget is None:
            return None
        return max(0.0, budget - self.spent.pld)

    @property
    def exceeded(self) -> bool:
        """Whether more than the budget is spent."""
        budget = self.account.budget
        return budget is not None and self.spent.pld > budget

    def releases(self) -> list[Release]:
        """The real releases that count, in the order of their first charge."""
        return self._grouped(self.counted)

    def rehearsals(self) -> list[Release]:
        """The simulations on this dataset, which count for nothing."""
        return self._grouped(self.simulations)

    def _grouped(self, entries: Sequence[Entry]) -> list[Release]:
        found: dict[tuple[str, ...], list[Entry]] = {}
        for entry in entries:
            key = (entry.study, entry.client, entry.ledger, entry.mechanism)
            found.setdefault(key, []).append(entry)
        account = self.account
        releases = []
        for each in found.values():
            releases.append(Release(tuple(each), account.unit, account.delta))
        return releases

    def steps_left(self) -> int | None:
        """The number of steps of the last setting that still fit, up to 2^20; None where there is
        no budget or nothing was spent."""
        budget = self.account.budget
        if budget is None or not self.counted:
            return None
        spent = [entry.charge.segment for entry in self.counted]
        return steps_left(spent, spent[-1], delta=self.account.delta, budget=budget)


def standings(account: Account) -> list[Standing]:
    """The standing of each dataset, in the order in which they were first charged."""
    entries = account.entries()
    return [_standing(account, name, entries) for name in _names(entries)]


def standing(account: Account, dataset: str) -> Standing:
    """The standing of the dataset whose fingerprint begins with ``dataset``."""
    entries = account.entries()
    known = _names(entries)
    found = [name for name in known if name.startswith(dataset)]
    if len(found) != 1:
        raise ConfigError(
            f"Expected the beginning of one dataset's fingerprint, got {dataset!r}, which "
            f"{len(found)} have. The account {account.folder} has: {', '.join(known) or 'none'}."
        )
    return _standing(account, found[0], entries)


def _names(entries: Sequence[Entry]) -> list[str]:
    return list(dict.fromkeys(entry.dataset for entry in entries))


def _standing(
    account: Account,
    dataset: str,
    entries: Sequence[Entry],
) -> Standing:
    if dataset == EVERY:
        counted = [entry for entry in entries if entry.dataset == EVERY]
    else:
        counted = account.overlapping(dataset, entries)
    own = [e for e in entries if e.simulated and e.dataset == dataset]
    return Standing(account, dataset, tuple(counted), tuple(own))


def _composed(entries: Sequence[Entry], delta: float, unit: Unit) -> Epsilon:
    """The cost of the entries together; kind and relation are the weakest among theirs."""
    segments = [entry.charge.segment for entry in entries]
    return accounting.epsilon(segments, delta, *weakest(entries), unit)
