"""The same federation through a hub: FedAvg by Flower, DP-SGD by Opacus, at the same epsilon.

``python -m benchmarks.hub heart --seeds 0 1 2 --draws 2`` with ``flwr`` installed (it needs other
versions of what this project pins, so give it a folder of its own: ``pip install --target``).

Every site is a Flower ``NumPyClient``. In each of 40 rounds it takes one step of Opacus's DP-SGD
with its full batch, and the hub combines what it gets by Flower's ``FedAvgM`` (server momentum
0.9), weighted by examples. Clients and strategy are Flower's classes, in one process without its
network. Data, first model, noise multiplier, clipping and step length are those of
``benchmarks.draws`` for gossip; each site adds all of the noise, since it does not trust the hub.
Scores are AUROC on the merged test part, of the last model and of the mean of the second half's.
"""

import argparse
import json
import math
import statistics
import sys
import warnings
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import draws
from proxyfl.privacy.calibration import noise_for
from proxyfl.privacy.worth import ROUNDS, STEP

Arrays = list[Any]


def site_client(x: torch.Tensor, y: torch.Tensor, model: nn.Module, sigma: float) -> Any:
    """A Flower client that takes one step of Opacus's DP-SGD with all of its examples."""
    from flwr.client import NumPyClient
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = DataLoader(TensorDataset(x, y), batch_size=len(x))
    made: Any = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=sigma,
        max_grad_norm=1.0,
        poisson_sampling=False,
    )
    private, private_optimizer = made[0], made[1]

    class Site(NumPyClient):  # type: ignore[misc]  # Flower is not installed where this is checked
        """One institution."""

        def fit(self, parameters: Arrays, config: Any) -> tuple[Arrays, int, dict[str, Any]]:
            """One step with the full batch."""
            with torch.no_grad():
                for own, value in zip(private.parameters(), parameters, strict=True):
                    own.copy_(torch.from_numpy(value))
            for group in private_optimizer.param_groups:
                group["lr"] = config["rate"]
            private_optimizer.zero_grad()
            F.cross_entropy(private(x), y).backward()  # type: ignore[no-untyped-call]
            private_optimizer.step()
            return [own.detach().numpy().copy() for own in private.parameters()], len(x), {}

    return Site()


def score(sites: draws.Federation, arrays: Arrays) -> float:
    """The AUROC of a linear model on the merged test part."""
    weight, bias = arrays
    return draws.auroc(sites.test_x.numpy() @ weight.T + bias, sites.test_y)


def train(sites: draws.Federation, sigma: float, seed: int) -> tuple[float, float]:
    """The AUROC of the last model, and of the mean of the second half's."""
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.server.strategy import FedAvgM

    torch.manual_seed(seed)
    total = sum(sites.sizes)
    layer = draws.last_layer(sites.proxy)
    arrays = [layer.weight.detach().numpy().copy(), layer.bias.detach().numpy().copy()]
    shape = arrays[0].shape
    of_the_sum = sigma * math.sqrt(len(sites.y))
    rate = min(draws.FASTEST, STEP * total / (of_the_sum * math.sqrt(2 * (shape[1] + 1))))
    clients = []
    for x, y in zip(sites.x, sites.y, strict=True):
        clients.append(site_client(x, y, nn.Linear(shape[1], shape[0]), sigma))
    strategy = FedAvgM(
        server_learning_rate=1.0,
        server_momentum=draws.MOMENTUM,
        initial_parameters=ndarrays_to_parameters(arrays),
    )
    strategy.initialize_parameters(None)
    ok = Status(Code.OK, "")
    tail: list[Arrays] = []
    for round in range(ROUNDS):
        results = []
        for client in clients:
            fitted, examples, _ = client.fit(arrays, {"rate": rate})
            results.append((None, FitRes(ok, ndarrays_to_parameters(fitted), examples, {})))
        combined, _ = strategy.aggregate_fit(round + 1, results, [])
        arrays = parameters_to_ndarrays(combined)
        if round >= ROUNDS // 2:
            tail.append(arrays)
    mean = [np.mean([each[at] for each in tail], axis=0) for at in range(2)]
    return score(sites, arrays), score(sites, mean)


def main() -> None:
    """Print one line of JSON for each epsilon."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", help="a study of two classes with a linear proxy, such as heart")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--draws", type=int, default=3, help="draws of noise for each seed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")  # Opacus's remarks about hooks
    found: dict[float, list[tuple[float, float]]] = {epsilon: [] for epsilon in draws.EPSILONS}
    for seed in args.seeds:
        sites = draws.federation(args.study, seed)
        delta = sites.config.privacy.delta or 1 / (10 * max(sites.sizes))
        for epsilon in draws.EPSILONS:
            sigma = noise_for(epsilon, sampling_rate=1.0, steps=ROUNDS, delta=delta)
            for draw in range(args.draws):
                found[epsilon].append(train(sites, sigma, 1000 * seed + draw))
        print(f"seed {seed}", file=sys.stderr, flush=True)
    for epsilon, scores in found.items():
        last, mean = (statistics.mean(each) for each in zip(*scores, strict=True))
        line = {"study": args.study, "epsilon": epsilon, "seeds": len(args.seeds)}
        print(json.dumps(line | {"draws": args.draws, "last": last, "mean_of_half": mean}))


if __name__ == "__main__":
    main()
