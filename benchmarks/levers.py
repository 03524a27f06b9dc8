"""Ways to make joining pay more that are no settings (docs/research/joining.md says why):
``python -m benchmarks.levers FEATURES.store [--other FEATURES.store]``.

Eight sites with 1000 examples of two classes each, 32 with 100 examples, or eight with 800 of 1000
examples of one class share a linear model of public features. Each line is the accuracy on the test
part, a mean over draws of the noise, at epsilon 1 and 3. A store that has sites of its own keeps
them; a quarter of its training persons is held out, and each line is the AUROC on those:

    descent            what the studies do: 40 steps of full batches, averaged
    class means        one release of every class's sum of features and count; the nearest mean wins
    mean-regularised   a model of each site's own, drawn towards the mean (MR-MTL)
    secure sum         descent, if only the sum of all sites were seen: noise of one site, not of K
    other directions   descent on the features of ``--other``, such as those of benchmarks.leaves
    alone, pooled      without noise, corrected for the class prior, by the strength of the penalty

and, from jax-privacy, the error of noise that is correlated over the steps beside that of
independent noise."""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from proxyfl.data import Dataset, by_class, majority
from proxyfl.data.sources import load
from proxyfl.losses import class_shares
from proxyfl.measures import MEASURES, Predictions
from proxyfl.models.estimators import softmax_fit
from proxyfl.privacy.calibration import noise_for
from proxyfl.privacy.worth import Facts, settings_for

Array = npt.NDArray[Any]
STEPS = 40
MOMENTUM = 0.9
DRAWS = 3
PENALTIES = (100.0, 10.0, 1.0, 0.1)
PULLS = (0.1, 1.0)
"""Strengths with which a site's own model is drawn towards the mean."""


@dataclass(frozen=True)
class Federation:
    """Every site's features and labels, and the part on which all are judged."""

    name: str
    parts: Sequence[tuple[Array, Array]]
    test: tuple[Array, Array]
    classes: int
    ranked: bool = False

    @property
    def sizes(self) -> list[int]:
        """The examples of each site."""
        return [len(labels) for _, labels in self.parts]

    @property
    def delta(self) -> float:
        """1 / (10 n) of the largest site."""
        return 1 / (10 * max(self.sizes))

    def score(self, weights: Array) -> float:
        """The accuracy of a linear model on the judged part, or its AUROC."""
        x, y = self.test
        logits = x @ weights
        if self.ranked:
            return MEASURES["auroc"].compute(Predictions(logits, y)) or math.nan
        return float((logits.argmax(1) == y).mean())


def federations(store: str) -> list[Federation]:
    """The store's examples by their own sites, or divided in three ways."""
    dataset = load(store)
    if dataset.site is not None:
        return [_true_sites(dataset)]
    x, y = arrays(dataset.train)
    generator = np.random.default_rng(0)
    few = by_class(y, clients=8, classes=2, examples=1000, generator=generator)
    many = majority(y, clients=32, examples=100, p_major=0.8, generator=generator)
    skewed = majority(y, clients=8, examples=1000, p_major=0.8, generator=np.random.default_rng(0))
    divided = {
        "8 sites, 2 classes each": few,
        "32 sites of 100": many,
        "8 sites, 80 % of one class": skewed,
    }
    found = []
    for name, rows in divided.items():
        parts = [(x[part], y[part]) for part in rows]
        found.append(Federation(name, parts, arrays(dataset.test), dataset.classes))
    return found


def _true_sites(dataset: Dataset) -> Federation:
    """The training part by sites, a quarter of its persons held out to be judged."""
    x, y = arrays(dataset.train)
    groups = dataset.train.groups
    persons = np.arange(len(y)) if groups is None else groups.numpy()
    drawn = np.random.default_rng(7).permutation(np.unique(persons))
    held_out = np.isin(persons, drawn[: len(drawn) // 4])
    parts = []
    for number in range(len(dataset.site_names)):
        rows = (np.asarray(dataset.site) == number) & ~held_out
        parts.append((x[rows], y[rows]))
    judged = (x[held_out], y[held_out])
    return Federation("true sites", parts, judged, dataset.classes, ranked=True)


def descent(all_sites: Federation, epsilon: float, seed: int, *, secure: bool = False) -> float:
    """The score of the model that ``descended`` gives."""
    return all_sites.score(descended(all_sites, epsilon, seed, secure=secure))


def descended(all_sites: Federation, epsilon: float, seed: int, *, secure: bool = False) -> Array:
    """The shared model of 40 noisy full-batch steps, averaged over the second half."""
    sites = len(all_sites.parts)
    noise, rate = _settings(all_sites, epsilon)
    generator = np.random.default_rng(seed)
    x = np.concatenate([part for part, _ in all_sites.parts])
    y = np.concatenate([labels for _, labels in all_sites.parts])
    weights = np.zeros((x.shape[1], all_sites.classes))
    velocity = np.zeros_like(weights)
    average = np.zeros_like(weights)
    spread = noise * (1.0 if secure else math.sqrt(sites))
    for step in range(STEPS):
        gradient = clipped_sum(x, y, weights)
        gradient += spread * generator.normal(size=weights.shape)
        velocity = MOMENTUM * velocity + gradient / len(y)
        weights = weights - rate * velocity
        if step >= STEPS // 2:
            average += weights
    mean: Array = average / (STEPS - STEPS // 2)
    return mean


def class_means(all_sites: Federation, epsilon: float, seed: int) -> float:
    """Every class's sum and count, released once by each site. A record adds a vector of length
    sqrt(2): its features at length 1, and a count of 1."""
    once = noise_for(epsilon, sampling_rate=1.0, steps=1, delta=all_sites.delta)
    generator = np.random.default_rng(seed)
    width = all_sites.test[0].shape[1]
    totals = np.zeros((width, all_sites.classes))
    for x, y in all_sites.parts:
        unit = x[:, :-1] / np.linalg.norm(x[:, :-1], axis=1, keepdims=True)
        hot = np.eye(all_sites.classes)[y]
        own = np.vstack([unit.T @ hot, hot.sum(0)])
        totals += own + once * math.sqrt(2) * generator.normal(size=totals.shape)
    means = totals[:-1] / np.maximum(totals[-1], 1.0)
    length = float(np.linalg.norm(all_sites.test[0][0, :-1]))
    weights = np.vstack([means / length, -0.5 * (means**2).sum(0)])
    return all_sites.score(weights)


def mean_regularised(all_sites: Federation, epsilon: float, seed: int, pull: float) -> float:
    """Each site's own noisy model, drawn towards the mean of all: MR-MTL (Liu et al. 2022,
    arXiv:2206.07902). The mean over sites."""
    noise, rate = _settings(all_sites, epsilon)
    generator = np.random.default_rng(seed)
    width = all_sites.test[0].shape[1]
    shape = (len(all_sites.parts), width, all_sites.classes)
    weights = np.zeros(shape)
    velocity = np.zeros(shape)
    average = np.zeros(shape)
    for step in range(STEPS):
        centre = weights.mean(0)
        for k, (x, y) in enumerate(all_sites.parts):
            gradient = clipped_sum(x, y, weights[k])
            gradient += noise * generator.normal(size=gradient.shape)
            own = gradient / len(y) + pull * (weights[k] - centre)
            velocity[k] = MOMENTUM * velocity[k] + own
            weights[k] = weights[k] - rate * velocity[k]
        if step >= STEPS // 2:
            average += weights
    return float(np.mean([all_sites.score(own) for own in average]))


def without_noise(all_sites: Federation, penalty: float, *, pooled: bool) -> float:
    """Logistic regression corrected for the class prior: the mean over sites, or on all records in
    one place."""
    parts = all_sites.parts
    if pooled:
        x = np.concatenate([part for part, _ in parts])
        parts = [(x, np.concatenate([labels for _, labels in parts]))]
    scores = []
    for x, y in parts:
        own = softmax_fit(x[:, :-1].astype(np.float64), y, all_sites.classes, penalty)
        shares = class_shares(torch.from_numpy(y), all_sites.classes)
        bias = own.bias.numpy() - np.log(shares)
        scores.append(all_sites.score(np.vstack([own.weight.numpy().T, bias])))
    return float(np.mean(scores))


def correlated_noise() -> list[str]:
    """The mean squared error of running sums under independent and under the best correlated noise
    (jax-privacy), for full batches and for five passes of batches of an eighth."""
    try:
        from jax_privacy.matrix_factorization import dense, sensitivity
    except ImportError:
        return ["correlated noise: not measured, pip install jax-privacy first"]

    lines = []
    for name, epochs in (("full batches", STEPS), ("an eighth, five passes", 5)):
        best = np.asarray(dense.optimize(STEPS, epochs=epochs))
        part = epochs / STEPS
        errors = []
        for strategy in (np.eye(STEPS), best):
            largest = float(sensitivity.fixed_epoch_sensitivity(strategy, epochs))
            error = np.asarray(dense.per_query_error(strategy_matrix=strategy))
            errors.append(math.sqrt(float(error.mean())) * largest / part)
        lines.append(
            f"{name}: independent noise {errors[0]:.0f}, correlated {errors[1]:.0f} "
            "(error of the running sum of mean gradients, in units of sigma C / N)"
        )
    return lines


def clipped_sum(x: Array, y: Array, weights: Array) -> Array:
    """The sum of the examples' gradients, each of length 1 at most."""
    logits = x @ weights
    logits -= logits.max(1, keepdims=True)
    error = np.exp(logits)
    error /= error.sum(1, keepdims=True)
    error[np.arange(len(y)), y] -= 1
    lengths = np.linalg.norm(error, axis=1) * np.linalg.norm(x, axis=1)
    scaled = error / np.maximum(lengths, 1.0)[:, None]
    total: Array = x.T @ scaled
    return total


def _settings(all_sites: Federation, epsilon: float) -> tuple[float, float]:
    """The noise and the learning rate of ``proxyfl worth``."""
    width = all_sites.test[0].shape[1]
    total = sum(all_sites.sizes)
    facts = Facts(
        len(all_sites.parts),
        total // len(all_sites.parts),
        width * all_sites.classes,
        epsilon,
        all_sites.delta,
        all_sites.classes,
    )
    found = settings_for(facts, total=total)
    return found.noise_multiplier, found.learning_rate


def arrays(examples: Any) -> tuple[Array, Array]:
    """Features with a last column of ones, and labels."""
    x = examples.take(torch.arange(len(examples))).flatten(1).numpy()
    ones = np.ones((len(x), 1), dtype=x.dtype)
    return np.hstack([x, ones]), examples.labels.numpy()


def _line(name: str, score: Callable[[float, int], float]) -> str:
    cells = []
    for epsilon in (1.0, 3.0):
        scores = [score(epsilon, seed) for seed in range(DRAWS)]
        cells.append(f"{np.mean(scores):.3f}")
    return f"  {name:24} {cells[0]}  {cells[1]}"


def main() -> None:
    """Print every lever's score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", help="public features of the examples")
    parser.add_argument("--other", type=Path, help="other features of the same")
    args = parser.parse_args()
    other = federations(str(args.other)) if args.other else []
    for i, fed in enumerate(federations(args.store)):
        print(fed.name)
        print(_line("descent", partial(descent, fed)))
        print(_line("class means", partial(class_means, fed)))
        for pull in PULLS:
            own = partial(mean_regularised, fed, pull=pull)
            print(_line(f"mean-regularised, {pull:g}", own))
        print(_line("secure sum", partial(descent, fed, secure=True)))
        if other:
            print(_line("other directions", partial(descent, other[i])))
        for penalty in PENALTIES:
            alone = without_noise(fed, penalty, pooled=False)
            pooled = without_noise(fed, penalty, pooled=True)
            print(f"  penalty {penalty:g}: alone {alone:.3f}, pooled {pooled:.3f}")
    for line in correlated_noise():
        print(line)


if __name__ == "__main__":
    main()
