"""An institution's account: what all releases about its data have cost, over studies and years.

The account is a folder with one file, ``account.jsonl`` (``journal``: append-only, each line sealed
to all before it), and the ids of each dataset. Studies differ in their records, so a dataset is
known by a fingerprint of its records' ids: persons where the data name them, else file and row.
Values do not enter. For each id a salted hash is kept, so that datasets that overlap are found: a
later export with some records more, or another part held out for the test, is charged for what was
spent on the records that it shares.

Guarantees:
    * a charge is in the account, on the disk, before the steps that it pays for run, and is never
      taken off it: whenever a program stops, the account has at least what was released;
    * any number of programs may write: check and entry are one step under a lock. A charge that
      would exceed the account's total budget raises BudgetExhausted, with nothing written;
    * what counts for a dataset are all real charges of all datasets that share an id with it,
      composed by the accountants at the account's delta, not epsilons added. That bounds what is
      told about each of its records; for a record in only some of the datasets it is too much,
      never too little;
    * a simulation, whose noise can be recomputed, is entered as one and never counts. It is itself
      held to what real releases have left;
    * an account has one unit, a record or a person; a ledger of another unit is refused.

The account cannot see that two ids are the same person: under another name, in a renamed file
without persons, in another institution's account. Whoever can read the folder can test whether an
id is in it: treat it like the records.
"""

import dataclasses
import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from proxyfl import _files, _validate
from proxyfl.errors import BudgetExhausted, ConfigError, PrivacyError
from proxyfl.privacy import accounting, journal
from proxyfl.privacy.accounting import Segment
from proxyfl.privacy.guarantee import Unit, shown
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.spending.charges import Charge, Spent
from proxyfl.privacy.spending.entries import EVERY, Entry

VERSION = 1
FILE = "account.jsonl"
IDS = "ids"
_HASH = 8
"""Bytes kept of each id: two of a million ids share them with probability 3e-8."""


@dataclasses.dataclass(frozen=True)
class Ids:
    """The ids of a dataset's records. ``kind`` says what they are: "persons" or "rows"."""

    kind: str
    names: tuple[str, ...]


class Account:
    """The account in a folder, to be read or continued."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / FILE
        if not self.path.is_file():
            raise ConfigError(
                f"There is no account in {folder}. Open one, with the budget that your data may "
                f"cost in all: proxyfl ledger open {folder} --delta 1e-6 --budget-epsilon 5"
            )
        header, _, _ = journal.read(self.path)
        if header.get("version") != VERSION:
            raise PrivacyError(
                f"The account {self.path} has version {header.get('version')!r}, expected "
                f"{VERSION}. Use the release of proxyfl that wrote it."
            )
        self.unit = Unit(header["unit"])
        self.delta = _validate.number("delta", header["delta"], above=0, below=1)
        self.budget: float | None = header["budget"]
        self._salt = bytes.fromhex(header["salt"])
        self._known: dict[str, frozenset[bytes]] = {}

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        delta: float,
        budget: float | None,
        unit: Unit,
    ) -> "Account":
        """A new, empty account. ``budget`` is the epsilon, at ``delta`` and by PLD, that the data
        of any one dataset may cost in all; one that exists is refused."""
        _validate.number("delta", delta, above=0, below=1)
        if budget is not None:
            _validate.number("budget-epsilon", budget, above=0)
        header = {
            "version": VERSION,
            "unit": str(unit),
            "delta": delta,
            "budget": budget,
            "salt": secrets.token_hex(16),
        }
        with _files.writing(folder):
            (folder / IDS).mkdir(parents=True, exist_ok=True)
        journal.create(folder / FILE, header, durable=True)
        return cls(folder)

    def entries(self) -> list[Entry]:
        """All that is on record, in order; simulations included."""
        _, lines, _ = journal.read(self.path)
        return _entries(lines)

    def dataset(self, ids: Ids) -> str:
        """The fingerprint of the dataset with these ids, whose hashes are then on record."""
        if not ids.names:
            raise PrivacyError("Expected at least one record's id, got none.")
        hashes = sorted({self._hashed(name) for name in ids.names})
        content = b"".join(hashes)
        fingerprint = _files.short_hash(content)
        path = self.folder / IDS / fingerprint
        if not path.exists():
            with journal.locked(self.path):
                _files.write_bytes(path, content)
        return fingerprint

    def _hashed(self, name: str) -> bytes:
        return hashlib.blake2b(
            name.encode(), digest_size=_HASH, key=self._salt
        ).digest()

    def known(self, fingerprint: str) -> frozenset[bytes]:
        """The hashes of a dataset's ids."""
        if fingerprint not in self._known:
            self._known[fingerprint] = self._read_ids(fingerprint)
        return self._known[fingerprint]

    def _read_ids(self, fingerprint: str) -> frozenset[bytes]:
        path = self.folder / IDS / fingerprint
        try:
            content = path.read_bytes()
        except OSError as error:
            raise PrivacyError(
                f"The account {self.folder} lacks the ids of dataset {fingerprint}: "
                f"{error.strerror}. Restore {path} from a backup."
            ) from error
        if _files.short_hash(content) != fingerprint:
            raise PrivacyError(
                f"{path} was changed: it is not what its name says. Restore it from a backup."
            )
        starts = range(0, len(content), _HASH)
        return frozenset(content[i : i + _HASH] for i in starts)

    def sharing(self, fingerprint: str, others: Iterable[str]) -> set[str]:
        """Those among ``others`` that share a record with the dataset; itself included."""
        mine = self.known(fingerprint)
        found = {fingerprint}
        for other in {*others} - found:
            if other == EVERY or mine & self.known(other):
                found.add(other)
        return found

    def overlapping(self, dataset: str, entries: Sequence[Entry]) -> list[Entry]:
        """The real entries of datasets that share a record with ``dataset``."""
        real = [entry for entry in entries if not entry.simulated]
        sharing = self.sharing(dataset, [entry.dataset for entry in real])
        return [entry for entry in real if entry.dataset in sharing]

    def page(self, ids: Ids, ledger: Ledger, *, study: str) -> "LedgerPage":
        """The page of ``ledger``, which is about the records with these ids.

        A real ledger's charges that the account does not have yet are entered."""
        self.check_unit(ledger)
        page = LedgerPage(self, self.dataset(ids), ids.kind, ledger, study)
        page.catch_up()
        return page

    def enter_all(self, ledger: Ledger, *, study: str) -> int:
        """Enter what a finished study's real ledger has spent, for want of its ids on every
        dataset; return how many charges were new."""
        self.check_unit(ledger)
        if ledger.simulated:
            raise PrivacyError(
                f"The ledger of {ledger.client} is a simulation's, whose noise can be recomputed: "
                "there is nothing to enter. If its proxies were released, no budget helps."
            )
        return LedgerPage(self, EVERY, "unknown", ledger, study).catch_up()

    def check_unit(self, ledger: Ledger) -> None:
        """Refuse a ledger that protects something else than the account does."""
        if ledger.unit is not self.unit:
            raise PrivacyError(
                f"The account {self.folder} is per {self.unit}, the ledger of {ledger.client} per "
                f"{ledger.unit}. Neither promise covers the other: set privacy.unit = "
                f"{str(self.unit)!r}, or keep another account (proxyfl ledger open)."
            )


@dataclasses.dataclass(frozen=True)
class Kept:
    """Where a client's spending is kept beside that of other studies: the account's folder, the ids
    of the client's records, and what to call this study."""

    folder: Path
    ids: Ids
    study: str

    def keep(self, ledger: Ledger) -> None:
        """Give ``ledger`` its page in the account."""
        account = Account(self.folder)
        ledger.page = account.page(self.ids, ledger, study=self.study)


@dataclasses.dataclass(frozen=True)
class LedgerPage:
    """One ledger's place in the account."""

    account: Account
    dataset: str
    ids: str
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
        for entry in self.account.overlapping(self.dataset, entries):
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

    def enter(
        self,
        charge: Charge,
        own: Sequence[Segment],
        check: Callable[[Spent], None],
    ) -> None:
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
        found = [charge for charge in (+missing).elements() if charge.steps]
        for charge in found:
            line = self._entry(charge).line()
            journal.extend(
                self.account.path, lambda *_, line=line: line, durable=True
            )
        return len(found)

    def _entry(self, charge: Charge) -> Entry:
        return Entry(
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            dataset=self.dataset,
            ids=self.ids,
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
            f"Client {self.ledger.client}, round {charge.round}: all studies on these records have "
            f"cost epsilon {now} at delta {delta:g}; {charge.steps} more steps would make it "
            f"{then}, above the {self.account.budget:g} that the account {self.account.folder} "
            "allows in all. Nothing was spent. `proxyfl ledger show` says what was spent by whom."
        )


def _entries(lines: Iterable[Mapping[str, Any]]) -> list[Entry]:
    return [Entry.read(line) for line in lines]
