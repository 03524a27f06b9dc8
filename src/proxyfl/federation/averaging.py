"""The mean of a client's proxies over the last training rounds (Polyak and Juditsky 1992).

Each proxy in the mean was already released or received, so the mean is post-processing: it costs no
privacy. It takes the place of the proxy when the proxies settle.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Tail:
    """The proxies after the exchanges of rounds ``first`` to ``end`` - 1: their sum in float64."""

    first: int
    end: int
    total: Tensor | None = None
    count: int = 0

    def add(self, round: int, theta: Tensor) -> None:
        """Take in the proxy as the exchange of ``round`` left it."""
        if not self.first <= round < self.end:
            return
        value = theta.detach().double()
        if self.total is not None:
            value = self.total + value
        self.total = value
        self.count += 1

    def mean(self, round: int) -> Tensor | None:
        """The mean, in the round in which it takes the proxy's place; None in any other."""
        if round != self.end or self.total is None:
            return None
        mean = self.total / self.count
        return mean.float()

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        if self.total is None:
            return {}
        return {"tail/total": self.total, "tail/count": torch.tensor(self.count)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from a checkpoint's ``state``."""
        self.total = state.get("tail/total")
        self.count = int(state.get("tail/count", 0))


def tail_over(share: float, training_rounds: int) -> Tail | None:
    """The mean over the last ``share`` of the training rounds; None for a share of 0."""
    if not share:
        return None
    length = max(1, math.floor(share * training_rounds))
    return Tail(training_rounds - length, training_rounds)
