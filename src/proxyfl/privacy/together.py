"""The joint cost of several studies on the same records.

Each study has its own ledger. Somebody who sees the releases of all of them sees one long sequence
of steps, so the cost of all is that of all charges composed, by the accountants, at one delta. That
is less than the sum of the epsilons, and holds without adding the deltas.

Guarantees:
    * the total is an upper bound for an observer of every study, whatever a study's design owed to
      the releases of an earlier one;
    * its kind and relation are the weakest among the studies'; one study without DP makes it
      infinite;
    * a ledger counts once: the same file twice is refused;
    * ledgers per record and ledgers per group are not added up: a person's change of one record
      moves a group's clipped mean by up to 2 C, and a person's change of all records moves the sum
      of clipped records by more than C.

That the ledgers are about the same records is for the caller to know. The total is also a bound,
though not a tight one, if they overlap only in part.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from proxyfl import _validate
from proxyfl.errors import PrivacyError
from proxyfl.privacy import accounting
from proxyfl.privacy.accounting import Segment
from proxyfl.privacy.calibration import steps_left
from proxyfl.privacy.guarantee import Epsilon, Kind, Relation, Unit, weakest
from proxyfl.privacy.ledger import Ledger


@dataclass(frozen=True)
class Together:
    """The ledgers of one dataset's studies, to be added up at one ``delta``."""

    ledgers: tuple[Ledger, ...]
    delta: float

    def __post_init__(self) -> None:
        _validate.number("delta", self.delta, above=0, below=1)
        if not self.ledgers:
            raise PrivacyError(
                "Expected at least one ledger to add up, got none. Name the ledgers of the studies."
            )
        if len({ledger.unit for ledger in self.ledgers}) > 1:
            raise PrivacyError(
                "Expected ledgers of one unit, got some that are per record and some that are "
                "per group. Neither promise covers the other: add them up separately."
            )

    @property
    def kind(self) -> Kind:
        """The weakest kind of guarantee among the studies."""
        return weakest(self.ledgers)[0]

    @property
    def relation(self) -> Relation:
        """Add-or-remove if it holds for every study."""
        return weakest(self.ledgers)[1]

    @property
    def unit(self) -> Unit:
        """The unit that all studies protect."""
        return self.ledgers[0].unit

    @property
    def simulated(self) -> bool:
        """True if some of the noise can be recomputed."""
        return any(ledger.simulated for ledger in self.ledgers)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """All charges of all studies as the accountants see them."""
        every = chain.from_iterable(ledger.segments() for ledger in self.ledgers)
        return accounting.merged(every)

    @cached_property
    def total(self) -> Epsilon:
        """The joint cost of all studies."""
        return accounting.epsilon(self.segments, self.delta, self.kind, self.relation, self.unit)

    def alone(self, ledger: Ledger) -> Epsilon:
        """The cost of one study by itself, at the account's delta."""
        spent = ledger.segments()
        return accounting.epsilon(spent, self.delta, ledger.kind, ledger.relation, ledger.unit)

    def steps_left(self, budget: float, setting: Segment) -> int:
        """The number of further steps of this setting that the budget allows in addition to all
        that was spent, up to 2^20; 0 if it is spent. By PLD."""
        _validate.number("budget-epsilon", budget, above=0)
        if self.kind is Kind.NONE:
            return 0
        return steps_left(self.segments, setting, delta=self.delta, budget=budget)


def added_up(ledgers: Sequence[Ledger], delta: float | None = None) -> Together:
    """The account of ``ledgers``; by default at the smallest of their deltas."""
    smallest = min((ledger.delta for ledger in ledgers), default=0.5)
    return Together(tuple(ledgers), smallest if delta is None else delta)
