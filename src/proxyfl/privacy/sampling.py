"""Poisson sampling: which examples take part in a step.

Every accountant in this package assumes exactly this sampling, so no other is offered: a shuffled
epoch of fixed-size batches looks similar and has a different, larger cost."""

import torch
from torch import Tensor

from proxyfl import _validate
from proxyfl.errors import ConfigError
from proxyfl.seeds import Randomness


def rate_for(batch_size: int, examples: int) -> float:
    """The sampling rate q = B / n at which batches have ``batch_size`` examples on average."""
    _validate.whole("batch_size", batch_size)
    if batch_size > examples:
        raise ConfigError(
            f"Expected a batch_size of at most the client's {examples} examples, got "
            f"batch_size={batch_size}."
        )
    return batch_size / examples


def poisson(examples: int, rate: float, source: Randomness) -> Tensor:
    """The sorted int64 indices of one batch drawn from ``range(examples)``.

    Guarantees: each example is in the batch with probability ``rate``, whatever happens to any
    other example and whatever was drawn before. The batch may be empty, and an empty batch is a
    step like any other: its noise is added and its cost is charged, because that it was empty says
    something about the data."""
    _validate.whole("examples", examples)
    _validate.number("sampling_rate", rate, above=0, at_most=1)
    # uniform() never returns 1, so that a rate of 1 takes everyone.
    return torch.nonzero(source.uniform(examples) < rate).view(-1)
