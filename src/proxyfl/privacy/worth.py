r"""The expected worth of joining, from public facts alone.

K sites with n examples each train a linear proxy of d parameters for each class within (epsilon,
delta). Of all examples a part p are cases, and a good model of the task has an AUROC of A (from the
literature). Cases are what a model learns from, so a rare outcome counts for little. With

    d0 = sqrt(2) Phi^-1(A),   pq = p (1 - p),   N = K n,   mu = sqrt(steps) / sigma

(mu is the budget as Gaussian DP, sigma the noise multiplier of full batches), the error of a score,
in parts of what a perfect score varies and beyond that of a model of all N records, is

    alone    r_a = own (d / (n pq d0^2))^s (1 - 1 / K)               too few cases
    proxy    r_p = noise (d^width sqrt(K / h) / (mu N pq d0))^(2 s)  noise; h = 1 under gossip
    kept     1 / r = 1 / r_a + 1 / r_p                               each site combines both

    AUROC(r) = Phi(d0 / sqrt(2 (1 + r)))
    gain     = reach (AUROC(r) - AUROC(r_a)),   share = gain / (A - AUROC(r_a))

s is below 1 because models are regularised: ten times fewer cases give an error less than ten times
larger. In a masked sum the noise of h members together is enough (``privacy.coalition``). A site
that has examples of ``seen`` of C classes knows nothing of the others (AUROC 1/2) and has only the
proxy for them. A site that says what its own model scores (``alone``) has its r_a from that.

A single run differs from the mean, because its noise is drawn once. One run in six ends below

    gain - spread sqrt(gain (A - AUROC(r)))

which is narrow where noise takes little, and where it takes so much that sites keep their own.

The constants (``RULE``) are fitted to generated federations. ``python -m benchmarks.calibration``
does so, leaves each federation out in turn, and records predicted against measured. It is a rule of
thumb: it does not know how much the sites differ.

The settings: full batches, so that a step's sum weighs each site by its examples; ``ROUNDS`` steps
with momentum, or ``MORE_ROUNDS`` for a rare outcome if a masked sum has room for them; a learning
rate at which the noise of one averaged step moves the weights of two classes by ``STEP``, or by
``SHORT_STEP`` if a proxy is narrow and the signal weak or cases rare.

Guarantee: the noise keeps the whole run within epsilon by the PLD accountant.
"""

import math
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist

from proxyfl import _validate
from proxyfl.errors import ConfigError
from proxyfl.privacy.calibration import noise_for
from proxyfl.privacy.coalition import Coalition
from proxyfl.privacy.planning import check_small

ROUNDS = 40
MORE_ROUNDS = 100
"""Steps of a masked sum over a rare outcome, whose loss is flat, if the noise is so small that the
learning rate is at its limit even so (docs/research/joining.md)."""
MOMENTUM = 0.9
STEP = 0.1
SHORT_STEP = 0.05
WEAK, RARE, NARROW = 0.78, 0.1, 20
"""The AUROC and the share of cases below which, and the parameters for each class up to which, the
step is the short one. For weak signals a real federation gained by it; on generated ones narrow
proxies gain a little and wide ones lose (docs/research/joining.md), hence the third condition."""

FASTEST = 2.0
"""The largest learning rate: beyond it clipped gradients overshoot whatever the noise."""

USUAL = 0.8
"""The AUROC that is taken for attainable where nobody says."""

WORTH = 1.0
"""Expected points below which joining is not worth the effort."""

CANNOT = 0.25
"""Expected share of what pooling gives below which these sites cannot do this at this budget."""

COIN = 0.501
"""The least score that is taken for a model of one's own; that of a coin says nothing."""

_SITES = (*range(3, 32), *range(32, 257, 8))
_EPSILONS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


@dataclass(frozen=True)
class Rule:
    """The fitted constants of the module's formulas."""

    own: float
    noise: float
    width: float
    power: float
    reach: float
    spread: float


RULE = Rule(own=1.29, noise=1.36, width=0.97, power=0.67, reach=1.0, spread=1.0)


@dataclass(frozen=True)
class Facts:
    """Public facts: sites, examples of each, the proxy's parameters, the budget; the score that a
    good model has; of how many classes a site has examples (all, if None); the share of cases
    (1 / classes, if None); the colluders of a masked sum (gossip, if None). ``alone`` is a site's
    own score and stays there."""

    clients: int
    examples: int
    parameters: int
    epsilon: float
    delta: float
    classes: int = 2
    score: float = USUAL
    seen: int | None = None
    prevalence: float | None = None
    colluders: int | None = None
    alone: float | None = None

    def __post_init__(self) -> None:
        _validate.whole("clients", self.clients, at_least=2)
        _validate.whole("examples", self.examples)
        _validate.whole("parameters", self.parameters)
        _validate.whole("classes", self.classes, at_least=2)
        _validate.number("score", self.score, above=0.5, below=1)
        _validate.number("epsilon", self.epsilon, above=0)
        _validate.number("delta", self.delta, above=0, below=1)
        check_small(self.delta, self.examples)
        if self.prevalence is not None:
            _validate.number("prevalence", self.prevalence, above=0, below=1)
        if self.alone is not None:
            _validate.number("alone", self.alone, above=0, below=1)
        if self.seen is not None and not 1 <= self.seen <= self.classes:
            raise ConfigError(
                f"Expected 1 to {self.classes} classes that a site has seen, got seen={self.seen}."
            )
        if self.colluders is not None:
            Coalition(self.colluders, self.clients)

    @property
    def coalition(self) -> Coalition | None:
        """The terms of the masked sum; None under gossip."""
        return None if self.colluders is None else Coalition(self.colluders, self.clients)

    @property
    def honest(self) -> int:
        """h: the members whose noise together is enough; one under gossip."""
        return 1 if self.coalition is None else self.coalition.honest

    @property
    def cases(self) -> float:
        """p: the share of cases."""
        return 1 / self.classes if self.prevalence is None else self.prevalence

    @property
    def width(self) -> float:
        """d: the parameters for each class."""
        return self.parameters / self.classes

    @property
    def signal(self) -> float:
        """d0: the distance of cases and others on a perfect score, in standard deviations."""
        return math.sqrt(2) * _quantile(self.score)

    def auroc(self, error: float) -> float:
        """AUROC(r): the score of a model with this error."""
        return _normal(self.signal / math.sqrt(2 * (1 + error)))


@dataclass(frozen=True)
class Settings:
    """Settings for training the proxy: full batches, ``rounds`` steps and then ``settle`` to mix.
    After a masked sum one round is enough, in which everybody takes the same mean."""

    rounds: int
    settle: int
    batch: int
    noise_multiplier: float
    learning_rate: float
    momentum: float = MOMENTUM


@dataclass(frozen=True)
class Worth:
    """The expected gain from joining, in points of AUROC over a model of the site's own.

    ``gain`` is the mean over runs and ``low`` what one run in six falls below; ``most`` is what
    pooling without privacy gives and ``share`` the part of it. ``alone`` is the expected AUROC of a
    site's own model. Joining counts as ``counts_as`` examples of one's own."""

    alone: float
    gain: float
    low: float
    most: float
    share: float
    counts_as: float

    @property
    def join(self) -> bool:
        """True if joining is expected to pay: a point or more in the mean, and half a point in five
        runs of six."""
        return self.gain >= WORTH and self.low >= WORTH / 2


MORE = 0.05
"""The share by which half of the columns must be better to be advised."""


@dataclass(frozen=True)
class Needed:
    """The changes that would be enough for joining to pay, each with all else as it is; None where
    nothing would be."""

    sites: int | None
    epsilon: float | None
    parameters: int | None


def step_for(facts: Facts) -> float:
    """The length of a step of noise, by public facts."""
    weak = facts.score < WEAK or _is_rare(facts)
    return SHORT_STEP if weak and facts.width <= NARROW else STEP


def _is_rare(facts: Facts) -> bool:
    return min(facts.cases, 1 - facts.cases) < RARE


def rounds_for(facts: Facts, *, total: int | None = None) -> int:
    """The steps for these facts; ``total`` is the number of all sites' examples, where they are not
    alike."""
    if facts.coalition is None or not _is_rare(facts):
        return ROUNDS
    has_room = _rate(facts, MORE_ROUNDS, total) >= FASTEST
    return MORE_ROUNDS if has_room else ROUNDS


def settings_for(facts: Facts, *, total: int | None = None) -> Settings:
    """The settings for these facts; ``total`` as for ``rounds_for``."""
    rounds = rounds_for(facts, total=total)
    rate = min(FASTEST, _rate(facts, rounds, total))
    return Settings(
        rounds=rounds,
        settle=1 if facts.coalition else math.ceil(math.log2(facts.clients)) + 1,
        batch=facts.examples,
        noise_multiplier=_noise(facts, rounds),
        learning_rate=float(f"{rate:.2g}"),
    )


def _noise(facts: Facts, rounds: int) -> float:
    return noise_for(facts.epsilon, sampling_rate=1.0, steps=rounds, delta=facts.delta)


def _rate(facts: Facts, rounds: int, total: int | None) -> float:
    """The learning rate at which the noise of a step moves the weights by ``step_for``."""
    everyone = facts.clients * facts.examples if total is None else total
    of_the_sum = _noise(facts, rounds) * math.sqrt(facts.clients / facts.honest)
    return step_for(facts) / (of_the_sum * math.sqrt(2 * facts.width) / everyone)


def worth(facts: Facts, *, examples: int | None = None, rule: Rule = RULE) -> Worth:
    """Estimates what joining is worth to a site of average size, or with ``examples``."""
    own = own_error(facts, examples=examples, rule=rule)
    noise = proxy_error(facts, rule)
    together = 1 / (1 / own + 1 / noise) if own else 0.0
    seen = 1.0 if facts.seen is None else facts.seen / facts.classes
    alone = seen * facts.auroc(own) + (1 - seen) * 0.5
    kept = seen * facts.auroc(together) + (1 - seen) * facts.auroc(noise)
    pooled = facts.score - alone
    gain = rule.reach * (kept - alone)
    return Worth(
        alone=alone,
        gain=100 * gain,
        low=100 * (gain - rule.spread * math.sqrt(gain * (facts.score - kept))),
        most=100 * pooled,
        share=gain / pooled if pooled > 0 else 0.0,
        counts_as=(examples or facts.examples) * (own / together if together else 1.0),
    )


def own_error(facts: Facts, *, examples: int | None = None, rule: Rule = RULE) -> float:
    """r_a: the error of a site's own model beyond that of a model of everybody's records."""
    if facts.alone is not None:
        distance = _quantile(max(facts.alone, COIN))
        return max(0.0, (facts.signal / distance) ** 2 / 2 - 1)
    others = 1 - 1 / facts.clients
    information = (examples or facts.examples) * facts.cases * (1 - facts.cases)
    lacking = facts.width / (information * facts.signal**2)
    return float(rule.own * lacking**rule.power * others)


def proxy_error(facts: Facts, rule: Rule = RULE) -> float:
    """r_p: the error that the noise gives to the proxy."""
    mu = gaussian_dp(facts.epsilon, facts.delta)
    information = facts.clients * facts.examples * facts.cases * (1 - facts.cases)
    noise = facts.width**rule.width * math.sqrt(facts.clients / facts.honest)
    return float(rule.noise * (noise / (mu * information * facts.signal)) ** (2 * rule.power))


def noise_ratio(
    *,
    clients: int,
    honest: int,
    width: float,
    mu: float,
    total: int,
    prevalence: float,
    examples: int,
    own_prevalence: float,
    rule: Rule = RULE,
) -> float:
    """r_p / r_a of a site, in which the unknown score cancels: the error of a proxy trained on
    ``total`` examples, in parts of that of the site's own model of ``examples``."""
    everyone = total * prevalence * (1 - prevalence)
    own = examples * own_prevalence * (1 - own_prevalence)
    noise = rule.noise * (width**rule.width * math.sqrt(clients / honest) / (mu * everyone)) ** (
        2 * rule.power
    )
    lacking = rule.own * (width / own) ** rule.power * (1 - 1 / clients)
    return float(noise / lacking)


def site_weight(examples: int, width: float, mu: float) -> float:
    """n / (n + d / mu^2): what a site's step should count for under gossip, where each site adds
    all of the noise by itself. A half at the ``least_size``; about 1 for a large site."""
    return examples / (examples + width / mu**2)


def least_size(width: float, mu: float, honest: int = 1) -> int:
    """d / (h mu^2), rounded up: the examples below which a site adds more noise to the proxy than
    signal. Under gossip each site adds all of the noise (h = 1), in a masked sum an h-th of it."""
    return math.ceil(width / (honest * mu**2))


@cache
def gaussian_dp(epsilon: float, delta: float) -> float:
    """mu: the largest ratio of sensitivity and noise of one Gaussian release within (epsilon,
    delta), by the exact formula of the analytic Gaussian mechanism (Balle and Wang 2018, arXiv
    1805.06530v2, theorem 8). Infinite where epsilon is."""
    if math.isinf(epsilon):
        return epsilon

    def spent(mu: float) -> float:
        # exp(epsilon) P(N > b) without overflow: b^2 / 2 = a^2 / 2 + epsilon
        a, b = mu / 2 - epsilon / mu, mu / 2 + epsilon / mu
        return _normal(a) - math.exp(-(a**2) / 2) * _scaled_tail(b)

    low, high = 0.0, 1.0
    while spent(high) < delta:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        if spent(middle) < delta:
            low = middle
        else:
            high = middle
    return low


def needed(facts: Facts) -> Needed:
    """Searches for what would be enough for joining to pay: more sites, a larger epsilon, or a
    smaller proxy."""
    return Needed(
        sites=next((k for k in _SITES if k > facts.clients and _pays(_with_sites(facts, k))), None),
        epsilon=next(
            (e for e in _EPSILONS if e > facts.epsilon and _pays(replace(facts, epsilon=e))), None
        ),
        parameters=_largest(facts) or None,
    )


def advise_columns(facts: Facts) -> str | None:
    """The advice to take fewer columns, where the noise of half of them would leave clearly more;
    None elsewhere."""
    fewer = replace(facts, parameters=max(facts.classes, facts.parameters // 2))
    share, then = worth(facts).share, worth(fewer).share
    if then - share < MORE:
        return None
    return (
        f"Fewer columns lose less to the noise: with {fewer.parameters:,} parameters {then:.0%} of "
        f"what pooling gives is expected, with {facts.parameters:,} it is {share:.0%}. Leave out "
        "what says little or repeats another column."
    )


def _with_sites(facts: Facts, clients: int) -> Facts:
    """More sites of this size; of a masked sum, with the same part of them colluding."""
    if facts.colluders is None:
        return replace(facts, clients=clients)
    colluders = max(1, facts.colluders * clients // facts.clients)
    return replace(facts, clients=clients, colluders=colluders)


def _pays(facts: Facts) -> bool:
    return worth(facts).join


def _largest(facts: Facts) -> int:
    """The most parameters, fewer than there are, with which joining pays; 0 if none."""
    fewer = (int(facts.parameters * part / 20) for part in range(19, 0, -1))
    fits = (p for p in fewer if p >= facts.classes and _pays(replace(facts, parameters=p)))
    return next(fits, 0)


def _normal(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def _scaled_tail(x: float) -> float:
    """exp(x^2 / 2) P(N > x), for x >= 0; beyond 20 the asymptotic series, good to nine digits."""
    if x < 20:
        return math.exp(x**2 / 2) * _normal(-x)
    return (1 - 1 / x**2 + 3 / x**4 - 15 / x**6) / (x * math.sqrt(2 * math.pi))


def _quantile(p: float) -> float:
    return NormalDist().inv_cdf(p)
