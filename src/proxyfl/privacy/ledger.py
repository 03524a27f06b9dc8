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
    * a charge that would exceed the budget raises, with nothing written; what a lost copy has spent
      is put on record all the same (``record_spent``), and leaves that much less to spend;
    * where the ledger has a ``page`` in an account, what all studies have spent on the same data
      counts, and a charge is in the account before it is in the ledger;
    * of two programs that write to one file, one is stopped, whenever they write (``journal``);
    * a real ledger charges a repeated round again, because its noise is fresh, and states in every
      round all that it has been charged. A simulation that is resumed repeats the same noise, which
      reveals nothing new, so the same charge for the same round is recorded once;
    * a checkpoint's ``receipt`` is honoured: ``demand`` refuses a ledger that lost a charge which
      the checkpoint knows of;
    * a charge for steps of a masked sum holds its coalition, so that both epsilons, against the
      agreed coalition and against all others, follow from the ledger alone;
    * how the gradients of the charged steps were computed is on record before they are
      (``record_gradients``).
"""

import dataclasses
import json
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

from proxyfl import _validate
from proxyfl._files import short_hash
from proxyfl._setonce import SetOnce
from proxyfl.errors import BudgetExhausted, PrivacyError
from proxyfl.privacy import accounting, journal
from proxyfl.privacy.accounting import Segment
from proxyfl.privacy.calibration import most
from proxyfl.privacy.coalition import Coalition
from proxyfl.privacy.guarantee import Computation, Epsilon, Gradients, Kind, Relation, Unit, shown
from proxyfl.settings import ACCOUNTANTS, DP


@dataclass(frozen=True)
class Charge:
    """One line of the ledger: so many steps in a round.

    ``coalition`` is None for steps whose noise was the client's own. In a masked sum it holds what
    both epsilons follow from, besides the noise multiplier of the sum."""

    round: int
    steps: int
    sampling_rate: float
    noise_multiplier: float
    coalition: Coalition | None = None

    def __post_init__(self) -> None:
        _validate.whole("round", self.round, at_least=0)
        _ = self.segment

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> Self:
        """The charge in a line of a ledger; TypeError or ValueError if it is none."""
        about = dict(line)
        if "coalition" in about:
            about["coalition"] = Coalition(**about["coalition"])
        return cls(**about)

    def line(self) -> dict[str, Any]:
        """The charge as a line of a ledger. One without a coalition is written as in releases that
        had none."""
        about = dataclasses.asdict(self)
        if self.coalition is None:
            del about["coalition"]
        return about

    @cached_property
    def segment(self) -> Segment:
        """The charge as the accountants see it."""
        return Segment(self.sampling_rate, self.noise_multiplier, self.steps, self.coalition)


@dataclass(frozen=True)
class Budget:
    """The epsilon that a client's data may cost in all, by the accountant named: against the
    coalitions that its steps were made for, and, if ``all_others`` is given, if all others collude.

    ``earlier`` is what other studies on the same data have cost already (``Together.segments``); it
    counts as if it were on the ledger, composed at the ledger's delta. What an account knows of
    counts without being named here."""

    epsilon: float
    accountant: str = "pld"
    earlier: tuple[Segment, ...] = ()
    all_others: float | None = None

    @classmethod
    def of(cls, dp: DP) -> Self | None:
        """The budget that the settings ask for; None if they ask for none."""
        if dp.budget is None:
            return None
        return cls(dp.budget, dp.accountant, all_others=dp.budget_all_others)

    def __post_init__(self) -> None:
        _validate.number("budget epsilon", self.epsilon, above=0)
        _validate.choice("accountant", self.accountant, ACCOUNTANTS)
        if self.all_others is not None:
            _validate.number("budget epsilon if all others collude", self.all_others, above=0)


Spent = tuple[Segment, ...]


class Page(Protocol):
    """A ledger's page in an account: the charges of all studies on the same data."""

    def spent(self, own: Sequence[Segment]) -> Spent:
        """All that counts before the next charge; ``own`` is what is on the ledger itself."""
        ...

    def fits(self, spent: Spent, extra: Segment) -> bool:
        """True if the account's total budget allows ``extra`` after ``spent``."""
        ...

    def enter(self, charge: Charge, own: Sequence[Segment], check: Callable[[Spent], None]) -> None:
        """Put ``charge`` on record, unless ``check`` or the account's total budget raises. Nobody
        else's charge comes between the check and the entry."""
        ...


VERSION = 1


class Ledger(SetOnce, changing=("_authorised", "_left", "_end", "_path", "_number", "_page")):
    """One client's account.

    A new one starts empty; ``Ledger.read`` continues one from its file; ``Ledger.at`` does
    whichever of the two fits."""

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
        self._number = ""
        self._page: Page | None = None
        self._charges: list[Charge] = []
        self._gradients: list[Gradients | None] = []
        self._authorised: Charge | None = None
        self._left = 0
        self._end = journal.End(0, "", 0)
        if path is not None:
            header = self._header()
            if not simulated:
                self._number = secrets.token_hex(8)
                header["number"] = self._number
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
            for name, kind in (("client", str), ("simulated", bool)):
                if not isinstance(header[name], kind):
                    raise TypeError(f"{name} is {header[name]!r}")
            ledger = cls(
                header["client"],
                delta=header["delta"],
                kind=header["kind"],
                simulated=header["simulated"],
                # Ledgers from before the relation was recorded sampled at B/n: this one.
                relation=header.get("relation", Relation.ZERO_OUT),
                unit=header.get("unit", Unit.RECORD),
                budget=budget,
            )
            ledger._number = header.get("number", "")
            for entry in entries:
                ledger._take_in(_parse_entry(entry))
        except (KeyError, TypeError, ValueError) as error:
            raise PrivacyError(
                f"The ledger {path} has a line that this release cannot use: {error}"
            ) from error
        ledger._path = path
        ledger._end = end
        if end.torn:
            about = (
                f"an unfinished line of {end.torn} bytes: the program stopped while it wrote a "
                "charge, before any step of it ran. It counts for nothing and goes with the next "
                "charge."
            )
            if not end.terminated:
                about = (
                    f"{end.torn} damaged bytes in place of a line break. The charge before them is "
                    "complete and counts; the next charge replaces them."
                )
            warnings.warn(
                f"The ledger {path} ends in {about}", accounting.AccountingWarning, stacklevel=2
            )
        return ledger

    @classmethod
    def at(cls, path: Path, client: str, *, budget: Budget | None = None, **promise: Any) -> Self:
        """The ledger at ``path``, continued if there is one, else new; ``promise`` as in a new one.

        One that is there must be of the same client and promise the same; PrivacyError says where
        it differs."""
        if not path.exists():
            return cls(client, budget=budget, path=path, **promise)
        ledger = cls.read(path, budget=budget)
        stated = ledger._header()
        for name, value in cls(client, **promise)._header().items():
            if stated[name] != value:
                raise PrivacyError(
                    f"The ledger {path} has {name}={stated[name]!r}, expected {value!r}: "
                    "it belongs to another client or to other settings. Put the right file in its "
                    "place, or begin a new run in another folder."
                )
        return ledger

    @property
    def path(self) -> Path | None:
        """The ledger's file; None if it is kept in memory."""
        return self._path

    @property
    def number(self) -> str:
        """Drawn when a real ledger's file is made, so that a later file at the same path is another
        ledger; empty for simulations, and for ledgers of earlier releases."""
        return self._number

    @property
    def page(self) -> Page | None:
        """Its place in an account, if the institution keeps one."""
        return self._page

    @page.setter
    def page(self, page: Page) -> None:
        """Count what other studies spend from now on. A ledger is kept in one account for ever."""
        if self._page is not None:
            raise self._refusal("page")
        self._page = page

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All that is on record, in order."""
        return tuple(self._charges)

    @property
    def gradients(self) -> tuple[Gradients | None, ...]:
        """The ways in which the gradients of all charged steps were computed, each once, in the
        order of their first use. None stands for steps of which it is not on record: those of
        earlier releases, and of mechanisms without gradients."""
        return tuple(self._gradients)

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
        return accounting.epsilon(spent, self.delta, self.kind, self.relation, self.unit)

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
        self,
        round: int,
        steps: int,
        sampling_rate: float,
        noise_multiplier: float,
        coalition: Coalition | None = None,
        *,
        again: bool = False,
    ) -> None:
        """Put ``steps`` steps of ``round`` on record and authorise them; steps authorised before
        and not taken lapse.

        A simulated ledger records a charge that it has already only if it is made ``again``.
        Raises BudgetExhausted, with nothing written, if that would exceed the budget.
        """
        charge = Charge(round, steps, sampling_rate, noise_multiplier, coalition)
        if self.kind is Kind.NONE:
            raise PrivacyError(
                f"The ledger of client {self.client} is of kind none: it trains without DP and "
                "has nothing to charge. Open it with kind=Kind.END_TO_END or Kind.CONDITIONAL to "
                "train with DP."
            )
        self._authorised = None
        self._left = 0
        if again or not (self.simulated and charge in self._charges):
            self._enter(charge)
            self._append(charge.line())
            self._take_in(charge)
        self._authorised = charge
        self._left = steps

    def record_spent(
        self,
        round: int,
        steps: int,
        sampling_rate: float,
        noise_multiplier: float,
        coalition: Coalition | None = None,
    ) -> None:
        """Put on record steps that were taken elsewhere: by a copy of this client whose ledger is
        lost. They are spent, so the budget is not asked, and none of them is authorised here.

        An account that the ledger is kept in takes them over when it is opened next."""
        charge = Charge(round, steps, sampling_rate, noise_multiplier, coalition)
        self._append(charge.line())
        self._take_in(charge)

    def record_gradients(self, gradients: Gradients) -> None:
        """Put on record how the gradients of the steps that follow are computed; once for each
        way."""
        if gradients in self._gradients:
            return
        self._append(dataclasses.asdict(gradients))
        self._take_in(gradients)

    def _append(self, entry: dict[str, Any]) -> None:
        """Add a line to the ledger's file, if it has one."""
        if self._path is not None:
            self._end = journal.append(self._path, entry, self._end, durable=not self.simulated)

    def _take_in(self, entry: Charge | Gradients) -> None:
        """Take over a line that is in the file."""
        if isinstance(entry, Gradients):
            self._gradients.append(entry)
            return
        self._charges.append(entry)
        if entry.steps and not self._gradients:
            self._gradients.append(None)

    def take(
        self, sampling_rate: float, noise_multiplier: float, coalition: Coalition | None = None
    ) -> Charge:
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
                f"which has {charged[0]} and {charged[1]}. Charge for the settings that the steps "
                "will have."
            )
        if coalition != charge.coalition:
            raise PrivacyError(
                f"Client {self.client}, round {charge.round}: a step for {_terms(coalition)} is "
                f"not the one charged, which is for {_terms(charge.coalition)}. Charge for the "
                "terms that the steps will have."
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
        self,
        sampling_rate: float,
        noise_multiplier: float,
        limit: int,
        coalition: Coalition | None = None,
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
            extra = Segment(sampling_rate, noise_multiplier, steps, coalition)
            if self.page is not None and not self.page.fits(spent, extra):
                return False
            return self._fits(spent, extra)

        if fits(limit):
            return limit
        return most(fits, 0, limit - 1) if fits(0) else 0

    def _cost_with(self, spent: Spent, extra: Segment, budget: Budget) -> float:
        every = (*budget.earlier, *spent, extra)
        return accounting.epsilon_of(every, self.delta, budget.accountant)

    def _cost_alone(self, spent: Spent, extra: Segment, budget: Budget) -> float:
        """The same if all others collude."""
        every = accounting.if_all_collude((*budget.earlier, *spent, extra))
        return accounting.epsilon_of(every, self.delta, budget.accountant)

    def _fits(self, spent: Spent, extra: Segment) -> bool:
        budget = self.budget
        if budget is None:
            return True
        if self._cost_with(spent, extra, budget) > budget.epsilon:
            return False
        limit = budget.all_others
        return limit is None or self._cost_alone(spent, extra, budget) <= limit

    def _enter(self, charge: Charge) -> None:
        # No steps cost nothing: a client whose budget is spent may still pass on what it received.
        if not charge.steps:
            return
        own = self.segments()
        if self.page is None:
            self._check_budget(charge, own)
        else:
            self.page.enter(charge, own, lambda spent: self._check_budget(charge, spent))

    def _check_budget(self, charge: Charge, spent: Spent) -> None:
        if self.budget is None or self._fits(spent, charge.segment):
            return
        budget = self.budget
        none = Segment(charge.sampling_rate, charge.noise_multiplier, 0)
        cost, limit, against = self._cost_with, budget.epsilon, ""
        if cost(spent, charge.segment, budget) <= limit:
            assert budget.all_others is not None  # or it would fit
            cost, limit = self._cost_alone, budget.all_others
            against = " if all others collude"
        now = shown(cost(spent, none, budget))
        then = shown(cost(spent, charge.segment, budget))
        raise BudgetExhausted(
            f"Client {self.client}, round {charge.round}: {charge.steps} more steps would raise "
            f"epsilon from {now} to {then} ({budget.accountant}, {self.kind}){against}, above the "
            f"budget of {limit:g}. Nothing was spent. Use fewer steps (affordable_steps says "
            "how many), or stop."
        )


def _parse_entry(entry: Mapping[str, Any]) -> Charge | Gradients:
    """The content of a line of the file."""
    if "way" in entry:
        return Gradients(**{**entry, "way": Computation(entry["way"])})
    return Charge.read(entry)


def _terms(coalition: Coalition | None) -> str:
    """The terms of a step, in words."""
    if coalition is None:
        return "noise of the client's own"
    return f"a masked sum with {coalition.colluders} colluders and a quorum of {coalition.quorum}"


def _seal(charges: Sequence[Charge]) -> str:
    """A short hash of the charges, in order."""
    lines = [json.dumps(charge.line()) for charge in charges]
    return short_hash("\n".join(lines).encode())
