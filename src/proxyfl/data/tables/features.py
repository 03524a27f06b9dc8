"""From a measured value to features: scaled, in bins or with hinges, and what cannot be."""

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from proxyfl.data.tables.schema import Column, Schema

Floats = npt.NDArray[np.float64]
Features = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

SLIPS = (100.0, 1000.0)
"""Factors by which a value in a wrong unit is off: metres for centimetres, grams for kilograms."""


def feature_names(schema: Schema) -> tuple[str, ...]:
    """The features' names, in order."""
    names: list[str] = []
    for name, column in schema.features.items():
        names += _names(name, column)
    return tuple(names)


def possible(values: Floats, column: Column) -> Mask:
    """The values that can be: those within ``limits`` that are no slip of units."""
    least, most = limits(column)
    found: Mask = (values >= least) & (values <= most)
    if column.possible:
        return found
    low, high = column.range
    for factor in SLIPS:
        if high < factor * low:  # else the two units cannot be told apart
            larger = values * factor
            would_fit = (larger >= low) & (larger <= high)
            found &= ~((values < low) & would_fit)
    return found


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


def with_indicator(
    block: npt.NDArray[Any],
    missing: Mask,
    column: Column,
) -> Features:
    """``block`` as features, and whether the value is missing, if the column says so."""
    parts = [block.astype(np.float32)]
    if column.indicator:
        parts.append(missing[:, None].astype(np.float32))
    return np.concatenate(parts, axis=1)


def _names(name: str, column: Column) -> list[str]:
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
