"""FedProx (Li et al. 2020, arXiv:1812.06127) as a learner of your own, under DP.

    python examples/fedprox.py

FedProx adds mu/2 |w - w0|^2 to the local loss, where w0 is the model as it came from the exchange.
The pull towards w0 follows from parameters that DP-SGD has made already, so it costs no privacy: it
is applied after each noisy step. This is a simulation and protects nobody.
"""

from dataclasses import replace
from functools import partial

from proxyfl import METHODS, Config, Method, Run, run
from proxyfl.parts import Learner, Losses, Private, Single, flatten, load_flat


class Proximal(Single):
    """One model that is pulled back to what the exchange gave."""

    def __init__(self, trainer, mu: float) -> None:
        super().__init__(trainer)
        self.mu = mu

    def train(self, round: int, steps: int) -> Losses:
        """``steps`` steps of DP-SGD, each followed by one of the proximal term."""
        received = flatten(self.shared)
        learning_rate = self.trainer.optimizer.param_groups[0]["lr"]
        self.trainer.begin_round(round, steps)  # on the ledger before the first step
        losses = []
        for _ in range(steps):
            loss = self.trainer.step(self.trainer.draw())
            now = flatten(self.shared)
            load_flat(self.shared, now - learning_rate * self.mu * (now - received))
            if loss is not None:  # a Poisson sample may be empty
                losses.append(loss)
        return Losses(proxy=sum(losses) / len(losses) if losses else None)


def fedprox(trainer, private: Private | None, mu: float = 0.1) -> Learner:
    """Makes one client's learner; ``private`` is None, since the method keeps the shared model."""
    return Proximal(trainer, mu)


MINE = {
    "fedprox": Method("FedAvg with a proximal term, with DP", fedprox, "mean", keeps="received"),
    "fedprox-1": Method(
        "the same, pulled harder", partial(fedprox, mu=1.0), "mean", keeps="received"
    ),
}


def main(rounds: int = 20, workers: int = 2) -> Run:
    """Compares FedAvg and FedProx on the digits of eight clients with two classes each."""
    config = Config(rounds=rounds, methods=("fedavg", *MINE))
    config = replace(config, partition=replace(config.partition, kind="classes"))
    result = run(config, methods=METHODS | MINE, workers=workers)
    for name in config.methods:
        accuracies = [result.accuracy(name, client) for client in range(8)]
        mean = sum(accuracies) / len(accuracies)
        print(f"{name:10} mean accuracy {mean:.3f}, {result.epsilon(name)}")
    return result


if __name__ == "__main__":  # workers import this file
    main()
