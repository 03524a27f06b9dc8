"""A client's privacy ledger: an append-only log of charges, each written before the steps it pays
for.

The order is: ``charge`` puts a round's cost on record; ``take`` lets DP-SGD make that many steps of
that setting; ``check_release`` lets the proxy of a round leave only if the round is on record.

Guarantees:
    * no step runs that is not on record with its sampling rate and noise, and none is ever taken
      off it: steps that were charged and not taken (a crash, an interrupt) stay charged;
    * whenever the program stops, what the file says is at least what was spent. A charge is in the
      file (on the disk, unless simulated) before ``charge`` returns. So if a stop leaves a line
      unfinished, none of its steps ran, and the line counts for nothing; a line that is whole
      counts, whether or not its steps ran;
    * a charge that would exceed the budget raises, with nothing written;
    * where the ledger has a ``page`` in an account, what all studies have spent on the same data
      counts, and a charge is in the account before it is in the ledger;
    * of two programs that write to one file, one is stopped, whenever they write (``journal``);
    * a real ledger charges a repeated round again, because its noise is fresh, and states in every
      round all that it has been charged. A simulation that is resumed repeats the same noise, which
      reveals nothing new, so the same charge for the same round is recorded once;
    * a checkpoint's ``receipt`` is honoured: ``demand`` refuses a ledger that lost a charge which
      the checkpoint knows of.
"""

import dataclasses
import json
import secrets
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from proxyfl import _validate
from proxyfl._files import short_hash
from proxyfl.errors import BudgetExhausted, PrivacyError
from proxyfl.privacy import accounting, journal
from proxyfl.privacy.accounting import Segment
from proxyfl.privacy.calibration import most
from proxyfl.privacy.guarantee import Epsilon, Kind, Relation, Unit, shown
from proxyfl.privacy.spending.charges import Budget as Budget
from proxyfl.privacy.spending.charges import Charge as Charge
from proxyfl.privacy.spending.charges import Page, Spent

VERSION = 1


class Ledger:
    """One client's account.

    A new one starts empty; ``Ledger.read`` continues one from its file; ``Ledger.at`` does
    whichever of the two fits."""

    page: Page | None = None
    """Its place in an account, if the institution keeps one."""

    number: str
    """Drawn when a real ledger's file is made, so that a later file at the same path is another
    ledger; empty for simulations, and for ledgers of earlier releases."""

    def __init__(
        self,
        client: str,
        *,
        delta: float,
        kind: Kind,
        simulated: bool,
        relation: Relation = Relation.ZERO_OUT,
        unit: Unit = Unit.RECORD,
        budget: Budget | None = None,
        path: Path | None = None,
    ) -> None:
        self.client = client
        self.delta = _validate.number("delta", delta, above=0, below=1)
        self.kind = Kind(kind)
        self.simulated = simulated
        self.relation = Relation(relation)
        self.unit = Unit(unit)
        self.budget = budget
        self._path = path
        self.number = ""
        self._charges: list[Charge] = []
        self._authorised: Charge | None = None
        self._left = 0
        self._end = journal.End(0, "", 0)
        if path is not None:
            header = self._header()
            if not simulated:
                self.number = secrets.token_hex(8)
                header["number"] = self.number
            self._end = journal.create(path, header, durable=not simulated)

    def _header(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "client": self.client,
            "delta": self.delta,
            "kind": str(self.kind),
            "relation": str(self.relation),
            "unit": str(self.unit),
            "simulated": self.simulated,
        }

    @classmethod
    def read(cls, path: Path, *, budget: Budget | None = None) -> Self:
        """The ledger in the file at ``path``, to be read or continued. Reading changes nothing in
        the file.

        An unfinished last line is reported as a warning. All other damage raises PrivacyError.
        """
        header, entries, end = journal.read(path)
        if header.get("version") != VERSION:
            raise PrivacyError(
                f"The ledger {path} has version {header.get('version')!r}, expected {VERSION}. "
                "Use the release of proxyfl that wrote it."
            )
        try:
            ledger = cls(
                header["client"],
                delta=header["delta"],
                kind=header["kind"],
                simulated=bool(header["simulated"]),
                # Ledgers from before the relation was recorded sampled at B/n: this one.
                relation=header.get("relation", Relation.ZERO_OUT),
                unit=header.get("unit", Unit.RECORD),
                budget=budget,
            )
            ledger.number = header.get("number", "")
            ledger._charges = [Charge(**entry) for entry in entries]
        except (KeyError, TypeError, ValueError) as error:
            raise PrivacyError(
                f"The ledger {path} has a line that this release cannot use: {error}"
            ) from error
        ledger._path = path
        ledger._end = end
        if end.torn:
            warnings.warn(
                f"The ledger {path} ends in an unfinished line of {end.torn} bytes: the program "
                "stopped while it wrote a charge, before any step of it ran. It counts for "
                "nothing and goes with the next charge.",
                accounting.AccountingWarning,
                stacklevel=2,
            )
        return ledger

    @classmethod
    def at(
        cls,
        path: Path,
        client: str,
        *,
        budget: Budget | None = None,
        **promise: Any,
    ) -> Self:
        """The ledger at ``path``, continued if there is one, else new; ``promise`` as in a new one.

        One that is there must be of the same client and promise the same; PrivacyError says where
        it differs."""
        if not path.exists():
            return cls(client, budget=budget, path=path, **promise)
        found = cls.read(path, budget=budget)
        stated = found._header()
        for name, value in cls(client, **promise)._header().items():
            if stated[name] != value:
                raise PrivacyError(
                    f"The ledger {path} has {name}={stated[name]!r}, expected {value!r}: "
                    "it belongs to another client or to other settings. Put the right file in its "
                    "place, or begin a new run in another folder."
                )
        return found

    @property
    def path(self) -> Path | None:
        """The ledger's file; None if it is kept in memory."""
        return self._path

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All that is on record, in order."""
        return tuple(self._charges)

    @property
    def steps(self) -> int:
        """The number of steps on record."""
        return sum(charge.steps for charge in self._charges)

    def segments(self, *, through: int | None = None) -> tuple[Segment, ...]:
        """The record as the accountants see it, with equal settings added up; with ``through`` as
        of that round."""
        counted = self._charges
        if through is not None and self.simulated:
            counted = [charge for charge in counted if charge.round <= through]
        return accounting.merged(charge.segment for charge in counted)

    def epsilon(self, *, through: int | None = None) -> Epsilon:
        """The cost of all that is on record; infinite if the client trains without DP.

        With ``through``, the cost as of that round. A resumed simulation repeats rounds that are on
        record already, and reports of each what an uninterrupted one would. A real ledger that
        goes back to an earlier round has spent what the later ones cost, and always states all of
        it."""
        spent = self.segments(through=through)
        return accounting.epsilon(
            spent, self.delta, self.kind, self.relation, self.unit
        )

    def receipt(self) -> str:
        """All charges so far, as one line of text for a checkpoint; see ``demand``."""
        charges = self._charges
        return json.dumps({"charges": len(charges), "seal": _seal(charges)})

    def demand(self, receipt: str) -> None:
        """Raise PrivacyError unless all that ``receipt`` says was charged is on record here."""
        noted = json.loads(receipt)
        count = noted["charges"]
        if _seal(self._charges[:count]) == noted["seal"]:
            return
        where = "its ledger" if self._path is None else f"its ledger {self._path}"
        raise PrivacyError(
            f"Client {self.client} had been charged for {count} rounds when the checkpoint was "
            f"written; {where} has {len(self._charges)} and does not hold them all. What was spent "
            "is not known. Restore the ledger from a backup, or begin a new run in another folder."
        )

    def charge(
        self, round: int, steps: int, sampling_rate: float, noise_multiplier: float
    ) -> None:
        """Put ``steps`` steps of ``round`` on record and authorise them; steps authorised before
        and not taken lapse.

        Raises BudgetExhausted, with nothing written, if that would exceed the budget.
        """
        charge = Charge(round, steps, sampling_rate, noise_multiplier)
        if self.kind is Kind.NONE:
            raise PrivacyError(
                f"The ledger of client {self.client} is of kind none: it trains without DP and "
                "has nothing to charge. Open it with kind=Kind.END_TO_END or Kind.CONDITIONAL to "
                "train with DP."
            )
        self._authorised = None
        self._left = 0
        if not (self.simulated and charge in self._charges):
            self._enter(charge)
            if self._path is not None:
                entry = dataclasses.asdict(charge)
                self._end = journal.append(
                    self._path, entry, self._end, durable=not self.simulated
                )
            self._charges.append(charge)
        self._authorised = charge
        self._left = steps

    def take(self, sampling_rate: float, noise_multiplier: float) -> Charge:
        """Use up one authorised step, which must have the settings that were charged; return that
        charge. DP-SGD calls this before each step."""
        charge = self._authorised
        if charge is None or self._left < 1:
            raise PrivacyError(
                f"Client {self.client} has no step left that is on its ledger. "
                "Call charge(round, steps, sampling_rate, noise_multiplier) before the round's "
                "first step."
            )
        charged = (charge.sampling_rate, charge.noise_multiplier)
        if (sampling_rate, noise_multiplier) != charged:
            raise PrivacyError(
                f"Client {self.client}, round {charge.round}: a step with sampling rate "
                f"{sampling_rate} and noise multiplier {noise_multiplier} is not the one charged, "
                f"which has {charged[0]} and {charged[1]}. Change settings between rounds, before "
                "begin_round charges for them."
            )
        self._left -= 1
        return charge

    def check_release(self, round: int) -> None:
        """Raise PrivacyError unless the cost of ``round`` is on record. A client without DP has no
        cost to record."""
        charged = any(charge.round == round for charge in self._charges)
        if self.kind is not Kind.NONE and not charged:
            raise PrivacyError(
                f"The proxy of client {self.client} must not leave: round {round} is not on its "
                "ledger. Call charge for the round first (with 0 steps if the client did not train "
                "in it)."
            )

    def affordable_steps(
        self, sampling_rate: float, noise_multiplier: float, limit: int
    ) -> int:
        """The number of further steps of this setting, up to ``limit``, that the budget allows;
        ``limit`` if there is no budget."""
        _validate.whole("limit", limit, at_least=0)
        if self.budget is None and self.page is None:
            return limit
        spent = self.segments()
        if self.page is not None:
            spent = self.page.spent(spent)

        def fits(steps: int) -> bool:
            extra = Segment(sampling_rate, noise_multiplier, steps)
            if self.page is not None and not self.page.fits(spent, extra):
                return False
            return self._fits(spent, extra)

        if fits(limit):
            return limit
        return most(fits, 0, limit - 1) if fits(0) else 0

    def _cost_with(self, spent: Spent, extra: Segment, budget: Budget) -> float:
        every = (*budget.earlier, *spent, extra)
        return accounting.epsilon_of(every, self.delta, budget.accountant)

    def _fits(self, spent: Spent, extra: Segment) -> bool:
        budget = self.budget
        if budget is None:
            return True
        return self._cost_with(spent, extra, budget) <= budget.epsilon

    def _enter(self, charge: Charge) -> None:
        # No steps cost nothing: a client whose budget is spent may still pass on what it received.
        if not charge.steps:
            return
        own = self.segments()
        if self.page is None:
            self._check_budget(charge, own)
        else:
            self.page.enter(
                charge, own, lambda spent: self._check_budget(charge, spent)
            )

    def _check_budget(self, charge: Charge, spent: Spent) -> None:
        if self.budget is None or self._fits(spent, charge.segment):
            return
        budget = self.budget
        none = Segment(charge.sampling_rate, charge.noise_multiplier, 0)
        now = shown(self._cost_with(spent, none, budget))
        then = shown(self._cost_with(spent, charge.segment, budget))
        raise BudgetExhausted(
            f"Client {self.client}, round {charge.round}: {charge.steps} more steps would raise "
            f"epsilon from {now} to {then} ({budget.accountant}, {self.kind}), above the budget "
            f"of {budget.epsilon:g}. Nothing was spent. Use fewer steps (affordable_steps says "
            "how many), or stop."
        )


def _seal(charges: Sequence[Charge]) -> str:
    """A short hash of the charges, in order."""
    lines = [json.dumps(dataclasses.asdict(charge)) for charge in charges]
    return short_hash("\n".join(lines).encode())
