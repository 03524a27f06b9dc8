r"""Effects behind a linear proxy of two classes, with intervals that know how it was made.

    log odds(y = 1 | x) = b + w x                       the model whose w is wanted

The coefficients of a proxy are no estimate of w. Clipping weighs records by min(1, C / |g|) and can
double them, few steps leave them near their start, and the noise of DP-SGD is in them. All three
follow a mechanism that is public: settings, sizes, the graph, the first proxy and the distribution
of the noise. So it is simulated, and turned around (indirect inference; Gourieroux, Monfort and
Renault 1993):

    1. draw true coefficients theta from N(c, V); for each, draw labels for the given inputs, then
       batches and noise, and train and mix as the run did. The result is a proxy delta(theta)
    2. regress: delta = a + G (theta - c) + e,  e ~ (0, S)
    3. c <- c + G^-1 (released - a),   V <- G^-1 S G^-T;  from 1 again until c stays

The estimate is c, its covariance V: it has what is due to the sample of records and what is due to
the noise. Everything after the release is post-processing and costs no privacy.

**Estimand.** The coefficients of the logistic regression in the population that the records of all
sites together are a sample of, for the schema's features. Where the log odds are not linear in
these, or sites differ in their intercepts, it is the linear model that fits all records best, and
the intervals hold approximately.

**Inputs.** The mechanism needs inputs without labels: in a simulation those of every client, at a
real site its own in the place of all others'. The second assumes that inputs at all sites are
distributed alike.

Guarantees:
    * what is clipped is what ``privacy.dpsgd`` clips: for two classes the norm of a record's
      gradient is sqrt(2) |p - y| |(x, 1)|;
    * an effect that the inputs do not identify, or whose standard error is above ``WIDEST``, has no
      interval, and a reason in its place. None has one if the search does not settle, if the log
      odds of a record are more uncertain than ``MOST_UNCERTAIN``, or if there are fewer than
      ``LEAST_EVENTS`` records of the rarer class for each coefficient. What is refused
      follows from the released proxy, the settings and the inputs alone;
    * equal arguments give equal results.

Coverage is measured, not proven, and only where one logistic regression is true at all sites:
``benchmarks.effects``, with its results in docs/concepts/effects.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from proxyfl.errors import ConfigError
from proxyfl.settings import Optimizer

NORMAL = 1.959964
"""Standard errors on each side of a 95 % interval."""

MOST_RECORDS = 4000
"""The most records that stand for all. Of more, as many are taken at even distances, and each
stands for several."""

_AT_ONCE = 500_000
"""Numbers in the largest intermediate tensor."""

_SPREAD = 10.0
"""Standard deviation of a vague prior on every coefficient. It keeps the search from running away
where nothing is known, and moves an effect that has an interval by less than 1 %."""


@dataclass(frozen=True)
class Member:
    """A site, or all sites of a masked sum together, as the mechanism knows it.

    ``inputs`` are of shape (records, features). Of each record, ``stands_for`` says how many it
    stands for, and ``rates`` with which probability it is in a batch."""

    inputs: Tensor
    stands_for: Tensor
    rates: Tensor
    batch_size: float
    noise: float
    """Standard deviation of the noise in the sum of a step's clipped gradients."""
    optimizer: Optimizer
    steps: int = 1
    weight: float = 1.0

    @classmethod
    def of(
        cls,
        inputs: Tensor,
        *,
        records: float,
        rate: float,
        batch_size: float,
        noise: float,
        optimizer: Optimizer,
        steps: int = 1,
        weight: float = 1.0,
    ) -> "Member":
        """A site of ``records`` records that are distributed as ``inputs`` are."""
        ones = torch.ones(len(inputs))
        stands_for = ones * (records / len(inputs))
        return cls(inputs, stands_for, ones * rate, batch_size, noise, optimizer, steps, weight)


def together(members: Sequence[Member], *, noise: float) -> Member:
    """The members of a masked sum, who take every step together, as one."""
    return replace(
        members[0],
        inputs=torch.cat([each.inputs for each in members]),
        stands_for=torch.cat([each.stands_for for each in members]),
        rates=torch.cat([each.rates for each in members]),
        batch_size=sum(each.batch_size for each in members),
        noise=noise,
    )


@dataclass(frozen=True)
class Mechanism:
    """How the proxy of the member at ``position`` comes about.

    Of ``rounds`` rounds the last ``settle`` only mix. ``mixing`` has the mixing matrix of each
    round, and none for a single member. The mean of the proxies after the exchanges of rounds
    ``average_from`` to rounds - settle takes the proxies' place when they settle; None: no mean is
    taken. ``start`` is the first proxy, (2, features + 1) with the bias last. ``offset`` is what
    the loss adds to the log odds (a balance by the prior)."""

    members: Sequence[Member]
    clip_norm: float
    rounds: int
    settle: int
    mixing: Sequence[Tensor]
    start: Tensor
    average_from: int | None = None
    offset: float = 0.0
    position: int = 0

    def __post_init__(self) -> None:
        if len({each.optimizer.name for each in self.members}) > 1:
            raise ConfigError("Expected one kind of optimizer for all members, got several.")
        if len(self.mixing) != (self.rounds if len(self.members) > 1 else 0):
            raise ConfigError(
                f"Expected a mixing matrix for each of {self.rounds} rounds, got "
                f"{len(self.mixing)}."
            )


@dataclass(frozen=True)
class Interval:
    """An effect on the log odds: its estimate, standard error and 95 % interval, or a reason."""

    value: float | None
    error: float | None
    low: float | None
    high: float | None
    reason: str = ""


def thinned(member: Member, most: int) -> Member:
    """The member with ``most`` records at even distances in the place of more."""
    records = len(member.inputs)
    if records <= most:
        return member
    rows = (torch.arange(most) * records) // most
    return replace(
        member,
        inputs=member.inputs[rows],
        stands_for=member.stands_for[rows] * (records / most),
        rates=member.rates[rows],
    )


@dataclass(frozen=True)
class _Records:
    """A member's records as the steps need them: inputs with the 1 of the intercept last, and for
    each record the largest |p - y| that is not clipped."""

    x: Tensor
    least: Tensor
    stands_for: Tensor
    rates: Tensor

    @classmethod
    def of(cls, member: Member, clip_norm: float) -> "_Records":
        x = torch.cat([member.inputs.float(), torch.ones(len(member.inputs), 1)], dim=1)
        least = clip_norm / (math.sqrt(2) * x.norm(dim=1, keepdim=True))
        return cls(x, least, member.stands_for[:, None], member.rates[:, None])

    @property
    def alone(self) -> bool:
        """True if every record stands for itself."""
        return bool((self.stands_for == 1).all())

    def score(self, odds: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        """The sum of the clipped gradients in a batch, for the second class."""
        if self.alone:
            residual = torch.sub(odds, labels, out=odds).clamp_(-self.least, self.least)
        else:
            # the same for labels 0 and 1, and linear in between
            up = torch.minimum(odds, self.least)
            down = torch.minimum(1 - odds, self.least)
            residual = self.stands_for * (up - labels * (up + down))
        if bool((self.rates < 1).any()):
            drawn = (torch.rand(residual.shape, generator=generator) < self.rates).float()
            residual *= self.rates + (drawn - self.rates) / self.stands_for.clamp(min=1e-12).sqrt()
        return self.x.T @ residual


class Simulator:
    """Runs a mechanism many times at once: true coefficients go in, released proxies come out."""

    def __init__(self, mechanism: Mechanism) -> None:
        share = max(50, MOST_RECORDS // len(mechanism.members))
        members = [thinned(each, share) for each in mechanism.members]
        self.mechanism = mechanism
        self._records = [_Records.of(each, mechanism.clip_norm) for each in members]

    @property
    def design(self) -> Tensor:
        """Every record once, with the 1 of the intercept last."""
        return torch.cat([each.x for each in self._records])

    @property
    def weights(self) -> Tensor:
        """The number of records that each row of ``design`` stands for."""
        return torch.cat([each.stands_for[:, 0] for each in self._records])

    def release(self, truths: Tensor, generator: torch.Generator) -> Tensor:
        """For each row of true coefficients (the bias last) those of a proxy, as log odds."""
        at_once = max(1, _AT_ONCE // len(self.design))
        parts = torch.split(truths.float(), at_once)
        return torch.cat([self._release(part, generator) for part in parts])

    def _release(self, truths: Tensor, generator: torch.Generator) -> Tensor:
        terms = self.mechanism
        labels = self._labels(truths, generator)
        shape = (len(terms.members), 2, terms.start.shape[1], len(truths))
        theta = terms.start[None, :, :, None].expand(shape).clone()
        state = _State.like(theta)
        weights = torch.ones(len(terms.members), dtype=torch.float64)
        training = terms.rounds - terms.settle
        total = torch.zeros_like(theta)
        for round in range(terms.rounds):
            if round == training and terms.average_from is not None:
                theta = total / (training - terms.average_from)
            if round < training:
                for i, member in enumerate(terms.members):
                    for _ in range(member.steps):
                        self._step(i, theta, labels[i], state, generator)
            if terms.mixing:
                mixing, weights = _effective(terms.mixing[round], weights)
                theta = torch.einsum("kj,jopr->kopr", mixing, theta)
            if terms.average_from is not None and terms.average_from <= round < training:
                total += theta
        kept = theta[terms.position]
        return (kept[1] - kept[0]).T

    def _labels(self, truths: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Labels of each member, drawn from the true odds. One that stands for f records is the
        mean of f."""
        labels = []
        for each in self._records:
            odds = torch.sigmoid(each.x @ truths.T + self.mechanism.offset)
            drawn = (torch.rand(odds.shape, generator=generator) < odds).float()
            spread = each.stands_for.clamp(min=1e-12).sqrt()
            labels.append(drawn if each.alone else odds + (drawn - odds) / spread)
        return labels

    def _step(
        self, i: int, theta: Tensor, labels: Tensor, state: "_State", generator: torch.Generator
    ) -> None:
        """One step of DP-SGD of a member, in place."""
        member, records = self.mechanism.members[i], self._records[i]
        logits = records.x @ (theta[i, 1] - theta[i, 0])
        odds = logits.add_(self.mechanism.offset).sigmoid_()
        score = records.score(odds, labels, generator)
        gradient = torch.stack([-score, score])
        gradient += member.noise * torch.randn(gradient.shape, generator=generator)
        state.descend(theta, i, gradient * (member.weight / member.batch_size), member.optimizer)


@dataclass
class _State:
    """The optimizers' memory: one of torch's ``SGD`` or ``Adam`` for each member."""

    first: Tensor
    second: Tensor
    taken: list[int]

    @classmethod
    def like(cls, theta: Tensor) -> "_State":
        return cls(torch.zeros_like(theta), torch.zeros_like(theta), [0] * len(theta))

    def descend(self, theta: Tensor, i: int, gradient: Tensor, optimizer: Optimizer) -> None:
        """The step that torch's optimizer would take."""
        gradient = gradient + optimizer.weight_decay * theta[i]
        self.taken[i] += 1
        if optimizer.name == "sgd":
            self.first[i].mul_(optimizer.momentum).add_(gradient)
            theta[i] -= optimizer.learning_rate * self.first[i]
            return
        t = self.taken[i]
        self.first[i].lerp_(gradient, 0.1)
        self.second[i].mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        root = (self.second[i] / (1 - 0.999**t)).sqrt_().add_(1e-8)
        theta[i] -= optimizer.learning_rate * (self.first[i] / (1 - 0.9**t)) / root


def _effective(mixing: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """What a mixing matrix does to parameters rather than masses, and the weights afterwards."""
    after = mixing @ weights
    return (mixing * weights / after[:, None]).float(), after


@dataclass(frozen=True)
class Fit:
    """Coefficients of the population within what the inputs identify: ``mean`` and ``covariance``
    in the coordinates of ``basis``. ``settled`` is False if the search did not come to rest."""

    mean: Tensor
    covariance: Tensor
    basis: Tensor
    settled: bool
    design: Tensor
    events: float = math.inf
    """The expected number of records of the rarer class, for each coefficient."""

    @property
    def typical_error(self) -> float:
        """The standard error of the log odds of a record, as the root of its mean square."""
        rows = self.design @ self.basis
        return math.sqrt(float(((rows @ self.covariance) * rows).sum(1).mean()))

    def _step(self, contrast: Tensor) -> float:
        """How often the change fits into two standard deviations of its column, at least 1."""
        along = self.design @ contrast.double() / float(contrast.norm()) ** 2
        return max(1.0, 2 * float(along.std()))

    def interval(self, contrast: Tensor) -> Interval:
        """The 95 % interval of a linear combination of coefficients, the intercept last."""
        within = self.basis.T @ contrast.double()
        outside = contrast.double() - self.basis @ within
        if float(outside.norm()) > 1e-3 * float(contrast.norm()):
            return Interval(None, None, None, None, "the inputs do not vary in it")
        if self.events < LEAST_EVENTS:
            reason = f"fewer than {LEAST_EVENTS} records of the rarer class for each coefficient"
            return Interval(None, None, None, None, reason)
        if not self.settled or not self.typical_error < MOST_UNCERTAIN:
            return Interval(None, None, None, None, "too much noise, or too few steps or records")
        value = float(within @ self.mean)
        error = math.sqrt(float(within @ self.covariance @ within))
        if not error * self._step(contrast) < WIDEST:
            return Interval(None, None, None, None, "too much noise, or too few records with it")
        return Interval(value, error, value - NORMAL * error, value + NORMAL * error)


MOST_UNCERTAIN = 0.5
"""The largest standard error of a record's log odds (``Fit.typical_error``) with which there are
intervals. Beyond it the mechanism is too far from linear: intervals cover more than they say."""

LEAST_EVENTS = 15
"""The fewest expected records of the rarer class, for each coefficient, with which there are
intervals."""

WIDEST = 1.0
"""The largest standard error of an effect that has an interval, on the log odds, for its change or
two standard deviations of its column, whichever is larger."""


def fit(mechanism: Mechanism, released: Tensor, *, draws: int = 2000, seed: int = 0) -> Fit:
    """The coefficients of the population behind the ``released`` proxy, (2, features + 1)."""
    simulator = Simulator(mechanism)
    generator = torch.Generator().manual_seed(seed)
    basis = _identified(simulator.design)
    delta = (released[1] - released[0]).double()
    observed = basis.T @ delta
    search = _Search(simulator, basis, observed, generator)
    return search.run(draws)


def _identified(design: Tensor) -> Tensor:
    """An orthonormal basis of the combinations of coefficients that predictions depend on."""
    _, sizes, rows = torch.linalg.svd(design.double(), full_matrices=False)
    kept = sizes > 1e-5 * sizes[0]
    basis: Tensor = rows[kept].T.contiguous()
    return basis


RADIUS = 0.7
"""Standard deviation of the cloud of coefficients, in standard errors."""

MOST_LOOKS = 12
"""The most times that the search moves its centre."""


@dataclass
class _Search:
    """The search for the centre c and the covariance V of the module's docstring."""

    simulator: Simulator
    basis: Tensor
    observed: Tensor
    generator: torch.Generator

    def run(self, draws: int) -> Fit:
        centre = self.observed.clone()
        covariance = self._first_guess(centre, draws // 4)
        still = 0
        for _ in range(MOST_LOOKS):
            before = centre
            centre, covariance, step = self._look(before, covariance, draws // 4)
            still = still + 1 if step < 0.5 else 0
            if still == 2:
                break
        settled = still == 2
        centre, covariance, step = self._look(centre, covariance, draws)
        design = self.simulator.design.double()
        odds = torch.sigmoid(design @ self.basis @ centre + self.simulator.mechanism.offset)
        weights = self.simulator.weights.double()
        second = float((weights * odds).sum())
        events = min(second, float(weights.sum()) - second) / len(centre)
        return Fit(centre, covariance, self.basis, settled and step < 1, design, events)

    def _first_guess(self, centre: Tensor, draws: int) -> Tensor:
        """The spread of the proxies at ``centre``, and that of a logistic regression."""
        rank = len(centre)
        proxies = self._proxies(centre.expand(max(draws, 4 * rank), rank))
        design = self.simulator.design.double() @ self.basis
        odds = torch.sigmoid(design @ centre)
        information = (design * (self.simulator.weights * odds * (1 - odds))[:, None]).T @ design
        prior = torch.eye(rank, dtype=torch.float64) / _SPREAD**2
        spread = torch.cov(proxies.T).reshape(rank, rank)
        both: Tensor = spread + torch.linalg.inv(information + prior)
        return both

    def _look(self, centre: Tensor, covariance: Tensor, draws: int) -> tuple[Tensor, Tensor, float]:
        """The next centre and covariance, and how far the centre moved in its own deviations."""
        rank = len(centre)
        draws = max(draws, 8 * rank)
        root = torch.linalg.cholesky(covariance)
        z = RADIUS * torch.randn(draws, rank, generator=self.generator, dtype=torch.float64)
        proxies = self._proxies(centre + z @ root.T)
        known = torch.cat([torch.ones(draws, 1, dtype=torch.float64), z], dim=1)
        coefficients = torch.linalg.lstsq(known, proxies).solution
        rest = proxies - known @ coefficients
        spread = rest.T @ rest / (draws - rank - 1)
        slope = coefficients[1:].T
        precise = torch.linalg.solve(spread, slope).T
        prior = root.T @ root / _SPREAD**2
        information = precise @ slope + prior
        pull = precise @ (self.observed - coefficients[0]) - root.T @ centre / _SPREAD**2
        move = torch.linalg.solve(information, pull)
        length = float(move.norm()) / math.sqrt(rank)
        # a straight line holds near the cloud only
        held = move * min(1.0, 3 * math.sqrt(rank) / max(float(move.norm()), 1e-12))
        after = root @ torch.linalg.inv(information) @ root.T
        return centre + root @ held, (after + after.T) / 2, length

    def _proxies(self, truths: Tensor) -> Tensor:
        """Released proxies for true coefficients, both in the coordinates of the basis."""
        released = self.simulator.release(truths @ self.basis.T, self.generator)
        return released.double() @ self.basis
