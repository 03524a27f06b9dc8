"""Several studies on the same records: composed, not added."""

import math
from pathlib import Path

import pytest

from proxyfl.errors import BudgetExhausted, ConfigError, PrivacyError
from proxyfl.privacy.accounting import Segment, pld_of
from proxyfl.privacy.guarantee import Kind, Relation
from proxyfl.privacy.ledger import Budget, Ledger
from proxyfl.privacy.together import Together, added_up


def study(
    *charges: tuple[int, float, float],
    delta: float = 1e-5,
    kind: Kind = Kind.END_TO_END,
    relation: Relation = Relation.ZERO_OUT,
    path: Path | None = None,
) -> Ledger:
    """A study's ledger with these (steps, rate, noise), one round each."""
    made = Ledger("north", delta=delta, kind=kind, simulated=False, relation=relation, path=path)
    for round, (steps, rate, noise) in enumerate(charges):
        made.charge(round, steps, rate, noise)
    return made


def test_studies_compose() -> None:
    """Two studies cost what their steps cost as one training: less than the sum of both."""
    one, other = study((40, 0.1, 2.0)), study((60, 0.1, 2.0), (30, 0.2, 3.0))
    account = added_up([one, other])
    together = pld_of([Segment(0.1, 2.0, 100), Segment(0.2, 3.0, 30)], 1e-5)
    assert account.total.pld == together
    each = [account.alone(ledger).pld for ledger in (one, other)]
    assert max(each) < account.total.pld < sum(each)


def test_the_delta_is_the_smallest() -> None:
    """By default the total is at the ledgers' smallest delta, and each study is restated at it."""
    account = added_up([study((10, 0.1, 2.0), delta=1e-3), study((10, 0.1, 2.0), delta=1e-6)])
    assert account.total.delta == 1e-6
    assert account.alone(account.ledgers[0]).delta == 1e-6
    assert added_up(account.ledgers, 1e-4).total.pld < account.total.pld


def test_the_weakest_promise_stands() -> None:
    """The total has the weakest kind and relation, and one study without DP makes it infinite."""
    strong = study((10, 0.1, 2.0), relation=Relation.ADD_OR_REMOVE)
    weaker = study((10, 0.1, 2.0), kind=Kind.CONDITIONAL)
    assert added_up([strong, strong]).total.relation is Relation.ADD_OR_REMOVE
    both = added_up([strong, weaker]).total
    assert (both.kind, both.relation) == (Kind.CONDITIONAL, Relation.ZERO_OUT)
    nothing = added_up([strong, study(kind=Kind.NONE)])
    assert math.isinf(nothing.total.best)
    assert nothing.steps_left(5, Segment(0.1, 2.0, 1)) == 0


def test_what_is_left_is_exact() -> None:
    """The steps left fit the budget beside all that was spent, and one more would not."""
    account = added_up([study((40, 0.1, 2.0)), study((20, 0.1, 2.0))])
    left = account.steps_left(2.0, Segment(0.1, 2.0, 1))
    assert left > 0
    assert pld_of([Segment(0.1, 2.0, 60 + left)], 1e-5) <= 2.0
    assert pld_of([Segment(0.1, 2.0, 61 + left)], 1e-5) > 2.0
    assert account.steps_left(0.1, Segment(0.1, 2.0, 1)) == 0


def test_a_budget_counts_earlier_studies() -> None:
    """A ledger whose budget knows of earlier studies allows what is left of the total, to the last
    step, and refuses one more with nothing written."""
    account = added_up([study((40, 0.1, 2.0)), study((20, 0.2, 3.0))])
    left = account.steps_left(2.0, Segment(0.1, 2.0, 1))
    budget = Budget(2.0, earlier=account.segments)
    third = Ledger("north", delta=1e-5, kind=Kind.END_TO_END, simulated=False, budget=budget)
    assert third.affordable_steps(0.1, 2.0, 10_000) == left
    third.charge(0, left, 0.1, 2.0)
    with pytest.raises(BudgetExhausted, match="above the budget of 2"):
        third.charge(1, 1, 0.1, 2.0)
    assert third.steps == left
    assert (
        third.epsilon().pld
        < 2.0
        == pytest.approx(added_up([*account.ledgers, third]).total.pld, abs=0.05)
    )


def test_what_cannot_be_added_up() -> None:
    """No ledger and a delta out of range are refused."""
    with pytest.raises(PrivacyError, match="at least one ledger"):
        Together((), 1e-5)
    with pytest.raises(ConfigError, match="delta=2"):
        added_up([study()], 2.0)
