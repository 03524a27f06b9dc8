"""The values of a column, back from the features of a table with a schema.

Guarantees:
    * every value is one that the schema allows; numbers are as training saw them, clipped to the
      public range and exact to a millionth of it;
    * a missing value is None if the column has an indicator. Without one it cannot be told from its
      fill.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from proxyfl._validate import suggestion
from proxyfl.data.tables.features import feature_names, names_of
from proxyfl.data.tables.schema import Column, Schema
from proxyfl.errors import ConfigError

ROUNDING = 1e-6
"""The part of a range to which a number is known: features are 32-bit numbers."""

MOST_VALUES = 6
"""The most distinct numbers that are groups of their own without cut points."""


def groups_of(
    schema: Schema, x: npt.NDArray[np.floating], name: str, cuts: Sequence[float] = ()
) -> list[str]:
    """Returns the group of each row of features by the column ``name``: its value, or the band
    between two of the ``cuts`` that hold a number.

    ConfigError for a column that is no feature, and for cuts that do not fit it."""
    if name not in schema.features:
        raise ConfigError(
            f"The schema {schema.name!r} has no feature column {name!r}."
            f"{suggestion(name, schema.features)}"
        )
    column = schema.features[name]
    before = 0
    for other, its in schema.features.items():
        if other == name:
            break
        before += len(names_of(other, its))
    block = np.asarray(x[:, before : before + len(names_of(name, column))], dtype=float)
    assert x.shape[1] == len(feature_names(schema))
    missing = block[:, -1] > 0.5 if column.indicator else np.zeros(len(x), dtype=bool)
    if column.is_measured and column.encoding != "bins":
        groups = _bands(name, column, block[:, 0], missing, cuts)
    else:
        if cuts:
            raise ConfigError(
                f"--bands is for columns of numbers, and {name!r} is {_kind(column)}. Leave it out."
            )
        groups = _values(column, block)
    return ["missing" if gone else group for gone, group in zip(missing, groups, strict=True)]


def takes_bands(column: Column) -> bool:
    """True for a column of numbers, which cut points can divide."""
    return column.is_measured and column.encoding != "bins"


def _kind(column: Column) -> str:
    return "in bins already" if column.encoding == "bins" else f"of the type {column.type}"


def _values(column: Column, block: npt.NDArray[np.float64]) -> list[str]:
    """The value of each row of a category, a yes/no or a column in bins."""
    if column.type == "yes/no":
        return ["missing" if sign == 0 else "yes" if sign > 0 else "no" for sign in block[:, 0]]
    if column.type == "category":
        names = [*column.values, *(["other"] if column.unknown == "other" else [])]
    else:
        edges = [column.range[0], *column.knots, column.range[1]]
        names = [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
    hot = block[:, : len(names)]
    places = hot.argmax(1).tolist()
    known = (hot.max(1) > 0.5).tolist()
    return [
        names[at] if is_known else "missing" for at, is_known in zip(places, known, strict=True)
    ]


def _bands(
    name: str,
    column: Column,
    feature: npt.NDArray[np.float64],
    missing: npt.NDArray[np.bool_],
    cuts: Sequence[float],
) -> list[str]:
    low, high = column.range
    unit = column.unit or ("years" if column.type == "date" else "")
    step = (high - low) * ROUNDING
    values = low + (feature + 1) / 2 * (high - low)
    values = np.round((values - low) / step) * step + low
    if not cuts:
        distinct = np.unique(values[~missing].round(9))
        if len(distinct) > MOST_VALUES:
            raise ConfigError(
                f"{name!r} has more than {MOST_VALUES} different numbers. Divide it by cut points, "
                f"for example --bands {(low + high) / 2:g}."
            )
        return [f"{value:.6g} {unit}".rstrip() for value in values]
    if list(cuts) != sorted(set(cuts)) or not (low < cuts[0] and cuts[-1] <= high):
        raise ConfigError(
            f"Expected rising cut points of {name!r} within its range, {low:g} to {high:g}, got "
            f"{', '.join(f'{cut:g}' for cut in cuts)}."
        )
    names = [f"below {cuts[0]:g}"]
    names += [f"{start:g} to below {end:g}" for start, end in pairwise(cuts)]
    names.append(f"{cuts[-1]:g} and above")
    bands = np.searchsorted(np.array(cuts) - step / 2, values, side="right")
    return [f"{names[band]} {unit}".rstrip() for band in bands.tolist()]
