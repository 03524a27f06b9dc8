"""Quantiles with DP: they are close, are paid for first, and one record moves no answer far."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxyfl import seeds
from proxyfl.errors import BudgetExhausted, ConfigError, PrivacyError
from proxyfl.privacy import quantiles
from proxyfl.privacy.calibration import noise_for
from proxyfl.privacy.guarantee import Kind
from proxyfl.privacy.ledger import Budget, Ledger


def ledger(simulated=True, **options):
    """An empty ledger."""
    return Ledger("a", delta=1e-5, kind=Kind.END_TO_END, simulated=simulated, **options)


def search(values, quantile=0.5, noise_multiplier=5.0, seed=0, **options):
    """One quantile of one column within [0, 100]."""
    (found,) = quantiles.estimate(
        [np.asarray(values, dtype=np.float64)],
        [(0.0, 100.0)],
        [quantile],
        noise_multiplier=noise_multiplier,
        ledger=options.pop("ledger", ledger()),
        source=seeds.Seeded(seed, "noise"),
        **options,
    )
    return found[0]


@pytest.mark.parametrize("quantile", [0.05, 0.5, 0.95])
def test_estimates_are_close(quantile):
    """With 2,000 records at epsilon 1 the estimate's rank is within 5 % of the one asked for."""
    values = np.random.default_rng(0).beta(2, 5, 2000) * 100
    sigma = noise_for(1.0, sampling_rate=1.0, steps=quantiles.HALVINGS, delta=1e-5)
    for seed in range(10):
        found = search(values, quantile, sigma, seed)
        assert (values <= found).mean() == pytest.approx(quantile, abs=0.05)


def test_noise_is_there():
    """Another seed gives another estimate: a search that forgot its noise would not."""
    values = np.linspace(0, 100, 200)
    assert len({search(values, noise_multiplier=30.0, seed=seed) for seed in range(10)}) > 1


def test_all_questions_are_paid_for_before_the_first():
    """Columns x quantiles x halvings steps at sampling rate 1 are on the ledger, and no more."""
    account = ledger()
    quantiles.estimate(
        [np.arange(50.0), np.arange(50.0)],
        [(0.0, 64.0), (0.0, 64.0)],
        [0.1, 0.9],
        noise_multiplier=9.0,
        ledger=account,
        source=seeds.Seeded(0, "noise"),
        halvings=4,
    )
    assert [(c.steps, c.sampling_rate, c.noise_multiplier) for c in account.charges] == [(16, 1, 9)]
    with pytest.raises(PrivacyError, match="no step left"):
        account.take(1.0, 9.0)


def test_the_charge_covers_the_epsilon_asked_for():
    """Noise made for epsilon 1 costs at most epsilon 1, and not much less."""
    account = ledger()
    sigma = noise_for(1.0, sampling_rate=1.0, steps=quantiles.HALVINGS, delta=1e-5)
    search(np.arange(100.0), noise_multiplier=sigma, ledger=account)
    assert 0.95 < account.epsilon().pld <= 1.0


def test_a_budget_stops_the_search_before_a_question():
    """A search beyond the budget raises with nothing asked and nothing written."""
    account = ledger(budget=Budget(0.1))
    with pytest.raises(BudgetExhausted):
        search(np.arange(100.0), ledger=account)
    assert not account.charges


@settings(max_examples=100)
@given(
    values=st.lists(st.floats(-50, 150), max_size=20),
    record=st.floats(-1e6, 1e6),
    quantile=st.floats(0.01, 0.99),
    t=st.floats(0, 100),
)
def test_one_record_moves_an_answer_by_less_than_one(values, record, quantile, t):
    """The question's sensitivity is below 1 for every record, quantile and place."""

    def answer(records):
        below = sum(x <= t for x in records)
        return (1 - quantile) * below - quantile * (len(records) - below)

    assert abs(answer([*values, record]) - answer(values)) < 1


def test_missing_values_count_nowhere_and_outliers_as_bounds():
    """NaN changes nothing; a value beyond a bound is taken for the bound."""
    values = [10.0, 20.0, 30.0, 40.0, 50.0] * 40
    assert search([*values, np.nan, np.nan]) == search(values)
    assert search([*values, 1e9]) == search([*values, 100.0])


def test_seeded_noise_needs_a_simulated_ledger():
    """A ledger that claims a real guarantee refuses noise that can be recomputed."""
    with pytest.raises(PrivacyError, match="real noise"):
        search(np.arange(5.0), ledger=ledger(simulated=False))


def test_real_noise():
    """With the system's noise and a real ledger the search works; a quantile of 0 is refused."""
    account = ledger(simulated=False)
    arguments = {"noise_multiplier": 5.0, "ledger": account, "source": seeds.System()}
    values = np.linspace(0, 100, 5000)
    ((found,),) = quantiles.estimate([values], [(0.0, 100.0)], [0.5], **arguments)
    assert found == pytest.approx(50, abs=5)
    with pytest.raises(ConfigError, match="further from 0 and 1"):
        quantiles.estimate([values], [(0.0, 100.0)], [1e-12], **arguments)


def test_bounds_are_checked():
    """Bounds in the wrong order are refused before anything is charged."""
    account = ledger()
    with pytest.raises(ConfigError, match="from low to high"):
        quantiles.estimate(
            [np.arange(5.0)],
            [(5.0, 5.0)],
            [0.5],
            noise_multiplier=1.0,
            ledger=account,
            source=seeds.Seeded(0, "noise"),
        )
    assert not account.charges
