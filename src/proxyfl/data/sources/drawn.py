r"""Made-up tables of a schema, for a rehearsal before anybody opens a record.

A patient's columns are drawn within what the schema allows: numbers around the middle of their
range, categories alike often, one answer of three a yes, one value of twenty missing where a
feature says so. Their outcome follows from a score of the columns, in which few columns count much:

    classes          P(y = 1 | x) = sigmoid(b + s z(x)), with the AUROC and the share of cases asked
                     for; of more than two classes and of several findings each has a score
    a value          half of its variance follows from the score
    a time           exponential, with the C-index asked for; half have the event by the horizon

Guarantees:
    * the tables depend on the schema, the sizes, the options and the seed alone: no record is read;
    * the schema finds no fault in them;
    * all sites are alike, so that what a rehearsal shows is the effect of noise and sizes alone.
"""

import csv
import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from proxyfl.data.sources.synthetic import calibrate
from proxyfl.data.tables.schema import DAYS, Column, Schema, is_date
from proxyfl.tasks import MULTILABEL, REGRESSION, TIME_TO_EVENT

Array = npt.NDArray[np.float64]

MISSING = 0.05
YES = 0.3
"""The share of each yes/no column, and of findings without a known prevalence."""

COMMON = 0.3
"""How much the columns have in common."""

_REFERENCE = 20_000
_LAST_DAY = datetime.date(2020, 12, 31)


@dataclass(frozen=True)
class Rehearsed:
    """The files of a made-up federation: one for each site, and its test part."""

    train: tuple[Path, ...]
    test: tuple[Path, ...]


def draw_tables(
    schema: Schema, folder: Path, sizes: Sequence[int], *, tests: int, signal: float, seed: int
) -> Rehearsed:
    """Write a table for each of ``sizes``, and one of ``tests`` patients as its test part."""
    population = _Population(schema, signal, seed)
    names = [f"site-{number}.csv" for number in range(1, len(sizes) + 1)]
    parts: dict[str, list[Path]] = {"train": [], "test": []}
    for part, paths in parts.items():
        (folder / part).mkdir(parents=True)
        for number, (name, size) in enumerate(zip(names, sizes, strict=True)):
            count = size if part == "train" else tests
            stream = (2, number, int(part == "test"))
            path = folder / part / name
            _write(path, population.table(count, stream, f"{part}-{number}"))
            paths.append(path)
    return Rehearsed(tuple(parts["train"]), tuple(parts["test"]))


def _write(path: Path, table: dict[str, list[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))


class _Population:
    """Scores of the columns, from which the outcomes of all patients follow."""

    def __init__(self, schema: Schema, signal: float, seed: int) -> None:
        self._schema = schema
        self._seed = seed
        nature = self._stream(0)
        self._effects = {
            name: nature.standard_normal(len(column.values))
            for name, column in schema.features.items()
            if column.type == "category"
        }
        self._weights = [self._draw_weights(nature) for _ in range(self._scores)]
        _, values = self._columns(_REFERENCE, self._stream(1))
        reference = [values @ weights for weights in self._weights]
        self._scale = [(float(z.mean()), float(z.std()) or 1.0) for z in reference]
        standard = [self._standard(z, place) for place, z in enumerate(reference)]
        self._slopes = [
            self._slope(z, signal, share) for z, share in zip(standard, self._shares, strict=True)
        ]

    @property
    def _scores(self) -> int:
        """The number of scores that the outcome follows from."""
        label = self._schema.label
        if label.task == MULTILABEL:
            return len(label.findings)
        return len(label.classes) if len(label.classes) > 2 else 1

    @property
    def _shares(self) -> Sequence[float]:
        """The share of cases by each score."""
        label = self._schema.label
        if label.task == MULTILABEL:
            return [YES] * self._scores
        if len(label.classes) > 2:
            return [1 / len(label.classes)] * self._scores
        return [label.prevalence[1] if label.prevalence else 1 / 2]

    def _draw_weights(self, nature: np.random.Generator) -> Array:
        width = len(self._schema.features)
        strength = 1 / np.sqrt(1 + nature.permutation(width))
        weights: Array = strength * nature.choice([-1.0, 1.0], size=width)
        return weights

    def _standard(self, z: Array, place: int) -> Array:
        mean, scale = self._scale[place]
        return (z - mean) / scale

    def _slope(self, z: Array, signal: float, share: float) -> tuple[float, float]:
        if self._schema.label.task != TIME_TO_EVENT:
            return calibrate(z, signal, share)
        apart = np.abs(z[::2] - z[1::2])
        low, high = 0.0, 20.0
        for _ in range(60):
            middle = (low + high) / 2
            concordance = float((1 / (1 + np.exp(-middle * apart))).mean())
            low, high = (middle, high) if concordance < signal else (low, middle)
        return (low + high) / 2, 0.0

    def table(self, count: int, stream: tuple[int, ...], prefix: str) -> dict[str, list[str]]:
        """Column -> the texts of ``count`` patients."""
        draw = self._stream(*stream)
        texts, values = self._columns(count, draw)
        scores = [
            self._standard(values @ weights, place) for place, weights in enumerate(self._weights)
        ]
        texts |= self._outcomes(scores, draw)
        if self._schema.person is not None:
            texts[self._schema.person] = [f"{prefix}-{number}" for number in range(count)]
        if self._schema.site is not None:
            texts[self._schema.site] = [f"site-{stream[1] + 1}"] * count
        return texts

    def _columns(self, count: int, draw: np.random.Generator) -> tuple[dict[str, list[str]], Array]:
        """The texts of all columns, and a number with mean 0 and variance near 1 for each
        feature."""
        from scipy import special

        schema = self._schema
        common = draw.standard_normal(count)
        texts: dict[str, list[str]] = {}
        ends: dict[str, list[datetime.date]] = {}
        for name, column in schema.columns.items():
            if column.type == "date" and column.until is None:
                days = draw.integers(0, 365, size=count)
                ends[name] = [_LAST_DAY - datetime.timedelta(int(day)) for day in days]
                texts[name] = [day.strftime(column.formats[0]) for day in ends[name]]
            elif not column.is_feature:
                texts[name] = [""] * count
        values = []
        for name, column in schema.features.items():
            own = draw.standard_normal(count)
            latent = COMMON * common + math.sqrt(1 - COMMON**2) * own
            quantile = special.ndtr(latent)
            value: Array
            if column.type == "category":
                places = (quantile * len(column.values)).astype(int)
                shown = [column.values[place] for place in places.tolist()]
                value = self._effects[name][places]
            elif column.type == "yes/no":
                is_yes = quantile < YES
                shown = ["yes" if answer else "no" for answer in is_yes.tolist()]
                value = (is_yes - YES) / math.sqrt(YES * (1 - YES))
            else:
                low, high = column.range
                value = np.clip(latent, -3, 3)
                numbers = (low + high) / 2 + value * (high - low) / 6
                shown = _shown(column, numbers, ends)
            if column.indicator:
                gone = draw.random(count) < MISSING
                value = np.where(gone, 0.0, value)
                shown = ["" if away else text for away, text in zip(gone, shown, strict=True)]
            texts[name] = shown
            values.append(value)
        return texts, np.stack(values, axis=1)

    def _outcomes(self, scores: Sequence[Array], draw: np.random.Generator) -> dict[str, list[str]]:
        label = self._schema.label
        count = len(scores[0])
        if label.task == REGRESSION:
            low, high = label.range
            noisy = (scores[0] + draw.standard_normal(count)) / math.sqrt(2)
            value = np.clip((low + high) / 2 + noisy * (high - low) / 6, low, high)
            return {label.column: [f"{one:.6g}" for one in value]}
        if label.task == TIME_TO_EVENT:
            horizon = label.intervals[-1]
            rate = math.log(2) / horizon * np.exp(self._slopes[0][0] * scores[0])
            event = draw.exponential(1 / rate)
            end = horizon * draw.uniform(0.5, 1.5, size=count)
            most = label.possible[1] if label.possible else math.inf
            end = np.minimum(end, most)
            return {
                label.column: [f"{one:.6g}" for one in np.minimum(event, end)],
                label.event: ["yes" if first else "no" for first in (event <= end).tolist()],
            }
        logits = [
            intercept + slope * z
            for (slope, intercept), z in zip(self._slopes, scores, strict=True)
        ]
        if label.task == MULTILABEL:
            answers = {}
            for name, one in zip(label.findings, logits, strict=True):
                has = draw.random(count) < 1 / (1 + np.exp(-one))
                answers[name] = ["yes" if answer else "no" for answer in has.tolist()]
            return answers
        if len(logits) == 1:
            places = (draw.random(count) < 1 / (1 + np.exp(-logits[0]))).astype(int)
        else:
            places = np.argmax(np.stack(logits) + draw.gumbel(size=(len(logits), count)), axis=0)
        return {label.column: [label.classes[place] for place in places.tolist()]}

    def _stream(self, *numbers: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, *numbers])


def _shown(column: Column, numbers: Array, ends: dict[str, list[datetime.date]]) -> list[str]:
    """Numbers as a file has them, or dates so long before the end of their interval."""
    if column.type == "number":
        return [f"{one:.6g}" for one in numbers]
    until = column.until or ""
    fixed = datetime.date.fromisoformat(until) if is_date(until) else None
    last = ends[until] if fixed is None else [fixed] * len(numbers)
    days = numbers * DAYS[column.unit or "years"]
    dates = [end - datetime.timedelta(round(day)) for end, day in zip(last, days, strict=True)]
    return [day.strftime(column.formats[0]) for day in dates]
