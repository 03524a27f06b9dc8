"""Charges, budgets, and what a ledger asks of the account that it is kept in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from proxyfl import _validate
from proxyfl.privacy.accounting import ACCOUNTANTS, Segment


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
    """The epsilon that a client's data may cost in all, by the accountant named.

    ``earlier`` is what other studies on the same data have cost already (``Together.segments``); it
    counts as if it were on the ledger, composed at the ledger's delta. What an account knows of
    counts without being named here."""

    epsilon: float
    accountant: str = "pld"
    earlier: tuple[Segment, ...] = ()

    def __post_init__(self) -> None:
        _validate.number("budget epsilon", self.epsilon, above=0)
        _validate.choice("accountant", self.accountant, ACCOUNTANTS)


Spent = tuple[Segment, ...]


class Page(Protocol):
    """A ledger's page in an account: the charges of all studies on the same data."""

    def spent(self, own: Sequence[Segment]) -> Spent:
        """All that counts before the next charge; ``own`` is what is on the ledger itself."""
        ...

    def fits(self, spent: Spent, extra: Segment) -> bool:
        """Whether the account's total budget allows ``extra`` after ``spent``."""
        ...

    def enter(
        self,
        charge: Charge,
        own: Sequence[Segment],
        check: Callable[[Spent], None],
    ) -> None:
        """Put ``charge`` on record, unless ``check`` or the account's total budget raises. Nobody
        else's charge comes between the check and the entry."""
        ...
