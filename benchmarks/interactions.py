"""Proxies that see interactions of a table's columns, beside a linear one:
``python -m benchmarks.interactions 'data/loans/*.csv' experiments/schemas/loans.toml``.

Everything is fitted on three quarters of each site's *training* records of seed 0 and judged on the
others: no test record is read. Each proxy is trained as the studies do (40 full-batch steps with
momentum, averaged), without noise and at epsilon 3 and 1:

    linear    on the schema's encoding
    pairs     and on the products of any two inputs
    hidden    on 256 random hidden units (ReLU)
    fourier   on random waves: ``models.proxy = "fourier"``

A line has the AUROC of the proxy on all sites' records, a mean over draws of the noise; with
``--home``, which takes minutes, also that of what the sites keep after the first draw, on all
records and on their own. Beside them, logistic regression and boosted trees on all records in one
place, and what a site has by itself."""

import argparse
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from proxyfl.data.examples import InMemory
from proxyfl.data.sources import load
from proxyfl.federation.fitted import choose
from proxyfl.measures import MEASURES, Predictions
from proxyfl.models import build
from proxyfl.privacy.calibration import noise_for
from proxyfl.privacy.worth import FASTEST, MOMENTUM, ROUNDS, STEP

SPEC = "logistic|trees"
DRAWS = 3
HIDDEN = 256


@dataclass(frozen=True)
class Federation:
    """Every site's records, and those on which all are judged."""

    sites: Sequence[InMemory]
    judged: Sequence[InMemory]
    classes: int

    @property
    def everybody(self) -> InMemory:
        """All sites' records in one place."""
        return _together(self.sites)

    def score(self, model: nn.Module) -> float:
        """The AUROC on all sites' judged records together."""
        return _auroc(model, _together(self.judged))

    def own(self, models: Sequence[nn.Module]) -> float:
        """The mean AUROC of each site's model on the site's own judged records."""
        pairs = zip(models, self.judged, strict=True)
        found = [_auroc(model, part) for model, part in pairs]
        return float(np.nanmean(found))


class Pairs(nn.Module):
    """The inputs and the products of any two of them."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.pairs = torch.tensor(list(itertools.combinations(range(inputs), 2))).T

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x[:, self.pairs[0]] * x[:, self.pairs[1]]], dim=1)


class Hidden(nn.Module):
    """Random hidden units of about unit length together."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.weights = torch.randn(inputs, HIDDEN, generator=draw)
        self.biases = torch.randn(HIDDEN, generator=draw)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.weights + self.biases) / math.sqrt(HIDDEN)


def divided(source: str, schema: str) -> Federation:
    """The training records of seed 0, a quarter of each site's held out."""
    dataset = load(source, schema=schema, faults="skip", seed=0)
    x = dataset.train.take(torch.arange(len(dataset.train)))
    y = dataset.train.labels
    draw = np.random.default_rng(7)
    fitted: list[InMemory] = []
    judged: list[InMemory] = []
    site = dataset.site
    if site is None:
        raise SystemExit(f"{source} has no sites.")
    for number in range(len(dataset.site_names)):
        rows = draw.permutation(np.flatnonzero(site.numpy() == number))
        cut = len(rows) // 4
        for part, chosen in ((judged, rows[:cut]), (fitted, rows[cut:])):
            index = torch.from_numpy(chosen)
            part.append(InMemory(x[index], y[index]))
    return Federation(fitted, judged, dataset.classes)


def proxies(inputs: int, classes: int) -> dict[str, nn.Module]:
    """Every kind of proxy, untrained. The last layer is the only one that learns."""
    products = Pairs(inputs)
    width = inputs + products.pairs.shape[1]
    waves = build("fourier", shape=(inputs,), classes=classes, seed=0)
    return {
        "linear": nn.Sequential(nn.Linear(inputs, classes)),
        "pairs": nn.Sequential(products, nn.Linear(width, classes)),
        "hidden": nn.Sequential(Hidden(inputs), nn.Linear(HIDDEN, classes)),
        "fourier": waves,
    }


def trained(proxy: nn.Module, all_sites: Federation, epsilon: float | None, seed: int) -> nn.Module:
    """The proxy after noisy full-batch steps on the sum of all sites' clipped gradients."""
    last = [layer for layer in proxy.modules() if isinstance(layer, nn.Linear)][-1]
    records = all_sites.everybody
    features = _before(proxy, last, records.x)
    ones = torch.ones(len(features), 1)
    inputs = torch.cat([features, ones], dim=1).double()
    hot = nn.functional.one_hot(records.labels, all_sites.classes).double()
    shares = hot.mean(0)
    weights = torch.zeros(inputs.shape[1], all_sites.classes, dtype=torch.float64)
    weights[-1] = shares.log()
    noise, rate = _settings(all_sites, weights, epsilon)
    draw = torch.Generator().manual_seed(seed)
    velocity = torch.zeros_like(weights)
    total = torch.zeros_like(weights)
    lengths = inputs.norm(dim=1)
    for step in range(ROUNDS):
        error = (inputs @ weights).softmax(1) - hot
        scale = (error.norm(dim=1) * lengths).clamp(min=1.0)
        gradient = inputs.T @ (error / scale[:, None])
        gradient += noise * torch.randn(weights.shape, generator=draw, dtype=torch.float64)
        velocity = MOMENTUM * velocity + gradient / len(inputs)
        weights = weights - rate * velocity
        if step >= ROUNDS // 2:
            total += weights
    found = total / (ROUNDS - ROUNDS // 2)
    with torch.no_grad():
        last.weight.copy_(found[:-1].T)
        last.bias.copy_(found[-1])
    return proxy


def _settings(all_sites: Federation, weights: Tensor, epsilon: float | None) -> tuple[float, float]:
    """The noise on the sum of all sites, and the learning rate, as ``proxyfl worth`` has them."""
    if epsilon is None:
        return 0.0, FASTEST
    largest = max(len(site) for site in all_sites.sites)
    everyone = sum(len(site) for site in all_sites.sites)
    each = noise_for(epsilon, sampling_rate=1.0, steps=ROUNDS, delta=1 / (10 * largest))
    noise = each * math.sqrt(len(all_sites.sites))
    of_two_classes = 2 * weights.numel() / all_sites.classes
    moved = noise * math.sqrt(of_two_classes) / everyone
    return noise, min(FASTEST, STEP / moved)


def _before(proxy: nn.Module, last: nn.Module, x: Tensor) -> Tensor:
    """What the last layer is given."""
    seen: list[Tensor] = []

    def look(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(inputs[0])

    handle = last.register_forward_pre_hook(look)
    with torch.no_grad():
        proxy(x)
    handle.remove()
    return seen[0]


def _together(parts: Sequence[InMemory]) -> InMemory:
    x = torch.cat([part.x for part in parts])
    return InMemory(x, torch.cat([part.labels for part in parts]))


def _auroc(model: nn.Module, records: InMemory) -> float:
    with torch.no_grad():
        logits = model(records.x).double().numpy()
    found = MEASURES["auroc"].compute(Predictions(logits, records.labels.numpy()))
    return math.nan if found is None else found


def line(all_sites: Federation, name: str, epsilon: float | None, *, home: bool) -> str:
    """The scores of one kind of proxy at one epsilon."""
    found = []
    inputs = all_sites.sites[0].shape[0]
    for seed in range(1 if epsilon is None else DRAWS):
        proxy = proxies(inputs, all_sites.classes)[name]
        found.append(trained(proxy, all_sites, epsilon, seed))
    scores = [float(np.mean([all_sites.score(proxy) for proxy in found]))]
    if home:
        scores.extend(_kept(all_sites, found[0]))
    budget = "no noise" if epsilon is None else f"epsilon {epsilon:g}"
    return f"{name:10} {budget:10} " + "  ".join(f"{each:.3f}" for each in scores)


def _kept(all_sites: Federation, proxy: nn.Module | None) -> tuple[float, float]:
    """The mean score of what the sites keep, on everybody's records and on their own."""
    kept = []
    for site in all_sites.sites:
        kept.append(choose(SPEC, site, all_sites.classes, received=proxy))
    everybody = [all_sites.score(model) for model in kept]
    return float(np.mean(everybody)), all_sites.own(kept)


def main() -> None:
    """Print every proxy's scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", help="the sites' tables")
    parser.add_argument("schema", help="their public schema")
    parser.add_argument("--home", action="store_true", help="and what sites keep")
    args = parser.parse_args()
    all_sites = divided(args.source, args.schema)
    for spec in SPEC.split("|"):
        pooled = choose(spec, all_sites.everybody, all_sites.classes)
        print(f"pooled     {spec:10} {all_sites.score(pooled):.3f}")
    everybody, own = _kept(all_sites, None)
    print(f"alone      {'':10} {'':5}  {everybody:.3f}  {own:.3f}")
    for name in proxies(all_sites.sites[0].shape[0], all_sites.classes):
        for epsilon in (None, 3.0, 1.0):
            print(line(all_sites, name, epsilon, home=args.home), flush=True)


if __name__ == "__main__":
    main()
