"""One proxy for each kind of sites, or one for all: ``python -m benchmarks.kinds``.

The made-up federation ``two-kinds`` of ``benchmarks.draws`` has two kinds of sites, whose outcomes
depend on the columns in different ways. Every proxy is scored on the test patients of each kind,
weighted by the kind's sites; ``alone`` is the mean over sites of their own models on their kind's
test patients, ``pooled`` one model of everybody's records. Prints one line of JSON for each epsilon
and exchange: the mean AUROC over seeds and draws of noise."""

import argparse
import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from benchmarks import draws
from proxyfl.privacy.calibration import noise_for
from proxyfl.privacy.worth import ROUNDS, STEP

STUDY = "two-kinds"


def of_sites(sites: draws.Federation, own: Sequence[int]) -> draws.Federation:
    """The federation of some of the sites; the test part stays that of all."""
    return dataclasses.replace(sites, x=[sites.x[i] for i in own], y=[sites.y[i] for i in own])


def measure(seed: int, count: int, sums: dict[str, list[float]]) -> None:
    """Add one seed's scores to ``sums``, by a name for each line."""
    sites = draws.federation(STUDY, seed)
    synthetic = draws.MADE_UP[STUDY]
    everyone = range(len(sites.y))
    kinds = [[i for i in everyone if synthetic.kind(i) == kind] for kind in range(synthetic.kinds)]
    assert sites.test_site is not None
    rows = [np.isin(sites.test_site, own) for own in kinds]
    shares = [len(own) / len(sites.y) for own in kinds]
    test = draws.features(sites.proxy, sites.test_x)

    def score(logits: Sequence[Any]) -> float:
        """The mean over kinds, each by its logits for all test patients."""
        parts = zip(logits, rows, shares, strict=True)
        return sum(s * draws.auroc(each[at], sites.test_y[at]) for each, at, s in parts)

    def answers(site: int | None) -> Any:
        model = draws.home(sites, site, None, "logistic")
        with torch.no_grad():
            return model(sites.test_x).numpy()

    own_models = {i: answers(i) for own in kinds for i in own}
    alone = [
        statistics.mean(draws.auroc(own_models[i][at], sites.test_y[at]) for i in own)
        for own, at in zip(kinds, rows, strict=True)
    ]
    sums.setdefault("alone", []).append(sum(s * a for s, a in zip(shares, alone, strict=True)))
    sums.setdefault("pooled", []).append(score([answers(None)] * len(kinds)))
    delta = 1 / (10 * max(sites.sizes))
    for epsilon in draws.EPSILONS:
        sigma = noise_for(epsilon, sampling_rate=1.0, steps=ROUNDS, delta=delta)
        for exchange in ("gossip", "masked sum"):
            for name, groups in (("one proxy", [list(everyone)]), ("by kind", kinds)):
                trained = []
                for own in groups:
                    honest = len(own) - len(own) // 2 if exchange == "masked sum" else 1
                    noise = sigma * math.sqrt(len(own) / honest)
                    part = of_sites(sites, own)
                    trained.append(
                        draws.descend(part, noise=noise, step=STEP, draws=count, seed=seed)
                    )
                if len(trained) == 1:
                    trained *= len(kinds)
                found = [score([test @ theta[d] for theta in trained]) for d in range(count)]
                line = f"epsilon {epsilon:g}, {exchange}, {name}"
                sums.setdefault(line, []).append(statistics.mean(found))


def main() -> None:
    """Print the means over seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--draws", type=int, default=4, help="draws of noise for each seed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sums: dict[str, list[float]] = {}
    for seed in args.seeds:
        measure(seed, args.draws, sums)
    for name, scores in sums.items():
        print(json.dumps({"what": name, "seeds": len(scores), "auroc": statistics.mean(scores)}))


if __name__ == "__main__":
    main()
