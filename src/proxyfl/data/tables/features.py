"""From a measured value to features: scaled, in bins or with hinges, and what cannot be."""

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from proxyfl._validate import suggestion
from proxyfl.data.tables.schema import Column, Schema
from proxyfl.errors import ConfigError

Floats = npt.NDArray[np.float64]
Features = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

SLIPS = (100.0, 1000.0)
"""Factors by which a value in a wrong unit is off: metres for centimetres, grams for kilograms."""


def feature_names(schema: Schema) -> tuple[str, ...]:
    """The features' names, in order."""
    names: list[str] = []
    for name, column in schema.features.items():
        names += names_of(name, column)
    return tuple(names)


def published_score(schema: Schema) -> tuple[float, ...]:
    """The coefficient of each feature and the intercept of the schema's published score, in the log
    odds of the second class; empty if it has none. ConfigError if it does not fit the columns.

    Published coefficients are per unit of a column, features run from -1 to 1:

        coefficient x = coefficient (high - low) / 2 feature + coefficient (high + low) / 2
    """
    start = schema.start
    if start is None:
        return ()
    if len(schema.label.classes) != 2:
        classes = len(schema.label.classes) or f"the task {schema.label.task}"
        raise ConfigError(
            f"A published score needs two classes, and {schema.name!r} has {classes}. Remove "
            "[start] from the schema."
        )
    names = feature_names(schema)
    weights = dict.fromkeys(names, 0.0)
    intercept = start.intercept
    for name, coefficient in start.coefficients.items():
        column = schema.features.get(name)
        if column is not None and column.type == "yes/no":
            # the feature is -1 or 1
            weights[name] += coefficient / 2
            intercept += coefficient / 2
        elif column is not None and column.is_measured and column.encoding != "bins":
            low, high = column.range
            weights[name] += coefficient * (high - low) / 2
            intercept += coefficient * (high + low) / 2
        elif name in weights and column is None:
            weights[name] += coefficient * _ramp(schema, name)
        else:
            raise ConfigError(
                f"start.coefficients: {name!r} is not a number, a yes/no or a feature of the "
                "schema."
                f"{suggestion(name, names)} Its features: {', '.join(names)}."
            )
    return (*weights.values(), intercept)


def _ramp(schema: Schema, feature: str) -> float:
    """How far a hinge runs, by which its feature is divided; 1 for a feature of 0 and 1."""
    for name, column in schema.features.items():
        if column.encoding == "hinges":
            for knot in column.knots:
                if feature == f"{name} above {knot:g}":
                    return column.range[1] - knot
    return 1.0


def possible(values: Floats, column: Column) -> Mask:
    """The values that can be: those within ``limits`` that are no slip of units."""
    least, most = limits(column)
    mask: Mask = (values >= least) & (values <= most)
    if column.possible:
        return mask
    low, high = column.range
    for factor in SLIPS:
        if high < factor * low:  # else the two units cannot be told apart
            larger = values * factor
            would_fit = (larger >= low) & (larger <= high)
            mask &= ~((values < low) & would_fit)
    return mask


def limits(column: Column) -> tuple[float, float]:
    """The values that can be: ``possible``, or the range widened by half its width.

    Where the range has no negative number, none can be: -9 is a code and no measurement."""
    if column.possible:
        return column.possible[0], column.possible[1]
    low, high = column.range
    margin = (high - low) / 2
    least = low - margin
    if low >= 0:
        least = max(least, 0.0)
    return least, high + margin


def advice(values: Floats, impossible: Mask, column: Column) -> str:
    """By which factor the first impossible value is off, if that explains it."""
    if not impossible.any():
        return ""
    value = values[impossible][0]
    low, high = column.range
    for factor in SLIPS:
        if low <= value * factor <= high:
            return f" (times {factor:g} it would fit: another unit?)"
        if low <= value / factor <= high:
            return f" (divided by {factor:g} it would fit: another unit?)"
    return ""


def spread(values: Floats, column: Column) -> Features:
    """A measured column's features; ``values`` lie in the range or are NaN."""
    low, high = column.range
    missing = np.isnan(values)
    middle = (low + high) / 2
    fill = middle if column.fill is None else column.fill
    filled = np.where(missing, fill, values)
    if column.encoding == "bins":
        bins = np.searchsorted(column.knots, filled, side="right")
        hot = bins[:, None] == np.arange(len(column.knots) + 1)
        if column.fill is None:
            hot[missing] = False
        return with_indicator(hot, missing, column)
    parts = [2 * (filled - low) / (high - low) - 1]
    for knot in column.knots:
        parts.append(np.maximum(filled - knot, 0) / (high - knot))
    return with_indicator(np.stack(parts, axis=1), missing, column)


def with_indicator(block: npt.NDArray[Any], missing: Mask, column: Column) -> Features:
    """``block`` as features, and whether the value is missing, if the column says so."""
    parts = [block.astype(np.float32)]
    if column.indicator:
        parts.append(missing[:, None].astype(np.float32))
    return np.concatenate(parts, axis=1)


def names_of(name: str, column: Column) -> list[str]:
    """Returns the names of a column's features, in order."""
    names = [name]
    if column.type == "category":
        names = [f"{name} = {value}" for value in column.values]
        if column.unknown == "other":
            names.append(f"{name} = other")
    elif column.encoding == "bins":
        edges = [column.range[0], *column.knots, column.range[1]]
        ends = itertools.pairwise(edges)
        names = [f"{name} {low:g} to {high:g}" for low, high in ends]
    elif column.encoding == "hinges":
        names += [f"{name} above {knot:g}" for knot in column.knots]
    if column.indicator:
        names.append(f"{name} missing")
    return names
