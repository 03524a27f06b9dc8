"""The meaning of an epsilon: its kind, its neighbours, its unit, and how it is printed.

A number alone misleads, so an ``Epsilon`` cannot be made without its kind and carries the relation
between the datasets that it compares, the unit in which they differ, and the coalition that it
holds against.

Guarantees:
    * ``kind_of`` is the only place that decides a guarantee's kind;
    * a printed epsilon is never below the number it stands for, and one above 0 is never printed
      as 0. "The number it stands for" is the shortest decimal that reads back as the same float.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, Decimal
from enum import StrEnum
from typing import Protocol

from proxyfl import _validate
from proxyfl.privacy.coalition import ALL_OTHERS, Coalition, worst_case
from proxyfl.privacy.perexample.gradients import Computation as Computation
from proxyfl.privacy.perexample.gradients import Gradients as Gradients

WEAK = 10.0
"""Above this an epsilon rules out very little."""


class _Told(StrEnum):
    """A word of a promise that has a sentence for whoever reads a result."""

    @property
    def sentence(self) -> str:
        """The word explained."""
        return _SENTENCES[self]


class Kind(_Told):
    """The kinds of guarantee: what an epsilon covers."""

    END_TO_END = "end-to-end"
    """All that was released, as a function of the whole local dataset. The proxy learnt from the
    data by DP-SGD and from nothing else that saw the data: beta = 0, or a method without a private
    teacher. That the private model learns from the proxy is post-processing."""

    CONDITIONAL = "conditional"
    """The same, but only with the private model taken as fixed. The proxy's loss contains the KL
    divergence to the private model (beta > 0), which was trained without DP on *all* local data.
    One example more or less changes that model and with it *every* example's clipped gradient, not
    one: the sum's sensitivity is then not C. The number does not bound what the private model leaks
    into the proxy. This is the paper's guarantee."""

    NONE = "none"
    """Trained without differential privacy: epsilon is infinite."""


class Unit(_Told):
    """The unit of protection: the part in which two neighbouring datasets differ."""

    RECORD = "record"
    """One record. Records are drawn and clipped one by one."""

    GROUP = "group"
    """All records of one person together, however many they are. Persons are drawn, and what is
    clipped is the mean gradient of a person's records."""

    @property
    def plural(self) -> str:
        """Several of them, in words."""
        return "examples" if self is Unit.RECORD else "groups"

    @property
    def noun(self) -> str:
        """One of them, as a terminal says it: a group is all records of one patient."""
        return "record" if self is Unit.RECORD else "patient"


class Relation(_Told):
    """The two datasets that an epsilon compares."""

    ADD_OR_REMOVE = "add-or-remove"
    """One is the other with one unit added or removed. It holds where nothing about the training
    follows from the number of units: the sampling rate, the divisor, the steps and delta are
    given beforehand."""

    ZERO_OUT = "zero-out"
    """Both have the same number of units, and in one of them a unit is replaced by one whose
    gradient is zero. It holds where the sampling rate follows from the number of units, which is
    then public: it is not protected."""


_SENTENCES: dict[_Told, str] = {
    Kind.END_TO_END: "end-to-end: covers everything that was released, as a function of all of "
    "the client's data.",
    Kind.CONDITIONAL: "conditional: holds only with the private model taken as fixed; the proxy "
    "learns from it (beta > 0), and it saw all data without DP. Set learning.beta=0 for an "
    "end-to-end guarantee.",
    Kind.NONE: "none: trained without differential privacy, so epsilon is infinite.",
    Unit.RECORD: "record: the unit is one record; a person with several records is promised less "
    "(see --records-per-person of the command epsilon).",
    Unit.GROUP: "group: the unit is one person with all of their records, however many.",
    Relation.ADD_OR_REMOVE: "add-or-remove: compares datasets of which one has one unit (record or "
    "group) more; the sampling rate does not follow from the data.",
    Relation.ZERO_OUT: "zero-out: compares datasets of which one has a unit (record or group) "
    "replaced by one of no effect; the number of units is public.",
}


def kind_of(*, dp: bool, teacher_weight: float) -> Kind:
    """The kind of guarantee that a shared model has.

    ``dp``: whether it is trained by DP-SGD. ``teacher_weight``: the weight (beta) with which it
    learns from a model that has seen the data without DP; 0 if there is none."""
    _validate.number("beta", teacher_weight, at_least=0, at_most=1)
    if not dp:
        return Kind.NONE
    return Kind.CONDITIONAL if teacher_weight > 0 else Kind.END_TO_END


class Promise(Protocol):
    """Whatever promises a kind of guarantee between neighbours of a relation."""

    @property
    def kind(self) -> Kind: ...

    @property
    def relation(self) -> Relation: ...


_WEAKEST_FIRST = (Kind.NONE, Kind.CONDITIONAL, Kind.END_TO_END)


def weakest(promises: Iterable[Promise]) -> tuple[Kind, Relation]:
    """The kind and the relation that hold for all of ``promises`` together."""
    kinds = {Kind.END_TO_END}
    relations = set()
    for promise in promises:
        kinds.add(promise.kind)
        relations.add(promise.relation)
    alike = relations == {Relation.ADD_OR_REMOVE}
    relation = Relation.ADD_OR_REMOVE if alike else Relation.ZERO_OUT
    return next(kind for kind in _WEAKEST_FIRST if kind in kinds), relation


@dataclass(frozen=True)
class Epsilon:
    """An (epsilon, delta) guarantee by both accountants, with its kind, relation and unit.

    ``coalition`` None: it holds against all others together. Otherwise it holds against coalitions
    of that many members, and ``all_others`` is the epsilon if all others collude."""

    rdp: float
    pld: float
    delta: float
    kind: Kind
    relation: Relation = Relation.ZERO_OUT
    unit: Unit = Unit.RECORD
    coalition: Coalition | None = None
    all_others: float | None = None

    @property
    def against_all(self) -> float:
        """The epsilon if all other members collude."""
        return self.best if self.all_others is None else self.all_others

    @property
    def sentences(self) -> tuple[str, ...]:
        """Against whom it holds, and what is left if all others collude, for the person who answers
        for the data."""
        if self.kind is Kind.NONE:
            return ()
        if self.coalition is None:
            return (ALL_OTHERS,)
        return (self.coalition.sentence, worst_case(shown(self.against_all)))

    def document(self) -> dict[str, object]:
        """The statement as plain data, both epsilons with their coalitions included."""
        colluders = "all others" if self.coalition is None else self.coalition.colluders
        about = asdict(self) | {"all_others": self.against_all, "colluders": colluders}
        about["quorum"] = None if self.coalition is None else self.coalition.quorum
        del about["coalition"]
        return about

    @property
    def best(self) -> float:
        """The smaller of the two: both are upper bounds."""
        return min(self.rdp, self.pld)

    @property
    def weak(self) -> bool:
        """True if the number rules out very little."""
        return self.best > WEAK

    def __str__(self) -> str:
        if self.kind is Kind.NONE:
            return "epsilon infinite (kind: none, trained without differential privacy)"
        delta = f"{upward(self.delta, 3):.3g}"
        promise = f"{self.kind}, {self.relation}, per {self.unit.noun}"
        against = ""
        if self.coalition is not None:
            against = (
                f" against up to {self.coalition.colluders} colluding members and "
                f"{shown(self.against_all)} if all others collude,"
            )
        return f"epsilon {shown(self.best)}{against} at delta {delta} ({promise})"


_LONG = 1e12
"""From here on an epsilon is printed by its first digits: it rules out nothing."""


def largest(epsilons: Iterable[Epsilon]) -> Epsilon:
    """The one that promises least; the first of equals. Raises ValueError for none."""
    return max(epsilons, key=lambda epsilon: epsilon.best)


def shown(value: float, decimals: int = 3) -> str:
    """An epsilon to print: rounded up, and ``<0.001`` rather than ``0.000``. One that has more than
    twelve digits before the point is printed as ``5.501e+24``."""
    if math.isinf(value):
        return "inf"
    if value == 0:
        return "0"
    if value >= _LONG:
        return f"{upward(value):.3e}"
    step = Decimal(1).scaleb(-decimals)
    number = Decimal(repr(float(value)))
    if number < step:
        return f"<{step}"
    return str(number.quantize(step, ROUND_CEILING))


def brief(value: float) -> str:
    """An epsilon in five characters, if it is one of those that people choose; rounded up."""
    return shown(value, 2) if value < 100 else shown(value, 0)


def upward(value: float, digits: int = 4) -> float:
    """``value`` with so many significant digits, rounded up; 0 and infinity as they are."""
    if value == 0 or math.isinf(value):
        return value
    number = Decimal(repr(float(value)))
    step = Decimal(1).scaleb(number.adjusted() - digits + 1)
    return float(number.quantize(step, ROUND_CEILING))
