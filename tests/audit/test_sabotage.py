"""The audit finds mistakes in the mechanism, and does not accuse a mechanism that has none."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats

from proxyfl.audit import steps
from proxyfl.audit.evidence import collect
from proxyfl.audit.finding import audit
from proxyfl.audit.observe import Observation, observe
from proxyfl.audit.steps import Steps
from proxyfl.federation.assembly import Streams, seeded
from proxyfl.privacy import dpsgd
from proxyfl.privacy.accounting import Segment, pld_of
from proxyfl.privacy.dpsgd import DPSGD, Batch
from proxyfl.privacy.noise import add_noise
from proxyfl.privacy.perexample.clipper import Clipper
from proxyfl.privacy.sampling import poisson
from proxyfl.seeds import Randomness, Seeded
from proxyfl.simulation import clients
from tests.audit.settings import small

Patch = pytest.MonkeyPatch


def no_noise(patch: Patch) -> None:
    """Sums leave as they are."""
    patch.setattr(dpsgd, "add_noise", lambda flat, **_: None)


def half_the_noise(patch: Patch) -> None:
    """The ledger is told sigma, the sum gets half of it."""

    def less(flat: torch.Tensor, *, noise_multiplier: float, **rest: Any) -> None:
        add_noise(flat, noise_multiplier=noise_multiplier / 2, **rest)

    patch.setattr(dpsgd, "add_noise", less)


def noise_reused_over_rounds(patch: Patch) -> None:
    """Every step adds the same vector."""

    def again(flat: torch.Tensor, *, source: Randomness, **rest: Any) -> None:
        add_noise(flat, source=Seeded(5, "again"), **rest)

    patch.setattr(dpsgd, "add_noise", again)


def no_clipping(patch: Patch) -> None:
    """Gradients enter at full length."""
    clip = Clipper.clip

    def unclipped(self: Clipper, x: Any, targets: Any, loss: Any, _norm: float, *rest: Any) -> Any:
        return clip(self, x, targets, loss, 1e6, *rest)

    patch.setattr(Clipper, "clip", unclipped)


def sampling_without_charging(patch: Patch) -> None:
    """Records are drawn twice as often as the ledger is told."""

    def more(examples: int, rate: float, source: Randomness) -> torch.Tensor:
        return poisson(examples, min(1.0, 2 * rate), source)

    patch.setattr(dpsgd, "poisson", more)


def one_noise_for_all_clients(patch: Patch) -> None:
    """All clients draw from the stream of client 0."""

    def same(seed: int, client: int) -> Streams:
        return replace(seeded(seed, client), noise=Seeded(seed, "noise", 0))

    patch.setattr(clients, "seeded", same)


def divisor_of_the_drawn_batch(patch: Patch) -> None:
    """The sum is divided by the number of records that happened to be drawn."""
    step = DPSGD.step

    def by_drawn(self: DPSGD, batch: Batch, *rest: Any) -> float | None:
        # past the guard: a saboteur has the source
        object.__setattr__(self, "batch_size", max(1, len(batch)))
        return step(self, batch, *rest)

    patch.setattr(DPSGD, "step", by_drawn)


EXCEEDED = [
    no_noise,
    half_the_noise,
    no_clipping,
    sampling_without_charging,
    one_noise_for_all_clients,
]
ADAM = ("proxy_optimizer.name=adam", "proxy_optimizer.learning_rate=0.1")
OPTIMIZERS = {"sgd": (), "adam": ADAM}


def measured(*overrides: str, **options: Any) -> tuple[Steps, Observation]:
    """What the steps of the small setting show, and what was observed."""
    config = small(*overrides, **options)
    observation = observe(config, method="avgpush", canaries=64)
    return steps.measure(collect(observation), observation, confidence=0.95), observation


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("sabotage", EXCEEDED, ids=lambda sabotage: sabotage.__name__)
def test_a_sabotaged_mechanism_exceeds_its_claim(
    sabotage: Callable[[Patch], None], optimizer: str, monkeypatch: Patch
) -> None:
    """The bound is above the claim, which the ledger makes as if nothing were wrong."""
    sabotage(monkeypatch)
    found, observation = measured(*OPTIMIZERS[optimizer], rounds=20)
    stated = Segment(60 / 179, 4.0, 20)
    assert observation.claimed.pld == pytest.approx(pld_of([stated], 1 / 179))
    assert steps.epsilon(found.noise_at_most, observation) > observation.claimed.best


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "sabotage",
    [noise_reused_over_rounds, one_noise_for_all_clients],
    ids=lambda sabotage: sabotage.__name__,
)
def test_noise_that_other_releases_explain_is_irregular(
    sabotage: Callable[[Patch], None], optimizer: str, monkeypatch: Patch
) -> None:
    """Noise that peers know already is found whatever the bound says."""
    sabotage(monkeypatch)
    found, _ = measured(*OPTIMIZERS[optimizer], rounds=10)
    assert not found.regular


def test_a_divisor_that_depends_on_the_batch_is_irregular(monkeypatch: Patch) -> None:
    """Dividing by the drawn size makes the noise differ from round to round."""
    config = small(rounds=100)
    divisor_of_the_drawn_batch(monkeypatch)
    found = audit(config, canaries=64)
    assert found.steps.steady is False
    assert found.verdict in ("irregular", "exceeded")


def test_adam_hides_a_divisor_that_depends_on_the_batch(monkeypatch: Patch) -> None:
    """Adam divides by the gradients' own size, so the audit says that it did not look."""
    divisor_of_the_drawn_batch(monkeypatch)
    found, _ = measured(*ADAM, rounds=20)
    assert found.steady is None


def accusations(seeds: int, optimizer: str) -> tuple[int, int]:
    """How often a correct mechanism's bound exceeds its claim, and how often its noise is called
    irregular. Epsilon falls in the noise, so the bounds need not be composed."""
    accused = 0
    irregular = 0
    for seed in range(seeds):
        found, observation = measured(*OPTIMIZERS[optimizer], rounds=10, seed=seed)
        accused += found.noise_at_most < observation.mechanism.noise_multiplier
        irregular += not found.regular
    return accused, irregular


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_correct_mechanism_is_not_accused(optimizer: str) -> None:
    """Of five seeds no more bounds exceed the claim than an error of 5 % makes likely."""
    accused, irregular = accusations(5, optimizer)
    assert accused <= stats.binom.ppf(0.999, 5, 0.05)
    assert irregular == 0


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_correct_mechanism_is_not_accused_in_two_hundred_seeds(optimizer: str) -> None:
    """Of 200 seeds no more bounds exceed the claim than an error of 5 % makes likely, nor is the
    noise called irregular more often than one in a thousand does."""
    accused, irregular = accusations(200, optimizer)
    print(f"{optimizer}: of 200 seeds {accused} accused, {irregular} irregular")
    assert accused <= stats.binom.ppf(0.999, 200, 0.05)
    assert irregular <= stats.binom.ppf(0.999, 200, 0.001)
