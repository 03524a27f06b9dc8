"""How much the proxy should count in what a site keeps: ``benchmarks.choices FIRST LAST``.

Federations are drawn with random knobs (``benchmarks.draws``, ``drawn-N`` with N from FIRST up to
LAST); those of 6 to 30 sites and at most 6,000 examples count. Each trains a shared proxy by the
masked sum (t = K // 2) at epsilon 1 and 3, for two draws of noise. Every site then chooses by each
rule:

    folds      the best of the proxy, sums and residuals by the site's folds, of those that are
               expected to gain (the rule up to release 0.1, and that of ``choose_for`` "own")
    public C   the sum whose share of the proxy is 1 / (1 + C q), to the nearest of a grid, where q
               is the proxy's expected error in parts of the site's own

and keeps ``alone`` where that is better by more than two standard errors. Models are scored on the
merged test part twice: with 200 patients of each site, as the studies do, and with 8,000 in all.
One line of JSON for each federation goes to ``--out``: by epsilon and rule, the share of what
pooling adds to ``alone``, and the share of sites that lose more than a point by either test part.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks import draws
from proxyfl.data.examples import InMemory
from proxyfl.federation.fitted import (
    FEW,
    SHARES,
    SURE,
    Judged,
    Local,
    judge_alone,
    judge_residuals,
    judge_sum,
)
from proxyfl.federation.home import Home
from proxyfl.losses import NO_BALANCE
from proxyfl.models.estimators import Candidate, candidates
from proxyfl.privacy.calibration import noise_for
from proxyfl.privacy.worth import ROUNDS, Facts, step_for

GRID = (0.1, 0.25, 0.35, 0.5, 0.65, 0.75, 0.9, 1.0)
CAUTIONS = (1.0, 2.0, 3.0, 4.0, 6.0)
FOLDS_CAUTION = 2.0
SMALL, LARGE = 200, 8000
POINT = 0.01
SITES = range(6, 31)
MOST_EXAMPLES = 6000
DRAWS = 2

Scores = tuple[float, float]
"""By the small test part and by the large one."""


@dataclass(frozen=True)
class Option:
    """Something that a site could keep: ``share`` is the proxy's. ``loss`` is by its folds,
    ``better`` how much less that is than ``alone``'s, ``error`` the standard error of this."""

    share: float
    is_sum: bool
    loss: float
    better: float
    error: float
    scores: Scores


def by_folds(options: Sequence[Option], noise: float | None, examples: int) -> Option | None:
    """The rule ``folds``; None for ``alone``. A site of one class has no expected ``noise``."""
    allowed = []
    for option in options:
        is_bare = option.is_sum and option.share == 1
        if is_bare and examples < 2 * FEW:
            continue
        known = not option.is_sum or is_bare or option.share in SHARES
        if known and (noise is None or FOLDS_CAUTION * noise < 2 / option.share - 1):
            allowed.append(option)
    best = min(allowed, key=lambda option: option.loss, default=None)
    return _unless_alone_is_sure(best)


def by_public_facts(
    options: Sequence[Option], noise: float | None, examples: int, caution: float
) -> Option | None:
    """The rule ``public``, by folds without expected ``noise``; None for ``alone``."""
    if noise is None:
        return by_folds(options, noise, examples)
    share = 1 / (1 + caution * noise)
    sums = [option for option in options if option.is_sum]
    return _unless_alone_is_sure(min(sums, key=lambda option: abs(option.share - share)))


def _unless_alone_is_sure(option: Option | None) -> Option | None:
    if option is None or -option.better > SURE * option.error:
        return None
    return option


@dataclass(frozen=True)
class Site:
    """A site's examples, and the best estimator of its own."""

    examples: InMemory
    alone: Judged
    own: nn.Module
    logits: Any
    """Of the estimator, out of fold."""
    scores: Scores


def site_of(sites: draws.Federation, at: int) -> Site:
    """A site with its own model."""
    examples = InMemory(sites.x[at], sites.y[at])
    here = Local.of(examples, 2, None, NO_BALANCE, sites.config.seed)
    judged = [(judge_alone(each, here), each) for each in candidates("logistic")]
    alone, best = min(judged, key=lambda pair: pair[0].loss)
    model = here.fitted(alone, None)
    assert model.own is not None
    return Site(
        examples, alone, model.own, here.out_of_fold(best) - here.shift, score(sites, model)
    )


def options_of(sites: draws.Federation, site: Site, proxy: nn.Module) -> Iterator[Option]:
    """All that a site could keep of a proxy."""
    here = Local.of(site.examples, 2, proxy, NO_BALANCE, sites.config.seed)
    assert isinstance(site.alone.fit, Candidate)
    judged = [judge_sum(site.alone.fit, site.logits, here, share) for share in GRID]
    if len(np.unique(here.y)) == 2:
        judged += judge_residuals(here)
    for each in judged:
        is_sum = each.fit is None or isinstance(each.fit, Candidate)
        if isinstance(each.fit, Candidate):
            shift = torch.from_numpy(here.shift).float()
            model = Home(each.name, site.own, proxy, each.weights, shift)
        else:
            model = here.fitted(each, proxy)
        worse = each.losses - site.alone.losses
        error = float(worse.std()) / math.sqrt(len(worse))
        better = -float(worse.mean())
        yield Option(each.share, is_sum, each.loss, better, error, score(sites, model))


def score(sites: draws.Federation, model: nn.Module) -> Scores:
    """The AUROC by the small test part and by the large one."""
    with torch.no_grad():
        logits = model(sites.test_x).numpy()
    risk = logits[:, 1] - logits[:, 0]
    assert sites.test_site is not None
    per_site = int((sites.test_site == 0).sum())
    small = np.arange(len(risk)) % per_site < SMALL
    y = sites.test_y
    return draws.ranked(risk[small], y[small]), draws.ranked(risk, y)


def measure(name: str, seed: int) -> dict[str, Any] | None:
    """All rules on one federation; None if it does not count."""
    knobs = draws.made_up(name)
    assert knobs is not None
    if knobs.sites not in SITES or knobs.sites * knobs.examples > MOST_EXAMPLES:
        return None
    draws.MADE_UP[name] = replace(knobs, tests=max(SMALL, LARGE // knobs.sites))
    sites = draws.federation(name, seed)
    count = len(sites.y)
    pooled = score(sites, draws.home(sites, None, None, "logistic"))[1]
    own = [site_of(sites, at) for at in range(count)]
    alone = mean(site.scores[1] for site in own)
    honest = count - count // 2
    delta = 1 / (10 * max(sites.sizes))
    layer = draws.last_layer(sites.proxy)
    facts = Facts(
        count,
        round(mean(sites.sizes)),
        layer.weight.numel() + layer.bias.numel(),
        1.0,
        delta,
        score=min(max(pooled, 0.51), 0.99),
        prevalence=float(torch.cat(sites.y).float().mean()),
    )
    step = step_for(facts)
    rules: dict[str, Any] = {"folds": by_folds}
    for caution in CAUTIONS:
        rules[f"public {caution:g}"] = partial(by_public_facts, caution=caution)
    found: dict[str, Any] = {"federation": name, "seed": seed, "sites": count, "rules": []}
    for epsilon in draws.EPSILONS:
        sigma = noise_for(epsilon, sampling_rate=1.0, steps=ROUNDS, delta=delta)
        noise = sigma * math.sqrt(count / honest)
        kept: dict[str, list[tuple[Scores, Scores]]] = {rule: [] for rule in rules}
        for theta in draws.descend(sites, noise=noise, step=step, draws=DRAWS, seed=seed):
            proxy = draws.as_proxy(sites, theta)
            ratios = draws.noise_ratios(sites, sigma, honest)
            for site, ratio in zip(own, ratios, strict=True):
                options = list(options_of(sites, site, proxy))
                for rule, choose in rules.items():
                    chosen = choose(options, ratio, len(site.examples.labels))
                    after = site.scores if chosen is None else chosen.scores
                    kept[rule].append((site.scores, after))
        for rule, pairs in kept.items():
            gain = mean(after[1] - before[1] for before, after in pairs)
            lost = [
                mean(after[at] < before[at] - POINT for before, after in pairs) for at in (0, 1)
            ]
            found["rules"].append(
                {
                    "epsilon": epsilon,
                    "rule": rule,
                    "share": round(gain / (pooled - alone), 4),
                    "lost_small": round(lost[0], 4),
                    "lost_large": round(lost[1], 4),
                }
            )
    return found


def main() -> None:
    """Measure what the file lacks, and add it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("choices.jsonl"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    done = {(line["federation"], line["seed"]) for line in draws.records(args.out)}
    for number in range(args.first, args.last):
        name = f"{draws.DRAWN}{number}"
        if (name, args.seed) in done:
            continue
        line = measure(name, args.seed)
        if line is not None:
            with args.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{name}, seed {args.seed}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
