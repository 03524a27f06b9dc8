"""What one client's data has paid: an append-only record, written before the money is spent.

The order is: ``charge`` puts a round's cost on record; ``take`` lets DP-SGD make that many steps;
``check_release`` lets the proxy of a round leave only if the round is on record.

Guarantees:
    * no step runs that is not on record, and none is ever taken off it: steps that were charged and
      not taken (a crash, an interrupt) stay charged;
    * whenever the program stops, what the file says is at least what was spent. A charge is in the
      file (on the disk, unless simulated) before ``charge`` returns. So if a stop leaves a line
      unfinished, none of its steps ran, and the line counts for nothing; a line that is whole
      counts, whether or not its steps ran;
    * a charge that would exceed the budget raises, with nothing written;
    * a real ledger charges a repeated round again, because its noise is fresh. A simulation that is
      resumed repeats the same noise, which reveals nothing new, so the same charge for the same
      round is recorded once.
"""

import dataclasses
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from proxyfl import _validate
from proxyfl.errors import BudgetExhausted, PrivacyError
from proxyfl.privacy import accounting, journal
from proxyfl.privacy.accounting import ACCOUNTANTS, Segment
from proxyfl.privacy.calibration import most
from proxyfl.privacy.guarantee import Epsilon, Kind, shown

VERSION = 1


@dataclass(frozen=True)
class Charge:
    """One line of the ledger: so many steps in a round."""

    round: int
    steps: int
    sampling_rate: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        _validate.whole("round", self.round, at_least=0)
        _ = self.segment

    @property
    def segment(self) -> Segment:
        """The charge as the accountants see it."""
        return Segment(self.sampling_rate, self.noise_multiplier, self.steps)


@dataclass(frozen=True)
class Budget:
    """The epsilon that a client's data may cost in all, by the accountant named."""

    epsilon: float
    accountant: str = "pld"

    def __post_init__(self) -> None:
        _validate.number("budget epsilon", self.epsilon, above=0)
        _validate.choice("accountant", self.accountant, ACCOUNTANTS)


class Ledger:
    """One client's account. A new one starts empty; ``Ledger.read`` continues one from its file."""

    _path: Path | None

    def __init__(
        self,
        client: str,
        *,
        delta: float,
        kind: Kind,
        simulated: bool,
        budget: Budget | None = None,
        path: Path | None = None,
    ) -> None:
        self._open(client, delta, Kind(kind), simulated, budget)
        if path is not None:
            header = {
                "version": VERSION,
                "client": client,
                "delta": delta,
                "kind": kind,
                "simulated": simulated,
            }
            self._path, self._end = path, journal.create(path, header, durable=not simulated)

    def _open(
        self, client: str, delta: float, kind: Kind, simulated: bool, budget: Budget | None
    ) -> None:
        self.client, self.kind, self.simulated, self.budget = client, kind, simulated, budget
        self.delta = _validate.number("delta", delta, above=0, below=1)
        self._charges: list[Charge] = []
        self._authorised = 0
        self._path = None
        self._end = journal.End(0, "")

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
        ledger = cls.__new__(cls)
        try:
            kind, simulated = Kind(header["kind"]), bool(header["simulated"])
            ledger._open(header["client"], header["delta"], kind, simulated, budget)
            ledger._charges = [Charge(**entry) for entry in entries]
        except (KeyError, TypeError, ValueError) as error:
            raise PrivacyError(
                f"The ledger {path} has a line that this release cannot use: {error}"
            ) from error
        ledger._path, ledger._end = path, end
        if end.torn:
            warnings.warn(
                f"The ledger {path} ends in an unfinished line of {end.torn} bytes: the program "
                f"stopped while it wrote "
                "a charge, before any step of it ran. It counts for nothing and goes with the "
                "next charge.",
                accounting.AccountingWarning,
                stacklevel=2,
            )
        return ledger

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All that is on record, in order."""
        return tuple(self._charges)

    @property
    def steps(self) -> int:
        """How many steps are on record."""
        return sum(charge.steps for charge in self._charges)

    def segments(self, *, through: int | None = None) -> tuple[Segment, ...]:
        """The record as the accountants see it, with equal settings added up; up to round
        ``through`` if given."""
        counted = (c for c in self._charges if through is None or c.round <= through)
        return accounting.merged(charge.segment for charge in counted)

    def epsilon(self, *, through: int | None = None) -> Epsilon:
        """What all that is on record costs; infinite if the client trains without DP.

        With ``through``, the cost of the rounds up to that one: a resumed simulation repeats rounds
        that are on record already, and reports of each what an uninterrupted one would."""
        return accounting.epsilon(self.segments(through=through), self.delta, self.kind)

    def charge(self, round: int, steps: int, sampling_rate: float, noise_multiplier: float) -> None:
        """Put ``steps`` steps of ``round`` on record and authorise them; steps authorised before
        and not taken lapse.

        Raises BudgetExhausted, with nothing written, if that would exceed the budget.
        """
        charge = Charge(round, steps, sampling_rate, noise_multiplier)
        if self.kind is Kind.NONE:
            raise PrivacyError(
                f"The ledger of client {self.client} is of kind none: it trains without DP and "
                f"has nothing to charge. "
                "Open it with kind=Kind.END_TO_END or Kind.CONDITIONAL to train with DP."
            )
        self._authorised = 0
        if not (self.simulated and charge in self._charges):
            self._check_budget(charge)
            if self._path is not None:
                entry = dataclasses.asdict(charge)
                self._end = journal.append(self._path, entry, self._end, durable=not self.simulated)
            self._charges.append(charge)
        self._authorised = steps

    def take(self) -> None:
        """Use up one authorised step. DP-SGD calls this before each one."""
        if self._authorised < 1:
            raise PrivacyError(
                f"Client {self.client} has no step left that is on its ledger. "
                "Call charge(round, steps, sampling_rate, noise_multiplier) before the round's "
                "first step."
            )
        self._authorised -= 1

    def check_release(self, round: int) -> None:
        """Raise PrivacyError unless the cost of ``round`` is on record. A client without DP has no
        cost to record."""
        if self.kind is not Kind.NONE and all(charge.round != round for charge in self._charges):
            raise PrivacyError(
                f"The proxy of client {self.client} must not leave: round {round} is not on its "
                f"ledger. "
                "Call charge for the round first (with 0 steps if the client did not train in it)."
            )

    def affordable_steps(self, sampling_rate: float, noise_multiplier: float, limit: int) -> int:
        """How many more steps of this setting, up to ``limit``, the budget allows; ``limit`` if
        there is no budget."""
        _validate.whole("limit", limit, at_least=0)
        if self.budget is None or self._fits(Segment(sampling_rate, noise_multiplier, limit)):
            return limit
        if not self._fits(Segment(sampling_rate, noise_multiplier, 0)):
            return 0
        return most(
            lambda steps: self._fits(Segment(sampling_rate, noise_multiplier, steps)), 0, limit - 1
        )

    def _cost_with(self, extra: Segment, budget: Budget) -> float:
        return accounting.epsilon_of((*self.segments(), extra), self.delta, budget.accountant)

    def _fits(self, extra: Segment) -> bool:
        return self.budget is None or self._cost_with(extra, self.budget) <= self.budget.epsilon

    def _check_budget(self, charge: Charge) -> None:
        # No steps cost nothing: a client whose budget is spent may still pass on what it received.
        if self.budget is None or not charge.steps or self._fits(charge.segment):
            return
        budget = self.budget
        now = shown(accounting.epsilon_of(self.segments(), self.delta, budget.accountant))
        then = shown(self._cost_with(charge.segment, budget))
        raise BudgetExhausted(
            f"Client {self.client}, round {charge.round}: {charge.steps} more steps would raise "
            f"epsilon from {now} to {then} ({budget.accountant}, {self.kind}), above the budget "
            f"of {budget.epsilon:g}. Nothing was spent. Use fewer steps (affordable_steps says "
            "how many), or stop."
        )
