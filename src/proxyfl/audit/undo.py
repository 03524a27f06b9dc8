r"""From released parameters back to noisy sums of gradients, as far as a peer can.

A peer knows the optimizer and its settings but not its state, and sees a round's steps only
together: with beta the momentum and w_j a step's weight

    m_j = beta m_(j-1) + c g_j            c = 1 for sgd, 1 - beta for adam
    Delta = lr sum_j w_j m_j              adam: w_j = 1 / (sqrt(v^_j) + eps), bias corrections

Given the weights this is linear and, with Gaussian noise, a Kalman filter gets out of it all that
is in it: each round's innovation is what the peer could not have known before. For sgd with
one step a round, or without momentum, the filter is the exact inverse.

Adam's weights depend on the second moment, which the peer follows, too: the mean of a round's
squares is the square of their mean plus (1 - 1/k) sigma_g^2, with the noise sigma_g = sigma C / B
that the client states. Adam's first step shows signs and no sizes.

Errors of this inversion add to what the audit takes for noise, and a wrong scale cancels, since
noise and signal are measured in the same unit. So they can hide a leak but not invent one.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from proxyfl.audit.observe import Mechanism, Seen

_BETAS = (0.9, 0.999)
_EPS = 1e-8
_REPETITIONS = 4
_WIDEST = 5.0
"""Adam's gradients are looked for within so many standard deviations of the stated noise."""


def noisy_sums(seen: Seen, mechanism: Mechanism) -> Iterator[Tensor]:
    """For each round the sum over its steps of (clipped sum + noise), in units of the clip norm."""
    optimizer = mechanism.optimizer
    unit = mechanism.clip_norm / mechanism.divisor
    undo: _SGD | _Adam
    if optimizer.name == "sgd":
        undo = _SGD(optimizer.momentum)
    else:
        undo = _Adam(mechanism.noise_multiplier * unit)
    for start, release, steps in zip(
        seen.starts, seen.releases, seen.steps, strict=True
    ):
        moved = (start.double() - release.double()) / optimizer.learning_rate
        gradient = undo.mean_gradient(moved, steps)
        decay = optimizer.weight_decay * start.double()
        yield ((gradient - decay) * steps / unit).float()


class _Momentum:
    """Kalman filter of m_j = beta m_(j-1) + gain g_j, seen as sum_j weights_j m_j.

    All coordinates have the same noise, so one variance serves all; it is in units of g's.
    """

    def __init__(self, beta: float, gain: float) -> None:
        self._beta = beta
        self._gain = gain
        self._mean: Tensor | float = 0.0
        self._variance = 0.0

    def unexpected(
        self, total: Tensor, weights: list[float]
    ) -> tuple[Tensor, float]:
        """The part of ``total`` that the past does not explain, and what equal gradients of 1 would
        add."""
        from_past, from_each = self._weights(weights)
        return total - from_past * self._mean, sum(from_each)

    def update(self, unexpected: Tensor, weights: list[float]) -> None:
        """Take in what was seen."""
        steps = len(weights)
        from_past, from_each = self._weights(weights)
        left = [self._gain * self._beta ** (steps - 1 - i) for i in range(steps)]
        kept = self._beta**steps
        shared = kept * from_past * self._variance
        seen = from_past**2 * self._variance
        variance = kept**2 * self._variance
        for remains, shows in zip(left, from_each, strict=True):
            shared += remains * shows
            seen += shows**2
            variance += remains**2
        trust = shared / seen
        self._mean = kept * self._mean + trust * unexpected
        self._variance = max(0.0, variance - trust * shared)

    def _weights(self, weights: list[float]) -> tuple[float, list[float]]:
        """With which weights the old mean and each gradient enter the sum."""
        from_past = 0.0
        from_each = [0.0] * len(weights)
        for j, weight in enumerate(weights):
            from_past += weight * self._beta ** (j + 1)
            for i in range(j + 1):
                from_each[i] += weight * self._gain * self._beta ** (j - i)
        return from_past, from_each


class _SGD:
    """Follows the momentum buffer."""

    def __init__(self, momentum: float) -> None:
        self._momentum = _Momentum(momentum, 1.0)

    def mean_gradient(self, moved: Tensor, steps: int) -> Tensor:
        """The mean of the round's gradients, as far as ``moved`` shows it."""
        weights = [1.0] * steps
        unexpected, scale = self._momentum.unexpected(moved, weights)
        self._momentum.update(unexpected, weights)
        return unexpected / scale


class _Adam:
    """Follows both moments, coordinate by coordinate."""

    def __init__(self, noise: float) -> None:
        self._noise = noise
        self._first = _Momentum(_BETAS[0], 1 - _BETAS[0])
        self._second: Tensor | None = None
        self._steps = 0

    def mean_gradient(self, moved: Tensor, steps: int) -> Tensor:
        """The mean of the round's gradients, as far as ``moved`` shows it.

        Given the second moment, the equation is linear in the gradient; the second moment changes
        little with it, so a few repetitions find both.
        """
        second = torch.zeros_like(moved) if self._second is None else self._second
        numbers = range(self._steps + 1, self._steps + steps + 1)
        weights = [1 / (1 - _BETAS[0] ** number) for number in numbers]
        stated = torch.full_like(moved, self._noise**2)
        largest = _WIDEST * self._noise
        square = stated
        unexpected = gradient = torch.zeros_like(moved)
        for _ in range(_REPETITIONS):
            total = moved * self._divisor(second, square, steps)
            unexpected, scale = self._first.unexpected(total, weights)
            gradient = (unexpected / scale).clamp(-largest, largest)
            square = self._mean_square(gradient, steps)
        if self._steps == 0:
            square = stated  # the first step shows the sign of a gradient and not its size
        self._first.update(gradient * scale, weights)
        old = _BETAS[1] ** steps
        self._second = old * second + (1 - old) * square
        self._steps += steps
        return gradient

    def _mean_square(self, gradient: Tensor, steps: int) -> Tensor:
        """The expected mean of the squares of ``steps`` gradients whose mean is ``gradient``.

        Over all coordinates it is the stated noise: errors of the inversion must not add up.
        """
        square = gradient**2 + self._noise**2 * (1 - 1 / steps)
        return square * (self._noise**2 / square.mean().clamp(min=_EPS**2))

    def _divisor(self, second: Tensor, square: Tensor, steps: int) -> Tensor:
        """sqrt(v^) + eps in the middle of the round."""
        inverse = torch.zeros_like(second)
        for step in range(1, steps + 1):
            old = _BETAS[1] ** step
            moment = (old * second + (1 - old) * square) / (
                1 - _BETAS[1] ** (self._steps + step)
            )
            inverse += 1 / (moment.sqrt() + _EPS)
        return steps / inverse
