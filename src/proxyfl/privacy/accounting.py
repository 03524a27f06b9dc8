"""The cost of steps: epsilon by two accountants.

Both are for Poisson-sampled Gaussian noise and neighbours that differ by one unit (``Unit``: a
record, or a person with all of theirs), present or absent, at one and the same sampling rate
(``guarantee.Relation`` says when that is so). Both give upper bounds, so the smaller is as true as
the larger. RDP is the paper's accountant (with its orders), PLD the tighter."""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proxyfl import _validate
from proxyfl.errors import ConfigError
from proxyfl.privacy.accountants import pld, rdp
from proxyfl.privacy.accountants.rdp import PAPER_ORDERS
from proxyfl.privacy.guarantee import Epsilon, Kind, Relation, Unit, shown

ACCOUNTANTS = ("pld", "rdp")


class AccountingWarning(UserWarning):
    """An epsilon is sound, but looser than it might be."""


@dataclass(frozen=True)
class Segment:
    """A number of alike steps: what an accountant needs to know of a training, and all it needs to
    know."""

    sampling_rate: float
    noise_multiplier: float
    steps: int

    def __post_init__(self) -> None:
        _validate.number("sampling_rate", self.sampling_rate, above=0, at_most=1)
        # Its square must be a float, too.
        _validate.number(
            "noise_multiplier", self.noise_multiplier, above=0, at_most=1e100
        )
        _validate.whole("steps", self.steps, at_least=0)


def rdp_of(
    segments: Iterable[Segment],
    delta: float,
    orders: Sequence[float] = PAPER_ORDERS,
) -> float:
    """Epsilon of all ``segments`` together by Rényi DP. Some tens of microseconds for settings seen
    before."""
    _checked_delta(delta)
    if not orders or any(not 1.01 < order < math.inf for order in orders):
        raise ConfigError(
            f"Expected finite RDP orders above 1.01, got orders={list(orders)}."
        )
    return rdp.epsilon(_parts(segments), delta, tuple(map(float, orders)))


def pld_of(
    segments: Iterable[Segment], delta: float, *, coarser: float = 1.0
) -> float:
    """Epsilon of all ``segments`` together by privacy loss distributions, on a grid ``coarser`` by
    that factor.

    Guarantees: an upper bound, which a coarser grid gives sooner and a little higher;
    non-decreasing in the steps of any segment. Where the distributions cannot be computed, the RDP
    epsilon stands in, with an ``AccountingWarning`` that says so."""
    _checked_delta(delta)
    _validate.number("coarser", coarser, at_least=1)
    parts = _parts(segments)
    if not parts:
        return 0.0
    bound = rdp.epsilon(parts, delta)
    steps = sum(n for _, _, n in parts)
    reason = (
        f"delta={delta:.3g} is too small for double precision over {steps} steps"
    )
    try:
        interval = pld.interval_for(bound, min(noise for _, noise, _ in parts))
        value = pld.epsilon(parts, delta, coarser * interval)
    except (ValueError, ArithmeticError, MemoryError):
        value = math.inf
        reason = "their privacy loss is too large to tabulate (very little noise)"
    if math.isinf(value):
        warnings.warn(
            f"The PLD accountant cannot handle these steps: {reason}. "
            f"Its epsilon is given as the RDP accountant's {shown(bound)}, which is a valid bound "
            f"but not as tight.",
            AccountingWarning,
            stacklevel=2,
        )
        return bound
    return value


def epsilon_of(
    segments: Iterable[Segment],
    delta: float,
    accountant: str,
    *,
    coarser: float = 1.0,
) -> float:
    """Epsilon by the ``accountant`` named, "pld" or "rdp"; ``coarser`` is for PLD only."""
    _validate.choice("accountant", accountant, ACCOUNTANTS)
    if accountant == "rdp":
        return rdp_of(segments, delta)
    return pld_of(segments, delta, coarser=coarser)


def epsilon(
    segments: Iterable[Segment],
    delta: float,
    kind: Kind,
    relation: Relation = Relation.ZERO_OUT,
    unit: Unit = Unit.RECORD,
) -> Epsilon:
    """The whole statement about all ``segments`` together."""
    _checked_delta(delta)
    if kind is Kind.NONE:
        return Epsilon(math.inf, math.inf, delta, kind, relation, unit)
    segments = tuple(segments)
    return Epsilon(
        rdp=rdp_of(segments, delta),
        pld=pld_of(segments, delta),
        delta=delta,
        kind=kind,
        relation=relation,
        unit=unit,
    )


def merged(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """The same cost in fewer segments: equal settings added up, empty ones left out, in order of
    appearance."""
    totals: dict[tuple[float, float], int] = {}
    for segment in segments:
        setting = (segment.sampling_rate, segment.noise_multiplier)
        totals[setting] = totals.get(setting, 0) + segment.steps
    found = []
    for (rate, noise), steps in totals.items():
        if steps:
            found.append(Segment(rate, noise, steps))
    return tuple(found)


def _parts(segments: Iterable[Segment]) -> tuple[pld.Part, ...]:
    found = []
    for each in merged(segments):
        rate, noise = float(each.sampling_rate), float(each.noise_multiplier)
        found.append((rate, noise, each.steps))
    # Sorted, since composition does not depend on the order and the caches then need not know of
    # it.
    return tuple(sorted(found))


def _checked_delta(delta: float) -> None:
    _validate.number("delta", delta, above=0, below=1)
