"""The units that a step draws and clips: single records, or persons with their records.

With ``Unit.GROUP`` a step draws persons by Poisson sampling. Of each person drawn it takes at most
``max_per_group`` records, chosen again in every step, uniformly and without replacement.

Guarantees:
    * a person's records are drawn together or not at all, so one person more or less changes one
      clipped summand of the step;
    * which of a person's records are taken depends on that person's records and on fresh draws,
      never on any other person. For given draws the sum's sensitivity is C, so the mechanism is a
      Poisson-subsampled Gaussian one with the person as the unit;
    * examples that do not name their persons are refused: a record is never taken for a person.
      So are numbers that may stand for a missing name (negative ones), and those that are not whole
      (every "not a number" would be a person of its own).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from proxyfl import _validate
from proxyfl._examples import Examples
from proxyfl.errors import ConfigError
from proxyfl.privacy.guarantee import Unit
from proxyfl.seeds import Randomness
from proxyfl.settings import DP


@dataclass(frozen=True)
class Units:
    """The units of one client's examples, numbered from 0; persons in the order of their groups.

    ``max_per_group`` None takes all of a person's records."""

    examples: Examples
    unit: Unit = Unit.RECORD
    max_per_group: int | None = None

    @classmethod
    def of(cls, examples: Examples, dp: DP) -> Self:
        """The units of ``examples`` that ``dp`` protects."""
        return cls(examples, Unit(dp.unit), dp.max_per_group)

    def __post_init__(self) -> None:
        _validate.choice("privacy.unit", self.unit, tuple(Unit))
        if self.max_per_group is not None:
            _validate.whole("privacy.max_per_group", self.max_per_group)
        if self.unit is not Unit.GROUP and self.max_per_group is not None:
            raise ConfigError(
                f"privacy.max_per_group={self.max_per_group} is for privacy.unit = 'group', got "
                f"unit {str(self.unit)!r}. Set the unit, or leave max_per_group out."
            )
        if self.unit is Unit.GROUP:
            _check(self._groups, len(self.examples))

    def __len__(self) -> int:
        if self.unit is Unit.RECORD:
            return len(self.examples)
        return len(self._sizes)

    @property
    def _groups(self) -> Tensor:
        """The person whom each record is about."""
        groups = self.examples.groups
        if groups is None:
            raise ConfigError(
                "privacy.unit = 'group' needs to know which records are of one person, and these "
                'data do not say. Name the column in the table\'s schema (person = "..."), add '
                "an array 'group' to the arrays, or use privacy.unit = 'record'."
            )
        return groups

    def numbers(self) -> Tensor:
        """The unit that each record belongs to."""
        if self.unit is Unit.RECORD:
            return torch.arange(len(self.examples))
        numbers: Tensor = torch.unique(self._groups, return_inverse=True)[1]
        return numbers

    @cached_property
    def _order(self) -> Tensor:
        """All rows, person after person."""
        return torch.argsort(self._groups, stable=True)

    @cached_property
    def _sizes(self) -> Tensor:
        """The number of each person's records."""
        sizes: Tensor = torch.unique(self._groups, return_counts=True)[1]
        return sizes

    def records(self, chosen: Tensor, source: Randomness) -> tuple[Tensor, Tensor | None]:
        """The rows of the units ``chosen``, and how many consecutive ones each person has (None if
        every record is a unit)."""
        if self.unit is Unit.RECORD:
            return chosen, None
        sizes = self._sizes[chosen]
        starts = (self._sizes.cumsum(0) - self._sizes)[chosen]
        within = _counted(sizes)
        rows = self._order[starts.repeat_interleave(sizes) + within]
        most = self.max_per_group
        if most is None:
            return rows, sizes
        shuffled = _shuffled_within(sizes, source)
        taken = sizes.clamp(max=most)
        return rows[shuffled[within < most]], taken


def _check(groups: Tensor, records: int) -> None:
    """Raise ``ConfigError`` unless there is a whole number from 0 for each record."""
    whole = groups.dtype in (torch.int64, torch.int32, torch.int16, torch.uint8)
    if not whole or groups.shape != (records,):
        raise ConfigError(
            f"privacy.unit = 'group' needs a whole number for the person of each of {records} "
            f"records, got {groups.dtype} of shape {tuple(groups.shape)}."
        )
    if records and int(groups.min()) < 0:
        row = int((groups < 0).nonzero()[0])
        raise ConfigError(
            f"privacy.unit = 'group' needs persons numbered from 0, got {int(groups[row])} for "
            f"record {row}. Negative numbers stand for missing names in many programs, and would "
            "make one person of many. Leave such records out, or give each a number of its own."
        )


def _counted(sizes: Tensor) -> Tensor:
    """0 .. size - 1 for each size, one after another."""
    starts = sizes.cumsum(0) - sizes
    return torch.arange(int(sizes.sum())) - starts.repeat_interleave(sizes)


def _shuffled_within(sizes: Tensor, source: Randomness) -> Tensor:
    """A permutation of consecutive stretches of these sizes that keeps each stretch in its
    place."""
    owner = torch.arange(len(sizes)).repeat_interleave(sizes)
    by_chance = torch.argsort(source.uniform(len(owner)))
    return by_chance[torch.argsort(owner[by_chance], stable=True)]
