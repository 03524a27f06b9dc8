"""What a coefficient means: each effect of an original column as a combination of features.

    yes/no      yes against no
    category    each value against the first one of the schema
    number      a step of one unit, ten or a hundred, whichever is below a quarter of the range;
                with hinges, between each two knots
    bins        each interval against the first
    missing     against what stands in its place: the fill of a number, or the first value

Guarantee: a contrast follows from the schema alone. Its scalar product with a linear model's
coefficients is the difference of the log odds.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from proxyfl.data.tables.features import feature_names, names_of
from proxyfl.data.tables.schema import Column, Schema


@dataclass(frozen=True)
class Contrast:
    """A change of one column, and what it does to each feature."""

    column: str
    change: str
    weights: tuple[float, ...]


def contrasts(schema: Schema) -> list[Contrast]:
    """The effects of all columns, in the schema's order."""
    width = len(feature_names(schema))
    start = 0
    effects = []
    for name, column in schema.features.items():
        size = len(names_of(name, column))
        for change, own in _of_column(name, column):
            weights = [0.0] * width
            for place, weight in own.items():
                weights[start + place] = weight
            effects.append(Contrast(name, change, tuple(weights)))
        start += size
    return effects


def _of_column(name: str, column: Column) -> Iterator[tuple[str, dict[int, float]]]:
    """The changes of a column, as place among its features -> difference."""
    last = len(names_of(name, column)) - 1
    if column.type == "yes/no":
        yield "yes against no", {0: 2.0}
        if column.indicator:
            yield "missing against no", {0: 1.0, last: 1.0}
    elif column.type == "category":
        values = [*column.values, *(["other"] if column.unknown == "other" else [])]
        yield from _against_first(values, last if column.indicator else None)
    elif column.encoding == "bins":
        edges = [column.range[0], *column.knots, column.range[1]]
        values = [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
        fits = column.indicator and column.fill is None
        yield from _against_first(values, last if fits else None)
        if column.indicator and column.fill is not None:
            yield f"missing against {column.fill:g}", {last: 1.0}
    else:
        yield from _slopes(column)
        if column.indicator:
            low, high = column.range
            fill = (low + high) / 2 if column.fill is None else column.fill
            yield f"missing against {fill:g}", {last: 1.0}


def _against_first(
    values: list[str], missing: int | None
) -> Iterator[tuple[str, dict[int, float]]]:
    for place, value in enumerate(values[1:], 1):
        yield f"{value} against {values[0]}", {place: 1.0, 0: -1.0}
    if missing is not None:
        yield f"missing against {values[0]}", {missing: 1.0, 0: -1.0}


def _slopes(column: Column) -> Iterator[tuple[str, dict[int, float]]]:
    low, high = column.range
    step = 10.0 ** math.floor(math.log10((high - low) / 4))
    unit = column.unit or ("years" if column.type == "date" else "")
    per = f"{step:g} {unit} more".replace("  ", " ")
    weights = {0: 2 * step / (high - low)}
    if column.encoding != "hinges" or not column.knots:
        yield per, weights
        return
    yield f"{per}, below {column.knots[0]:g}", dict(weights)
    for place, (knot, end) in enumerate(pairwise([*column.knots, high]), 1):
        weights[place] = step / (high - knot)
        yield f"{per}, {knot:g} to {end:g}", dict(weights)
