r"""What joining can be expected to be worth, from public facts alone.

K sites with n examples each release a linear proxy of P parameters under (epsilon, delta). A good
model of the task has an AUROC of A (from the literature). A site has examples of ``seen`` of the C
classes. What a site lacks alone, and pooling without privacy would give, in AUROC:

    x = P' / n,                 P' = P (C - 1) / C     (only differences of logits count)
    S = SHORTFALL (1 - A) x / (1 + x / SATURATED) (1 - 1/K)             too few examples
    U = (A - 1/2) (1 - seen / C)                                        classes never seen
    most = S + U

Take sigma_1 for the noise that one release of that budget would need. Its variance beside that of
sampling n examples is rho = sigma_1^2 P' / n; r = rho / (K - 1) is the noise of the average beside
what joining saves. To first order it costs r S. An estimate that is shrunk as its noise demands
loses no more than it knew, so that what is left is

    share = REACH / (1 + r S / most),     gain = share most

``REACH`` is what a linear proxy and a choice at home have without noise. The three constants are
fitted to the recorded studies (docs/joining.md shows what this says beside what was measured). It
is a rule of thumb: it does not know how much the sites differ.

The settings: full batches, so that a step's sum weighs each site by its examples; ``ROUNDS`` steps
with momentum; a learning rate at which the noise of one averaged step moves the weights of two
classes by ``STEP``.

Guarantee: the noise keeps the whole run within epsilon by the PLD accountant.
"""

import math
from dataclasses import dataclass, replace

from proxyfl import _validate
from proxyfl.errors import ConfigError
from proxyfl.privacy.calibration import most, noise_for
from proxyfl.privacy.statements.planning import check_small

ROUNDS = 40
MOMENTUM = 0.9
STEP = 0.1
FASTEST = 2.0
"""The largest learning rate: beyond it clipped gradients overshoot whatever the noise."""

SHORTFALL = 5.0
"""What a model lacks for each parameter per example, in parts of what the best lacks of 1."""

SATURATED = 2.0
"""Parameters per example at which the shortfall is half of what it would be in proportion."""

REACH = 0.85
"""The part of what pooling gives that joining recovers without noise."""

USUAL = 0.8
"""The AUROC that is taken for attainable where nobody says."""

MOST = 10**9
"""No proxy has more parameters than this."""

WORTH = 1.0
"""Expected points below which joining is not worth the effort."""


@dataclass(frozen=True)
class Facts:
    """What everybody may know: sites, examples of each, the proxy's parameters, the budget; the
    score that a good model has, and of how many classes a site has examples (all, if None)."""

    clients: int
    examples: int
    parameters: int
    epsilon: float
    delta: float
    classes: int = 2
    score: float = USUAL
    seen: int | None = None

    def __post_init__(self) -> None:
        _validate.whole("clients", self.clients, at_least=2)
        _validate.whole("examples", self.examples)
        _validate.whole("parameters", self.parameters)
        _validate.whole("classes", self.classes, at_least=2)
        _validate.number("score", self.score, above=0.5, below=1)
        _validate.number("epsilon", self.epsilon, above=0)
        _validate.number("delta", self.delta, above=0, below=1)
        check_small(self.delta, self.examples)
        if self.seen is not None and not 1 <= self.seen <= self.classes:
            raise ConfigError(
                f"Expected 1 to {self.classes} classes that a site has seen, got "
                f"seen={self.seen}."
            )

    @property
    def effective_parameters(self) -> float:
        """P': the parameters that a prediction depends on."""
        return self.parameters * (self.classes - 1) / self.classes

    @property
    def from_examples(self) -> float:
        """S: what pooling gives because a site has too few examples, in AUROC."""
        x = self.effective_parameters / self.examples
        alone = SHORTFALL * (1 - self.score) * x / (1 + x / SATURATED)
        return min(alone, self.score - 0.5) * (1 - 1 / self.clients)

    @property
    def from_classes(self) -> float:
        """U: what pooling gives because a site has never seen some classes, in AUROC."""
        seen = self.classes if self.seen is None else self.seen
        return (self.score - 0.5) * (1 - seen / self.classes)


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
    over a model of the site's own, as how many examples joining counts, and the most parameters
    of a proxy with which half of what pooling gives is still expected."""

    rho: float
    share: float
    gain: float
    most: float
    counts_as: float
    largest_proxy: int
    settings: Settings

    @property
    def join(self) -> bool:
        """Whether joining is expected to be worth it."""
        return self.gain >= WORTH


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
    pooled = facts.from_examples + facts.from_classes
    share = _share(facts, once)
    kept = 1 / (1 + rho / (facts.clients - 1))
    return Worth(
        rho=rho,
        share=share,
        gain=100 * share * pooled,
        most=100 * pooled,
        counts_as=facts.examples / (1 - kept * (1 - 1 / facts.clients)),
        largest_proxy=_largest(facts, once),
        settings=settings,
    )


def _share(facts: Facts, once: float) -> float:
    """The expected share, at a noise of ``once`` for one release."""
    rho = once**2 * facts.effective_parameters / facts.examples
    few = facts.from_examples
    lost = rho / (facts.clients - 1) * few / (few + facts.from_classes)
    return REACH / (1 + lost)


def _largest(facts: Facts, once: float) -> int:
    """The most parameters with which half of what pooling gives is still expected."""

    def fits(parameters: int) -> bool:
        return _share(replace(facts, parameters=parameters), once) >= 0.5

    return most(fits, 0, MOST)
