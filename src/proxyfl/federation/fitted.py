"""Local learning with a private model that is fitted, not trained step by step.

``Fitted`` trains the proxy as ``Single`` does. Its private model is made whenever it is asked for:
an estimator fitted on the client's own examples, with the received proxy or without. It teaches the
proxy nothing, so the proxy's guarantee is end-to-end. ``choose`` decides what the institution keeps
by a rule that was fixed beforehand.

Every candidate (``federation.home``) is judged by its log-loss on the client's own examples, out of
fold and after a fit of scale and shift, so that a site's own prevalence does not decide. Of the
candidates that listen to the proxy the best is taken; ``alone`` only if it is better than that by
more than ``SURE`` standard errors of the difference. A site's own examples cannot show what the
others' are like, so in doubt the proxy has a say. An institution that asks about its own patients
alone (``choose_for`` "own") turns this around: ``alone`` is kept unless the best of the others is
better by more than ``SURE`` standard errors. A site that has no example of some class cannot show
at all what its own models would do to that class: for "all" it takes the proxy or a sum, which
leave such classes to the proxy. A site with fewer than ``FEW`` examples for each class takes no
bare proxy: its folds can hardly tell a proxy from a sum, and a sum errs less.

How noisy a proxy is follows from public facts, and a small site's folds cannot show it. Take q for
the expected error of the proxy in parts of that of the client's own model (``privacy.worth``). A
sum with a share s of the proxy is expected to err by s^2 q + (1 - s)^2 of what ``alone`` errs,
which is least at

    s = 1 / (1 + q)

Where q is known, a client that asks for "all" takes the sum with that share, with CAUTION q for q,
unless ``alone`` is surely better; the folds choose nothing else. For "own" the folds choose, and
the candidates that are not expected to gain are left out: those for which CAUTION q is not below
2 / s - 1 (s = 1 for the proxy and the regressions on top of it).

Guarantees:
    * the private model depends on the client's own examples, the proxy that the round began with,
      and the seed; so a resumed run keeps the same one. It is never shared;
    * the choice depends on the same alone, and nothing of it is released: it costs no privacy;
    * persons are never split between fitting and judging.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from proxyfl._entrypoint import HERE, Imports
from proxyfl._examples import Examples
from proxyfl._setonce import SetOnce
from proxyfl.errors import ConfigError, ModelError
from proxyfl.federation.home import Home, combined
from proxyfl.federation.learners import (
    Losses,
    Single,
    Trainer,
    Training,
    copy_state,
    frozen_copy,
    take_steps,
)
from proxyfl.federation.methods import Role
from proxyfl.federation.state import State, pack, unpack
from proxyfl.losses import NO_BALANCE, Balance, Objective
from proxyfl.models.estimators import (
    PUBLISHED,
    Array,
    Candidate,
    Labels,
    candidates,
    score_candidates,
    softmax_fit,
)
from proxyfl.models.fits import OutcomeCandidate, fits_of
from proxyfl.tasks import Task, classification

SHARES = (0.5, 0.75)
"""The proxy's shares in a sum."""

SURE = 2.0
"""Standard errors by which ``alone`` must be better to be kept."""

CAUTION = 3.0
"""How many times its expected error a proxy is taken to have: a single draw of noise may be worse
than the mean, sites differ, and the rule that expects it is a rule of thumb. Chosen on some made-up
federations and confirmed on others (docs/research/joining.md)."""

FEW = 20
"""Examples for each class, on average, from which on a bare proxy may be kept."""

FOLDS = 5

RESIDUAL_PENALTIES = (100.0, 10.0)


@dataclass(frozen=True)
class Judged:
    """A candidate's name, weights and how it is fitted, with its loss on each own example."""

    name: str
    fit: Candidate | float | None
    weights: tuple[float, float]
    losses: Array

    @property
    def loss(self) -> float:
        """The mean loss."""
        return float(self.losses.mean())

    @property
    def share(self) -> float:
        """The proxy's share; all of it for a regression on top of the proxy."""
        return self.weights[1]


def choose(
    spec: str,
    examples: Examples,
    classes: int,
    *,
    received: nn.Module | None = None,
    balance: Balance = NO_BALANCE,
    seed: int = 0,
    imports: Imports = HERE,
    noise: float | None = None,
    published: Sequence[float] = (),
    choose_for: str = "all",
) -> Home:
    """The model to keep: ``alone`` without a proxy, otherwise by the rule of the module. ``noise``
    is q; without it the proxy is taken for good. A ``published`` score, and regressions on top of
    it, are among the estimators of the client's own; with the spec PUBLISHED it is kept as it is.
    """
    at_hand = Local.of(examples, classes, received, balance, seed)
    scores = score_candidates(published) if published else []
    tried = scores[:1] if spec == PUBLISHED else [*candidates(spec, imports), *scores]
    judged = [(judge_alone(each, at_hand), each) for each in tried]
    alone, own = min(judged, key=lambda pair: pair[0].loss)
    if received is None:
        return at_hand.fitted(alone, None)
    logits = at_hand.out_of_fold(own) - at_hand.shift
    listening = [judge_sum(own, logits, at_hand, share) for share in (1.0, *SHARES)]
    folds = (alone.loss, listening[0].loss)
    if len(at_hand.y) < FEW * classes:
        listening = [option for option in listening if option.fit is not None]
    lacks_a_class = len(np.unique(at_hand.y)) < classes
    if lacks_a_class and choose_for == "all":
        best = min(listening, key=lambda option: option.loss)
        return at_hand.fitted(best, received, folds)
    if choose_for == "all" and noise is not None:
        share = round(1 / (1 + CAUTION * noise), 2)
        listening = [judge_sum(own, logits, at_hand, share)] if share else []
    else:
        if not lacks_a_class:
            listening.extend(judge_residuals(at_hand))
        listening = [
            option
            for option in listening
            if noise is None or CAUTION * noise < 2 / option.share - 1
        ]
    if not listening:
        return at_hand.fitted(alone, received, folds)
    best = min(listening, key=lambda option: option.loss)
    difference = best.losses - alone.losses
    deviation = float(difference.std())
    sure = SURE * deviation / math.sqrt(len(difference))
    mean = float(difference.mean())
    listens = mean <= sure if choose_for == "all" else mean < -sure
    kept = best if listens else alone
    return at_hand.fitted(kept, received, folds)


def choose_outcome(
    task: Task, spec: str, examples: Examples, *, received: nn.Module | None = None, seed: int = 0
) -> Home:
    """The model to keep for a task that is no classification, by the same rule: the best of those
    that listen to the proxy, or ``alone`` where that is surer. Every example is judged by the
    task's loss, out of fold, and a site with fewer than 2 ``FEW`` examples takes no bare proxy."""
    fits = fits_of(task)
    labels = examples.labels.cpu()
    inputs = examples.take(torch.arange(len(examples))).cpu()
    x = inputs.flatten(1).double().numpy()
    y = fits.targets(labels)
    persons = None if examples.groups is None else examples.groups.cpu().numpy()
    folds = list(_folds(fits.strata(labels), persons, seed))
    if len(labels) < 2 or not folds:
        raise ModelError(
            f"{len(labels)} examples are too few to fit {spec!r} and to judge it. Name an "
            "architecture for the private model."
        )
    proxy = np.zeros((len(x), task.outputs))
    if received is not None:
        received.cpu().eval()
        with torch.no_grad():
            proxy = received(inputs.clone()).double().numpy()

    def out_of_fold(fit: Callable[[Labels], nn.Module]) -> Array:
        outputs = np.zeros((len(x), task.outputs))
        for fitting, judging in folds:
            with torch.no_grad():
                part = fit(fitting)(torch.from_numpy(x[judging]).float())
            outputs[judging] = part.double().numpy()
        return outputs

    def kept(judged: _Option) -> Home:
        own = None if judged.fit is None else judged.fit(np.arange(len(x)))
        listens = received if judged.weights[1] else None
        shift = torch.zeros(task.outputs)
        return Home(judged.name, own, listens, judged.weights, shift, classes=False)

    def alone_with(candidate: OutcomeCandidate) -> tuple[_Option, Array]:
        def fit(rows: Labels) -> nn.Module:
            return candidate.fit(x[rows], y[rows], seed)

        outputs = out_of_fold(fit)
        name = f"alone ({candidate.name})"
        return _Option(name, fit, (1.0, 0.0), fits.losses(outputs, y)), outputs

    tried = [alone_with(candidate) for candidate in fits.candidates(spec)]
    alone, own = min(tried, key=lambda pair: pair[0].losses.mean())
    if received is None:
        return kept(alone)
    listening = []
    if len(x) >= 2 * FEW:
        listening.append(_Option("proxy", None, (0.0, 1.0), fits.losses(proxy, y)))
    for share in SHARES:
        weights = (1 - share, share)
        losses = fits.losses(weights[0] * own + share * proxy, y)
        name = f"sum, {share:g} proxy{alone.name.removeprefix('alone')}"
        listening.append(_Option(name, alone.fit, weights, losses))
    for penalty in RESIDUAL_PENALTIES:

        def on_top(rows: Labels, penalty: float = penalty) -> nn.Module:
            return fits.residual(x[rows], y[rows], penalty, proxy[rows])

        losses = fits.losses(out_of_fold(on_top) + proxy, y)
        listening.append(_Option(f"residual, penalty {penalty:g}", on_top, (1.0, 1.0), losses))
    best = min(listening, key=lambda option: option.losses.mean())
    difference = best.losses - alone.losses
    error = float(difference.std()) / math.sqrt(len(difference))
    return kept(alone if difference.mean() > SURE * error else best)


@dataclass(frozen=True)
class _Option:
    """A candidate's name, how it is fitted on some rows, its weights and its losses."""

    name: str
    fit: Callable[[Labels], nn.Module] | None
    weights: tuple[float, float]
    losses: Array


@dataclass(frozen=True)
class Local:
    """The client's own examples as arrays, the proxy's logits for them (zeros without one), and the
    folds."""

    x: Array
    y: Labels
    classes: int
    proxy: Array
    balance: Balance
    folds: Sequence[tuple[Labels, Labels]]
    seed: int

    @classmethod
    def of(
        cls,
        examples: Examples,
        classes: int,
        received: nn.Module | None,
        balance: Balance,
        seed: int,
    ) -> "Local":
        """The arrays and folds of a client's examples."""
        inputs = examples.take(torch.arange(len(examples))).cpu()
        y = examples.labels.cpu().numpy().copy()  # the examples' own memory otherwise
        groups = examples.groups
        persons = None if groups is None else groups.cpu().numpy()
        proxy = np.zeros((len(y), classes))
        if received is not None:
            received.cpu().eval()
            with torch.no_grad():
                proxy = received(inputs.clone()).double().numpy()
        return cls(
            x=inputs.flatten(1).double().numpy(),
            y=y,
            classes=classes,
            proxy=proxy,
            balance=balance,
            folds=list(_folds(y, persons, seed)),
            seed=seed,
        )

    @property
    def shift(self) -> Array:
        """What is taken off the estimator's logits: the log shares under ``prior``."""
        offsets = self.balance.offsets
        return np.array(offsets) if offsets else np.zeros(self.classes)

    def out_of_fold(self, fit: Candidate | float) -> Array:
        """Logits for every example, by models that have not seen it or its person."""
        logits = np.zeros((len(self.y), self.classes))
        for fitting, judging in self.folds:
            model = self._fit(fit, fitting)
            x = torch.from_numpy(self.x[judging])
            with torch.no_grad():
                part = model(x.float())
            logits[judging] = part.double().numpy()
        return logits

    def combined(self, own: Array, weights: tuple[float, float]) -> Array:
        """The weighted sum with the proxy, fold by fold: a class that a fold's model has not seen
        is left to the proxy there, as at home."""
        logits = np.zeros_like(own)
        for _, judging in self.folds:
            part = torch.from_numpy(own[judging])
            received = torch.from_numpy(self.proxy[judging])
            logits[judging] = combined(part, received, *weights).numpy()
        return logits

    def _fit(self, fit: Candidate | float, rows: Labels) -> nn.Module:
        """A candidate, or a residual with this penalty, fitted on some of the examples."""
        x, y = self.x[rows], self.y[rows]
        weights = None
        if self.balance.weights:
            weights = np.array(self.balance.weights)[y]
        if isinstance(fit, Candidate):
            return fit.fit(x, y, self.classes, weights, self.seed)
        offset = self.proxy[rows] + self.shift
        return softmax_fit(x, y, self.classes, fit, offset=offset, weights=weights)

    def fitted(
        self, judged: Judged, received: nn.Module | None, folds: tuple[float, float] | None = None
    ) -> Home:
        """The model that is kept, fitted on all of the client's examples."""
        own = None
        everyone = np.arange(len(self.y))
        if judged.fit is not None:
            own = self._fit(judged.fit, everyone)
        shift = self.shift
        if not isinstance(judged.fit, Candidate):
            shift = shift * 0
        return Home(
            judged.name,
            own,
            received=received if judged.weights[1] else None,
            weights=judged.weights,
            shift=torch.from_numpy(shift).float(),
            folds=folds,
        )


def judge_alone(candidate: Candidate, at_hand: Local) -> Judged:
    """An estimator of the client's own, by its folds."""
    name = f"alone ({candidate.name})"
    losses = _losses(at_hand.out_of_fold(candidate), at_hand.y)
    return Judged(name, candidate, (1.0, 0.0), losses)


def judge_sum(own: Candidate, logits: Array, at_hand: Local, share: float) -> Judged:
    """The sum with this share of the proxy; the bare proxy where that is all of it. ``logits`` are
    those of the client's own estimator, out of fold."""
    if share == 1:
        return Judged("proxy", None, (0.0, 1.0), _losses(at_hand.proxy, at_hand.y))
    weights = (1 - share, share)
    losses = _losses(at_hand.combined(logits, weights), at_hand.y)
    return Judged(f"sum, {share:g} proxy ({own.name})", own, weights, losses)


def judge_residuals(at_hand: Local) -> Iterator[Judged]:
    """The regressions on top of the proxy, by the folds."""
    for penalty in RESIDUAL_PENALTIES:
        name = f"residual, penalty {penalty:g}"
        logits = at_hand.out_of_fold(penalty) + at_hand.proxy
        losses = _losses(logits, at_hand.y)
        yield Judged(name, penalty, (1.0, 1.0), losses)


def _losses(logits: Array, y: Labels) -> Array:
    """The log-loss of each example after a fit of one scale and of each class's shift."""
    from scipy import optimize

    seen = np.unique(y)
    z = logits[:, seen]
    # a common scale keeps the search well-conditioned whatever the logits' size
    centred = z - z.mean(1, keepdims=True)
    z = centred / max(float(centred.std()), 1e-9)
    target = np.searchsorted(seen, y)
    rows = np.arange(len(y))

    def losses(theta: Array) -> Array:
        fitted = theta[0] * z + theta[1:]
        top = fitted.max(1)
        powers = np.exp(fitted - top[:, None])
        total = top + np.log(powers.sum(1))
        each: Array = total - fitted[rows, target]
        return each

    def penalized_loss(theta: Array) -> float:
        # a scale below zero would turn a model's opinion around
        penalty = float((theta[1:] ** 2).sum())
        return float(losses(theta).mean()) + 1e-4 * penalty

    start = np.zeros(1 + len(seen))
    start[0] = 1.0
    limits: list[tuple[float | None, None]] = [(None, None)] * len(start)
    limits[0] = (0.0, None)
    solution = optimize.minimize(penalized_loss, start, method="L-BFGS-B", bounds=limits)
    return losses(solution.x)


def _folds(y: Labels, persons: Labels | None, seed: int) -> Iterator[tuple[Labels, Labels]]:
    """Persons in folds, drawn class by class so that rare classes are in as many as they can.

    One person more moves others to another fold. That is no leak, as it would be for a test part:
    folds choose what the institution keeps, and nothing of that is released."""
    generator = np.random.default_rng(seed)
    own = np.arange(len(y)) if persons is None else persons
    _, first, person = np.unique(own, return_index=True, return_inverse=True)
    fold = np.empty(len(first), dtype=np.int64)
    begin = 0
    for label in np.unique(y):
        of_label = np.flatnonzero(y[first] == label)
        members = generator.permutation(of_label)
        end = begin + len(members)
        fold[members] = np.arange(begin, end) % FOLDS
        begin = end
    of_example = fold[person.ravel()]
    for number in range(FOLDS):
        judging = np.flatnonzero(of_example == number)
        fitting = np.flatnonzero(of_example != number)
        if len(judging) and len(fitting):
            yield fitting, judging


class Fitted(SetOnce, changing=("_private",)):
    """A client with an estimator as private model, and a proxy; or, for ``alone``, no proxy."""

    def __init__(
        self,
        spec: str,
        examples: Examples,
        *,
        seed: int,
        classes: int = 0,
        task: Task | None = None,
        trainer: Trainer | None = None,
        objective: Objective = NO_BALANCE,
        imports: Imports = HERE,
        noise: float | None = None,
        published: Sequence[float] = (),
        choose_for: str = "all",
    ) -> None:
        self.spec = spec
        self._choose_for = choose_for
        self._imports = imports
        self.received = None if trainer is None else frozen_copy(trainer.model)
        self._single = None if trainer is None else Single(trainer)
        self._examples = examples
        self._task = classification([str(i) for i in range(classes)]) if task is None else task
        self._seed = seed
        self._objective = objective
        self._noise = noise
        self._published = published
        self._private: Home | None = None

    @property
    def trainer(self) -> Trainer:
        return self._proxy.trainer

    @property
    def shared(self) -> nn.Module:
        return self._proxy.shared

    @property
    def _proxy(self) -> Single:
        """The proxy and its training; ConfigError for a client that has none."""
        if self._single is None:
            raise ConfigError(f"A client with {self.spec} and no proxy shares nothing.")
        return self._single

    def train(self, round: int, steps: int) -> Losses:
        if self._single is None:
            self._private = None
            return Losses()
        return take_steps(self.trainer, self.training(round, steps))

    def training(self, round: int, steps: int) -> Training:
        self._private = None
        if self._single is None or self.received is None:
            return Losses()
        # as in ``Mutual``: what the exchange gave is what the round begins with
        copy_state(self._single.shared, self.received)
        return (yield from self._single.training(round, steps))

    def adopt(self, theta: Tensor) -> None:
        self._proxy.adopt(theta)

    def snapshot(self) -> nn.Module:
        return self._proxy.snapshot()

    def models(self) -> dict[Role, nn.Module]:
        if self._private is None and not self._task.is_classification:
            self._private = choose_outcome(
                self._task, self.spec, self._examples, received=self.received, seed=self._seed
            )
        if self._private is None:
            balance = self._objective
            assert isinstance(balance, Balance)
            self._private = choose(
                self.spec,
                self._examples,
                self._task.outputs,
                received=self.received,
                balance=balance,
                seed=self._seed,
                imports=self._imports,
                noise=self._noise,
                published=self._published,
                choose_for=self._choose_for,
            )
        models: dict[Role, nn.Module] = {"private": self._private}
        if self._single is not None:
            models |= self._single.models()
        return models

    def state(self) -> State:
        if self._single is None or self.received is None:
            return {}
        return self._single.state() | pack({"received": self.received})

    def restore(self, state: State) -> None:
        self._private = None
        if self._single is None or self.received is None:
            return
        self._single.restore(state)
        unpack(state, {"received": self.received})
