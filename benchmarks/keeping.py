"""Whether a site with few examples should keep a bare proxy:
``python -m benchmarks.keeping FEATURES.store [--seeds N]``.

32 sites of 100 examples, 80 of them of one class, receive a linear proxy of public features that
was trained as the studies train it. Each chooses at home (``federation.home.choosing``) twice: with
the bare proxy among its candidates, and without. Each line is the AUROC that a site gains over its
own model alone on the store's test part: the mean over sites and divisions, and the worst's."""

import argparse
from collections.abc import Iterator
from unittest import mock

import numpy as np
import torch
from torch import nn

from benchmarks.levers import Array, Federation, arrays, descended
from proxyfl.data import majority
from proxyfl.data.examples import InMemory
from proxyfl.data.sources import load
from proxyfl.federation import fitted as choosing
from proxyfl.losses import Balance
from proxyfl.measures import MEASURES, Predictions

SITES = 32
EXAMPLES = 100
RULES = {"bare proxy too": 0, "sums only": choosing.FEW}


def divided(store: str, seed: int) -> Federation:
    """The store's examples at 32 sites."""
    dataset = load(store)
    x, y = arrays(dataset.train)
    generator = np.random.default_rng(seed)
    rows = majority(y, clients=SITES, examples=EXAMPLES, p_major=0.8, generator=generator)
    parts = [(x[part], y[part]) for part in rows]
    return Federation("32 sites", parts, arrays(dataset.test), dataset.classes)


def gains(all_sites: Federation, epsilon: float, seed: int) -> Iterator[tuple[str, float]]:
    """For every site and rule, what the kept model gains over the site's own."""
    proxy = _linear(descended(all_sites, epsilon, seed))
    for x, y in all_sites.parts:
        examples = InMemory(torch.from_numpy(x[:, :-1]).float(), torch.from_numpy(y))
        balance = Balance(offsets=_log_shares(y, all_sites.classes))
        choices = ("logistic", examples, all_sites.classes)
        alone = choosing.choose(*choices, balance=balance, seed=seed)
        before = _auroc(alone, all_sites)
        for rule, few in RULES.items():
            with mock.patch.object(choosing, "FEW", few):
                kept = choosing.choose(*choices, received=proxy, balance=balance, seed=seed)
            yield rule, _auroc(kept, all_sites) - before


def _linear(weights: Array) -> nn.Linear:
    """The model with these weights, the last row of which is the bias."""
    model = nn.Linear(len(weights) - 1, weights.shape[1])
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(weights[:-1].T))
        model.bias.copy_(torch.from_numpy(weights[-1]))
    return model


def _log_shares(y: Array, classes: int) -> tuple[float, ...]:
    """How much more frequent each class is at the site than if all were alike, as a logarithm."""
    counts = np.bincount(y, minlength=classes) + 1
    shares = counts / counts.sum()
    return tuple(float(value) for value in np.log(shares * classes))


def _auroc(model: nn.Module, all_sites: Federation) -> float:
    x, y = all_sites.test
    with torch.no_grad():
        logits = model(torch.from_numpy(x[:, :-1]).float()).numpy()
    return MEASURES["auroc"].compute(Predictions(logits, y)) or float("nan")


def main() -> None:
    """Print each rule's gains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", help="public features of the examples")
    parser.add_argument("--seeds", type=int, default=3, help="divisions (default: 3)")
    args = parser.parse_args()
    for epsilon in (1.0, 3.0):
        found: dict[str, list[float]] = {rule: [] for rule in RULES}
        for seed in range(args.seeds):
            for rule, gain in gains(divided(args.store, seed), epsilon, seed):
                found[rule].append(gain)
        for rule, values in found.items():
            print(
                f"epsilon {epsilon:g}, {rule:15} {100 * np.mean(values):.2f} points, "
                f"worst site {100 * min(values):.2f}, {len(values)} sites",
                flush=True,
            )


if __name__ == "__main__":
    main()
