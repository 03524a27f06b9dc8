"""The cost of a training to a person who has several records in the data.

Batches are drawn record by record. Of a person's k records a step then draws a binomial number J,
and their clipped gradients move the sum by at most J C. The worst case is the mixture of Gaussians

    N(0, sigma^2)   against   sum_j Binomial(j; k, q) N(j, sigma^2),      C = 1,

which dominates every other person with k records, step by step (Ganesh 2024, arXiv:2401.10294v1).
Its privacy loss is dp-accounting's; steps compose as for one record.

Guarantees: an upper bound, and the record's own bound for k = 1 up to the grid; it grows with k.
"""

import math

import numpy as np

from proxyfl import _validate
from proxyfl.errors import ConfigError
from proxyfl.privacy.accounting import Segment, pld_of, usable_delta

MOST_RECORDS = 64
"""Beyond this many records the numbers say nothing any more, and take long to compute."""

_INTERVALS_PER_EPSILON = 1000
_FINEST = 1e-4


def person_epsilon(segment: Segment, records: int, delta: float) -> float:
    """Epsilon at ``delta`` of the segment's steps for a person with ``records`` records."""
    _validate.whole("records-per-person", records)
    if records > MOST_RECORDS:
        raise ConfigError(
            f"Expected records-per-person of at most {MOST_RECORDS}, got {records}. Keep fewer "
            "records of each person, or make the person the unit."
        )
    own = pld_of([segment], delta)
    if records == 1 or not segment.steps:
        return own
    delta = usable_delta(delta, [segment])
    return _mixture(segment, records, delta, _interval(own * records))


def _interval(expected: float) -> float:
    """The grid's spacing for losses of this size; a coarser one gives a larger epsilon."""
    wanted = max(_FINEST, expected / _INTERVALS_PER_EPSILON)
    return _FINEST * 2.0 ** math.floor(math.log2(wanted / _FINEST))


def _mixture(segment: Segment, records: int, delta: float, interval: float) -> float:
    from dp_accounting.pld import privacy_loss_distribution
    from scipy import stats

    drawn = np.arange(records + 1)
    chances = stats.binom.pmf(drawn, records, segment.sampling_rate)
    likely = chances > 0
    step = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        segment.noise_multiplier,
        drawn[likely].tolist(),
        chances[likely].tolist(),
        pessimistic_estimate=True,
        value_discretization_interval=interval,
    )
    return float(step.self_compose(segment.steps).get_epsilon_for_delta(delta))
