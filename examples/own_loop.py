"""A training loop of your own: five sites, DP-SGD at each, proxies mixed by PushSum gossip.

    python examples/own_loop.py

All sites are in this one process, so it shows the algorithm and not a deployment. The noise is the
operating system's. Between institutions, use `proxyfl node` (docs/start/three-sites.md).
"""

import torch
from torch import nn

from proxyfl import DP, DPSGD, InMemory, Mass
from proxyfl.losses import cross_entropy
from proxyfl.parts import add, exponential, flatten, load_flat, routes

SITES = 5


def site_data(site: int, records: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """Made-up records: the same rule everywhere, other measurements at each site."""
    generator = torch.Generator().manual_seed(site)
    x = torch.randn(records, 8, generator=generator) + 0.3 * site
    y = (x[:, 0] - x[:, 1] + 0.5 * torch.randn(records, generator=generator) > 0).long()
    return x, y


def main(rounds: int = 12, steps: int = 4) -> list[float]:
    """Trains and mixes for some rounds; returns each site's accuracy on all sites' records."""
    trainers = []
    for site in range(SITES):
        torch.manual_seed(0)  # all proxies start from the same weights
        model = nn.Linear(8, 2)
        trainers.append(
            DPSGD(
                model,
                torch.optim.SGD(model.parameters(), lr=0.5),
                InMemory(*site_data(site)),
                dp=DP(clip_norm=1, noise_multiplier=3, delta=1e-4),
                loss=cross_entropy,
                batch_size=100,
            )
        )
    weights = [1.0] * SITES  # PushSum: a site's mass is its weight times its parameters
    graph = exponential(self_weight=0.5)
    for round in range(rounds):
        plan = routes(graph, round, range(SITES))
        inbox: dict[int, list[Mass]] = {site: [] for site in range(SITES)}
        for site, trainer in enumerate(trainers):
            trainer.train(steps)
            mass = Mass.of(flatten(trainer.model), weights[site])
            for receiver, part in mass.split(plan.shares(site)).items():
                inbox[receiver].append(part)
        for site, trainer in enumerate(trainers):
            mass = add(inbox[site])
            load_flat(trainer.model, mass.theta)
            weights[site] = mass.w
    everybody = [site_data(site) for site in range(SITES)]
    x, y = (torch.cat(parts) for parts in zip(*everybody, strict=True))
    accuracies = []
    for site, trainer in enumerate(trainers):
        with torch.no_grad():
            accuracies.append(float((trainer.model(x).argmax(1) == y).float().mean()))
        print(f"site {site}: accuracy {accuracies[site]:.3f}, {trainer.epsilon()}")
    return accuracies


if __name__ == "__main__":
    main()
