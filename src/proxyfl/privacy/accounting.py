"""The cost of steps: epsilon by two accountants.

Both are for Poisson-sampled Gaussian noise and neighbours that differ by one unit (``Unit``: a
record, or a person with all of theirs), present or absent, at one and the same sampling rate
(``guarantee.Relation`` says when that is so). Both give upper bounds, so the smaller is as true as
the larger. RDP is the paper's accountant (with its orders), PLD the tighter.

Steps of a masked sum have a ``coalition``. Their stated noise multiplier holds against coalitions
of the agreed size; ``alone`` gives the same steps as a member faces them if all others collude. A
billionth of delta (``coalition.RESERVE``) is set aside for the noise's distance from a Gaussian."""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proxyfl import _validate
from proxyfl.errors import ConfigError
from proxyfl.privacy import pld, rdp
from proxyfl.privacy.coalition import RESERVE, Coalition
from proxyfl.privacy.guarantee import Epsilon, Kind, Relation, Unit, shown
from proxyfl.privacy.rdp import PAPER_ORDERS
from proxyfl.settings import ACCOUNTANTS


class AccountingWarning(UserWarning):
    """An epsilon is sound, but looser than it might be."""


@dataclass(frozen=True)
class Segment:
    """A number of alike steps: what an accountant needs to know of a training, and all it needs to
    know. ``coalition`` is None where the noise is a member's own."""

    sampling_rate: float
    noise_multiplier: float
    steps: int
    coalition: Coalition | None = None

    def __post_init__(self) -> None:
        _validate.number("sampling_rate", self.sampling_rate, above=0, at_most=1)
        # Its square must be a float, too.
        _validate.number("noise_multiplier", self.noise_multiplier, above=0, at_most=1e100)
        _validate.whole("steps", self.steps, at_least=0)

    @property
    def alone(self) -> "Segment":
        """The same steps if all other members collude: with the member's own noise only."""
        if self.coalition is None:
            return self
        own = self.coalition.alone(self.noise_multiplier)
        return Segment(self.sampling_rate, own, self.steps)


def rdp_of(
    segments: Iterable[Segment], delta: float, orders: Sequence[float] = PAPER_ORDERS
) -> float:
    """Epsilon of all ``segments`` together by Rényi DP. Some tens of microseconds for settings seen
    before."""
    segments = tuple(segments)
    delta = usable_delta(delta, segments)
    if not orders or any(not 1.01 < order < math.inf for order in orders):
        raise ConfigError(f"Expected finite RDP orders above 1.01, got orders={list(orders)}.")
    return rdp.epsilon(_parts(segments), delta, tuple(map(float, orders)))


def pld_of(segments: Iterable[Segment], delta: float, *, coarser: float = 1.0) -> float:
    """Epsilon of all ``segments`` together by privacy loss distributions, on a grid ``coarser`` by
    that factor.

    Guarantees: an upper bound, which a coarser grid gives sooner and a little higher;
    non-decreasing in the steps of any segment. Where the distributions cannot be computed, the RDP
    epsilon stands in, with an ``AccountingWarning`` that says so."""
    segments = tuple(segments)
    delta = usable_delta(delta, segments)
    _validate.number("coarser", coarser, at_least=1)
    parts = _parts(segments)
    if not parts:
        return 0.0
    bound = rdp.epsilon(parts, delta)
    steps = sum(n for _, _, n in parts)
    reason = f"delta={delta:.3g} is too small for double precision over {steps} steps"
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
    segments: Iterable[Segment], delta: float, accountant: str, *, coarser: float = 1.0
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
    """The whole statement about all ``segments`` together: against the coalitions that they were
    made for, and against all others."""
    _validate.number("delta", delta, above=0, below=1)
    if kind is Kind.NONE:
        return Epsilon(math.inf, math.inf, delta, kind, relation, unit)
    segments = tuple(segments)
    coalition = weakest_coalition(segments)
    all_others = None
    if coalition is not None:
        alone = if_all_collude(segments)
        all_others = min(rdp_of(alone, delta), pld_of(alone, delta))
    return Epsilon(
        rdp=rdp_of(segments, delta),
        pld=pld_of(segments, delta),
        delta=delta,
        kind=kind,
        relation=relation,
        unit=unit,
        coalition=coalition,
        all_others=all_others,
    )


def if_all_collude(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """The same steps as a member faces them if all others collude."""
    return merged(segment.alone for segment in segments)


def weakest_coalition(segments: Iterable[Segment]) -> Coalition | None:
    """The coalition of fewest colluders among those that ``segments`` were made for; None if all of
    them hold against all others."""
    coalitions = {each.coalition for each in segments if each.coalition is not None and each.steps}
    return min(coalitions, key=lambda each: (each.colluders, each.quorum), default=None)


def merged(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """The same cost in fewer segments: equal settings added up, empty ones left out, in order of
    appearance."""
    totals: dict[tuple[float, float, Coalition | None], int] = {}
    for segment in segments:
        setting = (segment.sampling_rate, segment.noise_multiplier, segment.coalition)
        totals[setting] = totals.get(setting, 0) + segment.steps
    kept = []
    for (rate, noise, coalition), steps in totals.items():
        if steps:
            kept.append(Segment(rate, noise, steps, coalition))
    return tuple(kept)


def _parts(segments: Iterable[Segment]) -> tuple[pld.Part, ...]:
    plain = (Segment(each.sampling_rate, each.noise_multiplier, each.steps) for each in segments)
    parts = []
    for each in merged(plain):
        rate, noise = float(each.sampling_rate), float(each.noise_multiplier)
        parts.append((rate, noise, each.steps))
    # Sorted, since composition does not depend on the order and the caches then need not know of
    # it.
    return tuple(sorted(parts))


def usable_delta(delta: float, segments: Iterable[Segment]) -> float:
    """The part of ``delta`` that the accountants may use."""
    _validate.number("delta", delta, above=0, below=1)
    if any(segment.coalition is not None for segment in segments):
        return delta * (1 - RESERVE)
    return delta
