r"""What joining can be expected to be worth, from public facts alone.

K sites with n examples each release a linear proxy of P parameters under (epsilon, delta). Take
sigma_1 for the noise that one release of that budget would need. Its variance beside that of
sampling n examples is

    rho = sigma_1^2 P' / n,     P' = P (C - 1) / C     (C classes: only differences of logits count)

so that joining is like having K n / (1 + rho) examples in place of n. If a model's shortfall with m
examples is a P' / m, then the part that joining recovers of what pooling without privacy gives is

    share = (1/n - (1 + rho)/(K n)) / (1/n - 1/(K n)) = 1 - rho / (K - 1)

and joining loses where rho > K - 1. ``SHORTFALL`` is a, in points of AUROC, as the recorded studies
have it (docs/joining.md shows what this predicts beside what was measured). It is a rule of thumb:
it knows nothing of how easy the task is or how much the sites differ.

The settings: full batches, so that a step's sum weighs each site by its examples; ``ROUNDS`` steps
with momentum; a learning rate at which the noise of one averaged step moves the weights of two
classes by ``STEP``.

Guarantee: the noise keeps the whole run within epsilon by the PLD accountant.
"""

import math
from dataclasses import dataclass

from proxyfl import _validate
from proxyfl.privacy.calibration import noise_for
from proxyfl.privacy.statements.planning import check_small

ROUNDS = 40
MOMENTUM = 0.9
STEP = 0.1
FASTEST = 2.0
"""The largest learning rate: beyond it clipped gradients overshoot whatever the noise."""

SHORTFALL = 80.0
"""Points of AUROC that a model lacks for each parameter per example."""

WORTH = 1.0
"""Expected points below which joining is not worth the effort."""


@dataclass(frozen=True)
class Facts:
    """What everybody may know: sites, examples of each, the proxy's parameters, the budget."""

    clients: int
    examples: int
    parameters: int
    epsilon: float
    delta: float
    classes: int = 2

    def __post_init__(self) -> None:
        _validate.whole("clients", self.clients, at_least=2)
        _validate.whole("examples", self.examples)
        _validate.whole("parameters", self.parameters)
        _validate.whole("classes", self.classes, at_least=2)
        _validate.number("epsilon", self.epsilon, above=0)
        _validate.number("delta", self.delta, above=0, below=1)
        check_small(self.delta, self.examples)

    @property
    def effective_parameters(self) -> float:
        """P': the parameters that a prediction depends on."""
        return self.parameters * (self.classes - 1) / self.classes


@dataclass(frozen=True)
class Settings:
    """How to train the proxy: full batches, ``rounds`` steps and then ``settle`` to mix."""

    rounds: int
    settle: int
    batch: int
    noise_multiplier: float
    learning_rate: float
    momentum: float = MOMENTUM


@dataclass(frozen=True)
class Worth:
    """What is expected: ``share`` of what pooling gives, ``gain`` and ``most`` in points of AUROC
    over a model of the site's own, and as how many examples joining counts."""

    rho: float
    share: float
    gain: float
    most: float
    counts_as: float
    settings: Settings

    @property
    def join(self) -> bool:
        """Whether joining is expected to be worth it."""
        return self.gain >= WORTH

    def largest_proxy(self, facts: Facts) -> int:
        """The most parameters with which half of what pooling gives is still expected."""
        per_parameter = self.rho / facts.parameters
        return math.floor(0.5 * (facts.clients - 1) / per_parameter)


def settings_for(facts: Facts, *, total: int | None = None) -> Settings:
    """The settings for these facts; ``total`` is the number of all sites' examples, where they
    are not alike."""
    noise = noise_for(
        facts.epsilon, sampling_rate=1.0, steps=ROUNDS, delta=facts.delta
    )
    everyone = facts.clients * facts.examples if total is None else total
    of_two_classes = 2 * facts.parameters / facts.classes
    moved = noise * math.sqrt(of_two_classes * facts.clients) / everyone
    rate = min(FASTEST, STEP / moved)
    return Settings(
        rounds=ROUNDS,
        settle=math.ceil(math.log2(facts.clients)) + 1,
        batch=facts.examples,
        noise_multiplier=noise,
        learning_rate=float(f"{rate:.2g}"),
    )


def worth(facts: Facts) -> Worth:
    """What joining can be expected to be worth."""
    settings = settings_for(facts)
    once = settings.noise_multiplier / math.sqrt(settings.rounds)
    rho = once**2 * facts.effective_parameters / facts.examples
    share = 1 - rho / (facts.clients - 1)
    shortfall = SHORTFALL * facts.effective_parameters / facts.examples
    most = min(shortfall, 50.0) * (1 - 1 / facts.clients)
    return Worth(
        rho=rho,
        share=share,
        gain=most * share,
        most=most,
        counts_as=facts.clients * facts.examples / (1 + rho),
        settings=settings,
    )
