"""The trimmed mean (Yin et al. 2018, arXiv:1803.01498) as an exchange of your own.

    python examples/trimmed_mean.py

Everyone sends its model to a hub. The hub sorts the values of each parameter, leaves out the
smallest and the largest ones, and sends the mean of the others back. One client that lies, or has
gone wrong, moves no parameter beyond what others have. This is a simulation and protects nobody.
"""

from collections.abc import Mapping, Sequence, Set
from functools import partial

import torch

from proxyfl import METHODS, Config, Method, Run, run
from proxyfl.parts import Mass, MassChannel


def trimmed_mean(
    masses: Mapping[int, Mass],
    present: Sequence[int],
    leaving: Set[int],
    channel: MassChannel,
    trim: int = 1,
) -> dict[int, Mass]:
    """``masses`` are those of this process's clients; the others are in other processes."""
    staying = sorted(set(present) - set(leaving))
    hub = staying[0]
    for client, mass in masses.items():  # send first, then receive: nobody waits in a circle
        if client != hub:
            channel.send(mass, sender=client, receiver=hub)
    mixed = {}
    if hub in masses:
        own = masses[hub]
        thetas = [own.theta]
        for client in sorted(set(present) - {hub}):
            thetas.append(channel.receive(sender=client, receiver=hub, like=own.theta).theta)
        values = torch.stack(thetas).sort(0).values
        few = min(trim, (len(values) - 1) // 2)
        mixed[hub] = Mass.of(values[few : len(values) - few].mean(0))
        for client in staying[1:]:
            channel.send(mixed[hub], sender=hub, receiver=client)
    for client, mass in masses.items():
        if client != hub and client not in leaving:
            mixed[client] = channel.receive(sender=hub, receiver=client, like=mass.theta)
    return mixed


MINE = {
    "trimmed": Method(
        "one model, the trimmed mean of all, with DP", "single", trimmed_mean, keeps="received"
    ),
    "trimmed-3": Method(
        "the same without the three smallest and largest",
        "single",
        partial(trimmed_mean, trim=3),
        keeps="received",
    ),
}


def main(rounds: int = 20, workers: int = 2) -> Run:
    """Compares the mean and the trimmed mean on the digits of eight clients."""
    config = Config(rounds=rounds, methods=("fedavg", *MINE))
    result = run(config, methods=METHODS | MINE, workers=workers)
    for name in config.methods:
        accuracies = [result.accuracy(name, client) for client in range(8)]
        mean = sum(accuracies) / len(accuracies)
        print(f"{name:10} mean accuracy {mean:.3f}, {result.epsilon(name)}")
    return result


if __name__ == "__main__":  # workers import this file
    main()
