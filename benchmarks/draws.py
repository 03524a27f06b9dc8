"""The shared proxy over many draws of noise: ``python -m benchmarks.draws STUDY ... [options]``.

A STUDY is a sweep file of ``experiments/joining`` by name (heart, impact, ist, loans, gusto), a
made-up federation of ``MADE_UP``, or ``drawn-N``: one whose knobs are drawn with the seed N. Data,
schema, split, first proxy, clipping, settings (by ``proxyfl worth``) and the models that sites keep
are the product's. The steps are computed for all draws at once, with exact sums over sites in place
of messages: gossip ends within its own mixing error of that, the masked sum exactly there. Noise
is drawn for the sum:

    gossip     K sites add all of the noise, each by itself
    weighted   gossip with site weights n / (n + d / mu^2), where the smallest site has n < d / mu^2
    masked     each adds 1 / h of its variance, h = K - K // 2; as many steps as worth says
    central    noise once, by somebody whom all trust (h = K)

With two classes a score is the AUROC. With more it is the macro AUROC, and ``accuracy`` has each
shared proxy's macro accuracy. One line of JSON for each study and seed goes to ``--out``; what is
there already is not run again.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from proxyfl import measures, models
from proxyfl.data.examples import InMemory
from proxyfl.federation.assembly import initial_proxy
from proxyfl.federation.fitted import choose
from proxyfl.losses import NO_BALANCE, Balance, balance_for, class_shares
from proxyfl.models.architectures import LENGTH, WAVES, Fourier
from proxyfl.privacy.calibration import noise_for
from proxyfl.privacy.worth import (
    ROUNDS,
    SHORT_STEP,
    STEP,
    Facts,
    noise_ratio,
    rounds_for,
    site_weight,
    step_for,
)
from proxyfl.settings import Synthetic
from proxyfl.simulation.config import Config, Data, Partition
from proxyfl.simulation.division import load_data, split
from proxyfl.simulation.prepare import study_of
from proxyfl.sweeps import file as sweep

FOLDER = Path(__file__).resolve().parents[1] / "experiments" / "joining"
EPSILONS = (1.0, 3.0)
MOMENTUM = 0.9
FASTEST = 2.0
STEPS = (STEP, SHORT_STEP)
"""The step lengths that are compared."""
HALF = 0.5
"""The weight of a site whose noise is as large as what it adds."""

Array = Any

MADE_UP = {
    "rare": Synthetic(sites=29, examples=300, prevalence=0.05, signal=0.75, columns=12),
    "small": Synthetic(sites=6, examples=55, unequal=0.4, prevalence=0.35, signal=0.76, columns=8),
    "two-kinds": Synthetic(
        sites=29, examples=150, prevalence=0.4, signal=0.78, columns=10, kinds=2, likeness=0.5
    ),
    "two-sites": Synthetic(
        sites=2, examples=230, unequal=0.5, prevalence=0.35, signal=0.85, columns=30
    ),
    "uneven": Synthetic(
        sites=12, examples=150, unequal=1.2, prevalence=0.3, signal=0.8, columns=12
    ),
    "large": Synthetic(sites=10, examples=2000, prevalence=0.3, signal=0.8, columns=10),
    "hard": Synthetic(sites=16, examples=250, prevalence=0.25, signal=0.68, columns=15),
    "wide": Synthetic(sites=10, examples=200, prevalence=0.4, signal=0.85, columns=40),
    "differing": Synthetic(
        sites=12, examples=200, prevalence=0.3, signal=0.8, columns=12, heterogeneity=0.5, shift=0.5
    ),
    "rarest": Synthetic(sites=40, examples=400, prevalence=0.03, signal=0.8, columns=10),
    "easy": Synthetic(sites=8, examples=120, prevalence=0.5, signal=0.9, columns=15),
    "many": Synthetic(sites=60, examples=80, prevalence=0.3, signal=0.75, columns=10),
}
"""Federations that nobody has tuned to. The first four have the patterns of four real ones: rare
events, small and unequal sites, two kinds of sites, and two sites with many columns."""

DRAWN = "drawn-"
LARGEST = 12_000
"""Examples of all sites together, at most, of a federation that is drawn."""


def made_up(name: str) -> Synthetic | None:
    """The made-up federation of this name; None if it is a study's."""
    if not name.startswith(DRAWN):
        return MADE_UP.get(name)
    draw = np.random.default_rng([int(name.removeprefix(DRAWN)), 26])

    def between(low: float, high: float) -> float:
        return float(np.exp(draw.uniform(np.log(low), np.log(high))))

    sites = round(between(2, 60))
    return Synthetic(
        sites=sites,
        examples=round(between(40, min(2000, LARGEST / sites))),
        unequal=draw.uniform(0, 1),
        prevalence=between(0.04, 0.5),
        signal=draw.uniform(0.66, 0.92),
        columns=round(between(5, 40)),
        binary=draw.uniform(0, 1),
        relevant=draw.uniform(0.2, 1),
        heterogeneity=draw.uniform(0, 0.4),
        shift=draw.uniform(0, 0.5),
    )


@dataclass(frozen=True)
class Federation:
    """Examples by site, the test part, and the proxy that all begin with."""

    name: str
    x: list[Array]
    y: list[Array]
    test_x: Array
    test_y: Array
    test_site: Array | None
    proxy: nn.Module
    config: Config
    public_prevalence: float | None

    @property
    def sizes(self) -> list[int]:
        return [len(y) for y in self.y]

    @property
    def classes(self) -> int:
        return last_layer(self.proxy).out_features


def federation(name: str, seed: int) -> Federation:
    """The study's data, divided among its sites."""
    config = _config(name, seed)
    dataset = load_data(config)
    parts = split(config, dataset)
    study = study_of(config, dataset, len(parts))
    x = [client.examples.take(torch.arange(len(client))).flatten(1) for client in parts]
    y = [client.examples.labels for client in parts]
    site = dataset.test_site
    return Federation(
        name,
        x,
        y,
        dataset.test_x.flatten(1),
        dataset.test_y.numpy(),
        None if site is None else site.numpy(),
        initial_proxy(study),
        config,
        study.prevalence[1] if study.prevalence else None,
    )


def _config(name: str, seed: int) -> Config:
    synthetic = made_up(name)
    if synthetic is not None:
        return Config(
            seed=seed,
            measure="auroc",
            data=Data(source="synthetic", synthetic=synthetic),
            partition=Partition(kind="site"),
            models=replace(Config().models, private="logistic", proxy="linear"),
        )
    runs = sweep.plan(FOLDER / f"{name}.toml", Path("runs") / name)
    return next(run.config for run in runs if run.config.seed == seed)


def features(proxy: nn.Module, x: Array) -> Array:
    """The inputs of the proxy's last layer, and a one."""
    if isinstance(proxy, Fourier):
        angles = x @ proxy.get_buffer("frequencies") + proxy.get_buffer("phases")
        x = torch.cos(angles) * (LENGTH * math.sqrt(2 / WAVES))
    return torch.cat([x, torch.ones(len(x), 1)], 1).numpy()


def last_layer(proxy: nn.Module) -> nn.Linear:
    """The layer that learns."""
    *_, layer = (module for module in proxy.modules() if isinstance(module, nn.Linear))
    return layer


def descend(
    sites: Federation,
    *,
    noise: float,
    step: float,
    draws: int,
    seed: int,
    rounds: int = ROUNDS,
    weights: Array | None = None,
) -> Array:
    """The mean of the second half's proxies, (draws, inputs and one, classes).

    ``noise`` is the standard deviation of the noise of a sum over all sites. ``weights`` multiply
    the sites' sums."""
    own = np.ones(len(sites.y)) if weights is None else weights
    x = features(sites.proxy, torch.cat(sites.x)).astype(np.float32)
    y = torch.cat(sites.y).numpy()
    weight = np.repeat(own, sites.sizes)[:, None]
    layer = last_layer(sites.proxy)
    start = torch.cat([layer.weight.T, layer.bias[None]]).detach().numpy()
    theta = np.repeat(start[None], draws, axis=0).astype(np.float32)
    hot = np.eye(start.shape[1], dtype=np.float32)[y]
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    prior = _offsets(sites)
    total = float((own * sites.sizes).sum())
    moved = noise * math.sqrt(2 * start.size / start.shape[1]) / total
    rate = min(FASTEST, step / moved)
    generator = np.random.default_rng([seed, 7])
    velocity = np.zeros_like(theta)
    mean = np.zeros_like(theta)
    for t in range(rounds):
        for draw in range(draws):
            logits = x @ theta[draw] + prior
            logits -= logits.max(1, keepdims=True)
            p = np.exp(logits)
            error = p / p.sum(1, keepdims=True) - hot
            length = np.linalg.norm(error, axis=1, keepdims=True) * norms
            error *= weight / np.maximum(length, 1.0)
            gradient = x.T @ error
            gradient += noise * generator.standard_normal(start.shape).astype(np.float32)
            velocity[draw] = MOMENTUM * velocity[draw] + gradient / total
            theta[draw] -= rate * velocity[draw]
        if t >= rounds // 2:
            mean += theta
    return mean / (rounds - rounds // 2)


def _offsets(sites: Federation) -> Array:
    learning = sites.config.learning
    if learning.balance != "prior":
        return np.float32(0)
    balance = balance_for("prior", learning.prevalence, public=True)
    return np.array(balance.offsets, dtype=np.float32)


def as_proxy(sites: Federation, theta: Array) -> nn.Module:
    """A proxy with these weights in its last layer."""
    shape, classes = tuple(sites.x[0].shape[1:]), theta.shape[1]
    model = models.build(sites.config.models.proxy, shape=shape, classes=classes, seed=0)
    layer = last_layer(model)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(theta[:-1].T))
        layer.bias.copy_(torch.from_numpy(theta[-1]))
    return model


def auroc(logits: Array, y: Array) -> float:
    """The AUROC of two classes' logits, the macro AUROC of more; NaN where it is not defined."""
    if logits.shape[1] > 2:
        return score_of("auroc", logits, y)
    return ranked(logits[:, 1] - logits[:, 0], y)


def score_of(name: str, logits: Array, y: Array) -> float:
    """A measure of ``proxyfl.measures``; NaN where it is not defined."""
    measure = measures.named(name)
    assert measure is not None
    found = measure.compute(measures.Predictions(logits, y))
    return math.nan if found is None else found


def ranked(score: Array, y: Array) -> float:
    """The AUROC of a score that is high for cases (1); NaN if there is one class."""
    from scipy.stats import rankdata

    cases = int(y.sum())
    if not 0 < cases < len(y):
        return math.nan
    ranks = rankdata(score)
    below = float(ranks[y == 1].sum()) - cases * (cases + 1) / 2
    return below / (cases * (len(y) - cases))


def judged(sites: Federation, model: nn.Module, site: int | None) -> tuple[float, float]:
    """The AUROC on the merged test part, and on the site's own."""
    with torch.no_grad():
        logits = model(sites.test_x).numpy()
    own = math.nan
    if site is not None and sites.test_site is not None:
        rows = sites.test_site == site
        own = auroc(logits[rows], sites.test_y[rows])
    return auroc(logits, sites.test_y), own


def home(
    sites: Federation,
    site: int | None,
    received: nn.Module | None,
    spec: str,
    noise: float | None = None,
) -> nn.Module:
    """The model that a site keeps; of all records together without a site."""
    x = torch.cat(sites.x) if site is None else sites.x[site]
    y = torch.cat(sites.y) if site is None else sites.y[site]
    balance: Balance = NO_BALANCE
    if sites.config.learning.balance != "none":
        shares = class_shares(y, sites.classes)
        balance = balance_for(sites.config.learning.balance, shares, public=False)
    examples = InMemory(x, y)
    return choose(
        spec,
        examples,
        sites.classes,
        received=received,
        balance=balance,
        seed=sites.config.seed,
        noise=noise,
    )


def noise_ratios(
    sites: Federation, sigma: float, honest: float, rounds: int = ROUNDS
) -> list[float | None]:
    """The proxy's expected error in parts of each site's own, as ``federation.assembly`` has it."""
    study_is_linear = sites.config.models.proxy == "linear"
    layer = last_layer(sites.proxy)
    count = len(sites.y)
    public = sites.public_prevalence
    found: list[float | None] = []
    for y in sites.y:
        own = float(y.double().mean())
        if not study_is_linear or sites.classes > 2 or not 0 < own < 1:
            found.append(None)
            continue
        found.append(
            noise_ratio(
                clients=count,
                honest=round(honest),
                width=(layer.weight.numel() + layer.bias.numel()) / 2,
                mu=math.sqrt(rounds) / sigma,
                total=sum(sites.sizes),
                prevalence=public or own,
                examples=len(y),
                own_prevalence=own,
            )
        )
    return found


def measured(
    name: str, seed: int, draws: int, kept: int, spec: str | None, *, rule_only: bool = False
) -> dict[str, Any]:
    """All scores of one study and seed. What sites keep is measured for ``kept`` draws. With
    ``rule_only`` no other step is measured than the one that ``proxyfl worth`` chooses."""
    sites = federation(name, seed)
    spec = spec or sites.config.models.private
    count = len(sites.y)
    everyone = range(count)
    alone = [judged(sites, home(sites, i, None, spec), i) for i in everyone]
    pooled, _ = judged(sites, home(sites, None, None, spec), None)
    test = features(sites.proxy, sites.test_x)
    layer = last_layer(sites.proxy)
    several = sites.classes > 2
    cases = 1 / sites.classes if several else float(torch.cat(sites.y).float().mean())
    delta = sites.config.privacy.delta or 1 / (10 * max(sites.sizes))
    found: dict[str, Any] = {
        "study": name,
        "seed": seed,
        "spec": spec,
        "sizes": sites.sizes,
        "parameters": layer.weight.numel() + layer.bias.numel(),
        "prevalence": cases,
        "delta": delta,
        "alone": alone,
        "pooled": pooled,
        "joined": [],
    }
    facts = Facts(
        count,
        max(2, round(sum(sites.sizes) / count)),
        layer.weight.numel() + layer.bias.numel(),
        1.0,
        delta,
        classes=sites.classes,
        score=min(max(pooled, 0.51), 0.99),
        prevalence=cases,
    )
    rule = step_for(facts)
    honest = count - count // 2
    noises = {"gossip": count, "masked": count / honest, "central": 1.0}
    for epsilon in EPSILONS:
        masked = replace(facts, epsilon=epsilon, colluders=count // 2)
        more = rounds_for(masked, total=sum(sites.sizes))
        sigmas = {
            steps: noise_for(epsilon, sampling_rate=1.0, steps=steps, delta=delta)
            for steps in {ROUNDS, more}
        }
        weights = site_weights(sites, sigmas[ROUNDS])
        mechanisms = dict(noises)
        if weights.min() < HALF:
            mechanisms["weighted"] = float((weights**2).sum())
        for mechanism, factor in mechanisms.items():
            rounds = more if mechanism in ("masked", "central") else ROUNDS
            sigma = sigmas[rounds]
            for step in (rule,) if rule_only else STEPS:
                noise = sigma * math.sqrt(factor)
                theta = descend(
                    sites,
                    noise=noise,
                    step=step,
                    draws=draws,
                    seed=seed,
                    rounds=rounds,
                    weights=weights if mechanism == "weighted" else None,
                )
                shared = [auroc(test @ each, sites.test_y) for each in theta]
                keeps = []
                if mechanism != "central" and step == rule:
                    noisy = noise_ratios(sites, sigma, count / factor, rounds)
                    for each in theta[:kept]:
                        proxy = as_proxy(sites, each)
                        keeps.append(
                            [
                                judged(sites, home(sites, i, proxy, spec, noisy[i]), i)
                                for i in everyone
                            ]
                        )
                found["joined"].append(
                    {
                        "epsilon": epsilon,
                        "mechanism": mechanism,
                        "step": step,
                        "rounds": rounds,
                        "sigma": sigma,
                        "shared": shared,
                        "own": [own_patients(sites, test, each) for each in theta],
                        "kept": keeps,
                    }
                    | accuracies(sites, [test @ each for each in theta])
                )
    return found


def site_weights(sites: Federation, sigma: float) -> Array:
    """What each site's step counts for under gossip, as ``worth.site_weight`` has it."""
    mu = math.sqrt(ROUNDS) / sigma
    layer = last_layer(sites.proxy)
    width = (layer.weight.numel() + layer.bias.numel()) / sites.classes
    return np.array([site_weight(size, width, mu) for size in sites.sizes])


def own_patients(sites: Federation, test: Array, theta: Array) -> float:
    """The shared proxy's mean score on the sites' own test parts; NaN if there are none."""
    if sites.test_site is None:
        return math.nan
    logits = test @ theta
    scores = []
    for site in range(len(sites.y)):
        rows = sites.test_site == site
        scores.append(auroc(logits[rows], sites.test_y[rows]) if rows.any() else math.nan)
    known = [score for score in scores if not math.isnan(score)]
    return float(np.mean(known)) if known else math.nan


def accuracies(sites: Federation, logits: Sequence[Array]) -> dict[str, Any]:
    """The macro accuracy of each proxy, where there are more than two classes."""
    if sites.classes == 2:
        return {}
    return {"accuracy": [score_of("macro_accuracy", each, sites.test_y) for each in logits]}


def records(path: Path) -> Iterator[dict[str, Any]]:
    """What was measured before."""
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


def measure_missing(
    studies: Sequence[str],
    seeds: Sequence[int],
    path: Path,
    *,
    draws: int,
    kept: int,
    spec: str | None = None,
    rule_only: bool = False,
) -> None:
    """Measure each study with each seed, unless the file has it, and add it to the file."""
    done = {(line["study"], line["seed"]) for line in records(path)}
    for seed in seeds:
        for name in studies:
            if (name, seed) in done:
                continue
            line = measured(name, seed, draws, kept, spec, rule_only=rule_only)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{name}, seed {seed}", file=sys.stderr, flush=True)


def main() -> None:
    """Measure what is missing, and add it to the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", nargs="+", metavar="STUDY")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--draws", type=int, default=8, help="draws of noise for each seed")
    parser.add_argument("--kept", type=int, default=0, help="draws with the models that sites keep")
    parser.add_argument("--spec", help="the sites' estimator (default: the study's)")
    parser.add_argument("--rule-only", action="store_true", help="no step but that of the rule")
    parser.add_argument("--out", type=Path, default=Path("draws.jsonl"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    measure_missing(
        args.studies,
        args.seeds,
        args.out,
        draws=args.draws,
        kept=args.kept,
        spec=args.spec,
        rule_only=args.rule_only,
    )


if __name__ == "__main__":
    main()
