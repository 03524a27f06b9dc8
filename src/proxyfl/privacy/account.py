"""An institution's account: what all releases about its people have cost, over studies and years.

The account is a folder with one file, ``account.jsonl`` (``journal``: append-only, each line sealed
to all before it). A charge is made to a *population*: a public name that the institution gives to a
group of people. Studies whose populations share a name count for each other. A study that names
none counts for all, and all count for it.

Guarantees:
    * a charge is in the account, on the disk, before the steps that it pays for run, and is never
      taken off it: whenever a program stops, the account has at least what was released;
    * any number of programs may write: check and entry are one step under a lock. A charge that
      would exceed the account's total budget raises BudgetExhausted, with nothing written;
    * what counts for a study are all real charges of the populations that it names, composed by the
      accountants at the account's delta, not epsilons added. That bounds what is told about each of
      these people; for a person in only some of the studies it is too much, never too little;
    * no record, id or number of records has a part in this: what counts follows from names that
      were declared and charges that were made. So the round in which a budget ends a study tells
      nothing about who is in the data;
    * a simulation, whose noise can be recomputed, is entered as one and never counts. It is itself
      held to what real releases have left;
    * an account has one unit, a record or a person; a ledger of another unit is refused.

The account cannot see that people of one population are in another as well, or in another
institution's account: populations that share people must be named together by every study on them.

Its lines are ``Entry``: who spent what, on which population, when, and by which mechanism. Its
``Standing`` says for each population what was spent, by which release, and what is left, composed
at the account's delta over the charges that count for the population.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from proxyfl import _files, _validate
from proxyfl._command import command
from proxyfl._setonce import SetOnce
from proxyfl.errors import BudgetExhausted, ConfigError, PrivacyError
from proxyfl.privacy import accounting, journal
from proxyfl.privacy.accounting import Segment
from proxyfl.privacy.calibration import steps_left
from proxyfl.privacy.guarantee import Epsilon, Kind, Relation, Unit, shown, weakest
from proxyfl.privacy.ledger import Charge, Ledger, Spent
from proxyfl.settings import EVERY

Populations = tuple[str, ...]
"""Names that an institution gives to groups of people; ``EVERY`` alone for all of them."""


def overlap(one: Populations, other: Populations) -> bool:
    """True if a person may be in both, by their names alone."""
    return EVERY in one or EVERY in other or not set(one).isdisjoint(other)


@dataclass(frozen=True)
class Entry:
    """One charge of one study. ``ledger`` is the file of the study's own ledger, and its number."""

    date: str
    populations: Populations
    study: str
    client: str
    ledger: str
    mechanism: str
    kind: Kind
    relation: Relation
    simulated: bool
    charge: Charge

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> Self:
        """The entry in a line of the account's file.

        A line of an earlier release names a fingerprint of its records' ids and no population: it
        counts for every population, which may be too much and is never too little."""
        try:
            about = {**line, "charge": Charge.read(line["charge"])}
            if "dataset" in about:
                del about["dataset"], about["ids"]
                about["populations"] = [EVERY]
            about["populations"] = tuple(map(str, about["populations"]))
            about["kind"] = Kind(line["kind"])
            about["relation"] = Relation(line["relation"])
            return cls(**about)
        except (KeyError, TypeError, ValueError) as error:
            raise PrivacyError(
                f"The account has a line that this release cannot use ({error}). Use the release "
                "that wrote it."
            ) from error

    def line(self) -> dict[str, Any]:
        """The entry as a line of the account's file."""
        about = {"kind": str(self.kind), "relation": str(self.relation)}
        return {**dataclasses.asdict(self), **about, "charge": self.charge.line()}

    def repeats(self, other: "Entry") -> bool:
        """True if the two differ at most in when they were made."""
        return dataclasses.replace(self, date=other.date) == other


VERSION = 2
_OF_IDS = 1
"""The version of accounts whose charges were made to sets of ids. They are read, and continued by
charges to populations."""
FILE = "account.jsonl"
IDS = "ids"
"""The folder in which accounts of that version kept hashes of ids. Nothing reads it any more."""


def _opening(folder: Path | str) -> str:
    return command("ledger", "open", folder, "--delta", "1e-6", "--budget-epsilon", 5)


class Account(SetOnce):
    """The account in a folder, to be read or continued."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / FILE
        if not self.path.is_file():
            raise ConfigError(
                f"There is no account in {folder}. Open one, with the budget that your data may "
                f"cost in all: {_opening(folder)}"
            )
        header, _, _ = journal.read(self.path)
        if header.get("version") not in (VERSION, _OF_IDS):
            raise PrivacyError(
                f"The account {self.path} has version {header.get('version')!r}, expected "
                f"{VERSION}. Use the release of proxyfl that wrote it."
            )
        self.unit = Unit(header["unit"])
        self.delta = _validate.number("delta", header["delta"], above=0, below=1)
        self.budget: float | None = header["budget"]

    @classmethod
    def open(cls, folder: Path, *, delta: float, budget: float | None, unit: Unit) -> "Account":
        """A new, empty account. ``budget`` is the epsilon, at ``delta`` and by PLD, that any one
        population may cost in all; an account that exists is refused."""
        _validate.number("delta", delta, above=0, below=1)
        if budget is not None:
            _validate.number("budget-epsilon", budget, above=0)
        header = {"version": VERSION, "unit": str(unit), "delta": delta, "budget": budget}
        with _files.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        journal.create(folder / FILE, header, durable=True)
        return cls(folder)

    def entries(self) -> list[Entry]:
        """All that is on record, in order; simulations included."""
        _, lines, _ = journal.read(self.path)
        return _entries(lines)

    @property
    def keeps_ids(self) -> bool:
        """True if an earlier release has left hashes of ids in the folder."""
        return (self.folder / IDS).is_dir()

    def counted(self, populations: Populations, entries: Iterable[Entry]) -> list[Entry]:
        """The real entries that count for a study of these populations."""
        counting = []
        for entry in entries:
            if not entry.simulated and overlap(populations, entry.populations):
                counting.append(entry)
        return counting

    def page(self, populations: Populations, ledger: Ledger, *, study: str) -> "LedgerPage":
        """The page of ``ledger``, which is about people of these populations.

        A real ledger's charges that the account does not have yet are entered."""
        self.check_unit(ledger)
        page = LedgerPage(self, populations, ledger, study)
        page.catch_up()
        return page

    def enter_all(self, ledger: Ledger, *, study: str, populations: Populations = (EVERY,)) -> int:
        """Enter what a finished study's real ledger has spent; return how many charges were
        new."""
        self.check_unit(ledger)
        if ledger.simulated:
            raise PrivacyError(
                f"The ledger of {ledger.client} is a simulation's, whose noise can be recomputed: "
                "there is nothing to enter. If its proxies were released, no budget helps."
            )
        return LedgerPage(self, populations, ledger, study).catch_up()

    def check_unit(self, ledger: Ledger) -> None:
        """Refuse a ledger that protects something else than the account does."""
        if ledger.unit is not self.unit:
            raise PrivacyError(
                f"The account {self.folder} is per {self.unit}, the ledger of {ledger.client} per "
                f"{ledger.unit}. Neither promise covers the other: set privacy.unit = "
                f"{str(self.unit)!r}, or keep another account: {_opening('FOLDER')}"
            )


@dataclasses.dataclass(frozen=True)
class Kept:
    """The place where a client's spending is kept with that of other studies: the account's folder,
    the populations that the client's records are about, and what to call this study."""

    folder: Path
    populations: Populations
    study: str

    def keep(self, ledger: Ledger) -> None:
        """Give ``ledger`` its page in the account."""
        account = Account(self.folder)
        ledger.page = account.page(self.populations, ledger, study=self.study)

    def look(self, ledger: Ledger) -> "LedgerPage":
        """The page of ``ledger``, into which nothing is entered yet."""
        account = Account(self.folder)
        account.check_unit(ledger)
        return LedgerPage(account, self.populations, ledger, self.study)


@dataclasses.dataclass(frozen=True)
class LedgerPage:
    """One ledger's place in the account."""

    account: Account
    populations: Populations
    ledger: Ledger
    study: str
    mechanism: str = "DP-SGD"

    @cached_property
    def _identity(self) -> str:
        """The ledger's file and number: another run's ledger may stand at the same path."""
        path = self.ledger.path
        if path is None:
            return ""
        number = self.ledger.number
        return f"{path.resolve()} {number}" if number else str(path.resolve())

    def spent(self, own: Sequence[Segment]) -> Spent:
        return self._spent(self.account.entries(), own)

    def _spent(self, entries: Sequence[Entry], own: Sequence[Segment]) -> Spent:
        counted = []
        for entry in self.account.counted(self.populations, entries):
            counted.append(entry.charge.segment)
        # What a ledger in memory or a simulation has spent is on no real entry.
        if self.ledger.simulated or not self._identity:
            counted += own
        return accounting.merged(counted)

    def fits(self, spent: Spent, extra: Segment) -> bool:
        budget = self.account.budget
        if budget is None:
            return True
        return accounting.pld_of((*spent, extra), self.account.delta) <= budget

    def enter(self, charge: Charge, own: Sequence[Segment], check: Callable[[Spent], None]) -> None:
        def allowed(entries: Sequence[Entry]) -> None:
            spent = self._spent(entries, own)
            check(spent)
            self._check_total(spent, charge)

        if not self._identity:  # a rehearsal: it may ask, and leaves no trace
            allowed(self.account.entries())
            return
        entry = self._entry(charge)

        def decide(
            _header: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]
        ) -> dict[str, Any] | None:
            entries = _entries(lines)
            if entry.simulated and any(map(entry.repeats, entries)):
                return None
            allowed(entries)
            return entry.line()

        journal.extend(self.account.path, decide, durable=not entry.simulated)

    def catch_up(self) -> int:
        """Enter those of a real ledger's charges that the account does not have: they were made
        before it was kept. They are spent, whatever the budget."""
        if self.ledger.simulated or not self._identity:
            return 0
        missing = Counter(self.ledger.charges)
        for entry in self.account.entries():
            if entry.ledger == self._identity:
                missing[entry.charge] -= 1
        charges = [charge for charge in (+missing).elements() if charge.steps]
        for charge in charges:
            line = self._entry(charge).line()
            journal.extend(self.account.path, lambda *_, line=line: line, durable=True)
        return len(charges)

    def _entry(self, charge: Charge) -> Entry:
        return Entry(
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            populations=self.populations,
            study=self.study,
            client=self.ledger.client,
            ledger=self._identity,
            mechanism=self.mechanism,
            kind=self.ledger.kind,
            relation=self.ledger.relation,
            simulated=self.ledger.simulated,
            charge=charge,
        )

    def _check_total(self, spent: Spent, charge: Charge) -> None:
        if self.fits(spent, charge.segment):
            return
        delta = self.account.delta
        now = shown(accounting.pld_of(spent, delta))
        then = shown(accounting.pld_of((*spent, charge.segment), delta))
        raise BudgetExhausted(
            f"Client {self.ledger.client}, round {charge.round}: all studies of this population "
            f"have cost epsilon {now} at delta {delta:g}; {charge.steps} more steps would make it "
            f"{then}, above the {self.account.budget:g} that the account {self.account.folder} "
            "allows in all. Nothing was spent. To see what was spent by whom, run: "
            f"{command('ledger', 'show', self.account.folder)}"
        )


def _entries(lines: Iterable[Mapping[str, Any]]) -> list[Entry]:
    """Parses the charges of an account, one from each line."""
    return [Entry.read(line) for line in lines]


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
    """One population's standing: the real entries that count for it, and its own simulations."""

    account: Account
    population: str
    counted: tuple[Entry, ...]
    simulations: tuple[Entry, ...]

    @cached_property
    def spent(self) -> Epsilon:
        """The cost of all real releases together."""
        return _composed(self.counted, self.account.delta, self.account.unit)

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
        """True if more than the budget is spent."""
        budget = self.account.budget
        return budget is not None and self.spent.pld > budget

    def releases(self) -> list[Release]:
        """The real releases that count, in the order of their first charge."""
        return self._grouped(self.counted)

    def rehearsals(self) -> list[Release]:
        """The simulations of this population, which count for nothing."""
        return self._grouped(self.simulations)

    def _grouped(self, entries: Sequence[Entry]) -> list[Release]:
        by_release: dict[tuple[str, ...], list[Entry]] = {}
        for entry in entries:
            key = (entry.study, entry.client, entry.ledger, entry.mechanism)
            by_release.setdefault(key, []).append(entry)
        account = self.account
        releases = []
        for each in by_release.values():
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
    """The standing of each population, in the order in which they were first charged."""
    entries = account.entries()
    return [_standing(account, name, entries) for name in _names(entries)]


def standing(account: Account, population: str) -> Standing:
    """The standing of the population whose name is, or begins with, ``population``."""
    entries = account.entries()
    known = _names(entries)
    if population in known:
        return _standing(account, population, entries)
    matching = [name for name in known if name.startswith(population)]
    if len(matching) != 1:
        raise ConfigError(
            f"Expected a population's name or the beginning of one, got {population!r}, which "
            f"{len(matching)} have. The account {account.folder} has: "
            f"{', '.join(known) or 'none'}."
        )
    return _standing(account, matching[0], entries)


def _names(entries: Sequence[Entry]) -> list[str]:
    names: dict[str, None] = {}
    for entry in entries:
        names |= dict.fromkeys(entry.populations)
    return list(names)


def _standing(account: Account, population: str, entries: Sequence[Entry]) -> Standing:
    counted = account.counted((population,), entries)
    own = [e for e in entries if e.simulated and population in e.populations]
    return Standing(account, population, tuple(counted), tuple(own))


def _composed(entries: Sequence[Entry], delta: float, unit: Unit) -> Epsilon:
    """The cost of the entries together; kind and relation are the weakest among theirs."""
    segments = [entry.charge.segment for entry in entries]
    return accounting.epsilon(segments, delta, *weakest(entries), unit)
