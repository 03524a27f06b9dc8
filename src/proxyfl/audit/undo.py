r"""From released parameters back to noisy sums of gradients, as far as a peer can.

A peer knows the optimizer and its settings but not its state, and sees the steps of a round only
together. What it sees is linear in the gradients g_j of all steps so far: with beta the momentum,

    m_j = beta m_(j-1) + c g_j                    c = 1 for sgd, 1 - beta for adam
    D_t Delta_t / lr = sum_j H_tj g_j             sum over the round's steps of m_j, bias corrected

and D_t = 1 for sgd. With L L' = H H', the rows of L^-1 D Delta / lr have independent noise again,
of the size that one step has, and L^-1 H says which gradients they show with which weight. Nothing
is lost: L^-1 is invertible. For sgd with one step a round this is the exact inverse.

Adam divides by D_t = sqrt(v^), the root of a moving average of squares. Scaling all gradients
of a coordinate changes nothing, so its scale is hidden but its course is not: the squares of what
D = 1 would mean, plus the variance that the peer cannot see, give v^ up to that scale. The scale
follows from the noise that the client states. Adam's first steps are recovered worst.

Errors of this inversion add to what the audit takes for noise, and a wrong scale cancels, since
noise and signal are measured in the same unit. So they can hide a leak but not invent one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from proxyfl.audit.observe import Mechanism, Seen

_BETAS = (0.9, 0.999)
_TINY = 1e-30


@dataclass(frozen=True)
class Undone:
    """A client's rounds as a peer recovers them, in units of the clip norm.

    ``sums`` (rounds, size) have independent noise of the size that one step adds. A record with
    the clipped gradients c_s in rounds s that is drawn at the rate q adds q sum_s response_ts c_s
    to row t on average; response is lower triangular. ``weights`` (rounds, steps) is the same for
    single steps.
    """

    sums: Tensor
    weights: Tensor
    response: Tensor


def undo(seen: Seen, mechanism: Mechanism) -> Undone:
    """Undo the optimizer, over all rounds at once."""
    optimizer = mechanism.optimizer
    unit = mechanism.clip_norm / mechanism.divisor
    starts = torch.stack(seen.starts).double()
    releases = torch.stack(seen.releases).double()
    moved = (starts - releases) / optimizer.learning_rate
    if optimizer.name == "adam":
        shown = _adam_response(seen.steps)
        divisors = _divisors(moved, shown, seen.steps)
        total = mechanism.noise_multiplier * moved * divisors
    else:
        shown = _momentum_response(seen.steps, optimizer.momentum)
        total = moved / unit
    factor = torch.linalg.cholesky(shown @ shown.T)
    white = torch.linalg.solve_triangular(factor, shown, upper=False)
    response = white @ _round_of_steps(seen.steps)
    sums = torch.linalg.solve_triangular(factor, total, upper=False)
    decay = optimizer.weight_decay / unit
    sums -= response @ (decay * starts)
    return Undone(sums.float(), white, response)


def _momentum_response(steps: Sequence[int], momentum: float) -> Tensor:
    """H of sgd: how much of each step's gradient each round shows."""
    each = _decaying(sum(steps), momentum)
    return _round_of_steps(steps).T @ each


def _adam_response(steps: Sequence[int]) -> Tensor:
    """H of adam: the same with its averaging and its bias correction."""
    beta = _BETAS[0]
    count = sum(steps)
    numbers = torch.arange(1, count + 1, dtype=torch.float64)
    weights = (1 - beta) / (1 - beta**numbers)
    each = weights[:, None] * _decaying(count, beta)
    return _round_of_steps(steps).T @ each


def _decaying(count: int, beta: float) -> Tensor:
    """The lower triangular matrix beta^(i - j)."""
    numbers = torch.arange(count, dtype=torch.float64)
    age = numbers[:, None] - numbers
    return torch.tril(beta ** age.clamp(min=0))


def _round_of_steps(steps: Sequence[int]) -> Tensor:
    """(steps, rounds): 1 where a step belongs to a round."""
    rounds = torch.arange(len(steps))
    of_each = rounds.repeat_interleave(torch.tensor(steps))
    return torch.nn.functional.one_hot(of_each, len(steps)).double()


def _divisors(moved: Tensor, shown: Tensor, steps: Sequence[int]) -> Tensor:
    """Adam's divisor of each round's steps, in units of the noise: (rounds, size)."""
    inverse = torch.linalg.inv(shown @ shown.T)
    gradients = shown.T @ (inverse @ moved)
    unseen = 1 - torch.einsum("tj,ts,sj->j", shown, inverse, shown)
    squares = gradients**2 + unseen[:, None]
    total = squares.sum(dim=0).clamp(min=_TINY)
    squares *= len(squares) / total
    roots = _second_moments(squares).sqrt().clamp(min=_TINY)
    rounds = _round_of_steps(steps)
    together = rounds.T @ (1 / roots)
    return rounds.sum(dim=0)[:, None] / together


def _second_moments(squares: Tensor) -> Tensor:
    """Adam's bias corrected moving average of squares, step by step."""
    beta = _BETAS[1]
    moments = torch.empty_like(squares)
    moment = torch.zeros_like(squares[0])
    for number, square in enumerate(squares, start=1):
        moment = beta * moment + (1 - beta) * square
        moments[number - 1] = moment / (1 - beta**number)
    return moments
