"""From a schema and the sizes of the sites to the planner's facts, and from its settings to a
study that runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl._validate import suggestion
from proxyfl.cli.options import Document
from proxyfl.data.tables.features import feature_names
from proxyfl.data.tables.schema import Schema
from proxyfl.errors import DataError
from proxyfl.tasks import CLASSIFICATION, TIME_TO_EVENT

if TYPE_CHECKING:
    from proxyfl.privacy.worth import Facts, Settings

TRAINING = 0.8
"""The part of a site's patients that train; the others are the test part."""

HEADINGS = {
    "site": ("site", "hospital", "name", "institution"),
    "training": ("training", "train", "examples"),
    "patients": ("patients", "persons", "people", "records", "rows", "count", "n"),
    "cases": ("cases", "events", "positives"),
}
"""What a file of counts says -> how its column may be called, in small letters."""


@dataclass(frozen=True)
class Counts:
    """The content of a file of counts."""

    sizes: Mapping[str, int]
    """Site -> its training examples."""
    cases: float | None
    """The share of cases over all sites, where the file has them."""


def read_counts(path: Path) -> Counts:
    """The sizes of the sites in a file with a line for each: its name, its patients (of whom four
    fifths train) or its training examples, and perhaps its cases."""
    from proxyfl.data.tables.reading import read  # it imports PyTorch

    columns: dict[str, list[str]] = {}
    for part in read(path):
        for name, texts in part.columns.items():
            columns.setdefault(name, []).extend(texts)
    named = {}
    for meaning, words in HEADINGS.items():
        for name in columns:
            if name.strip().lower() in words:
                named[meaning] = name
    size = named.get("training") or named.get("patients")
    if size is None:
        raise DataError(
            f"{path}: expected a column patients (or training), one line for each site, got "
            f"{', '.join(columns)}.{suggestion('patients', columns)}"
        )
    counts = [_count(path, row, text) for row, text in enumerate(columns[size], start=2)]
    sites = columns.get(named.get("site", ""), [f"site-{i}" for i in range(1, len(counts) + 1)])
    cases = None
    if "cases" in named:
        texts = columns[named["cases"]]
        together = sum(_count(path, row, text, least=0) for row, text in enumerate(texts, start=2))
        cases = together / sum(counts)
        if not 0 < cases < 1:
            raise DataError(
                f"{path}: expected at least one case and more patients than cases, got {together} "
                f"cases of {sum(counts)}. Correct the column {named['cases']!r}."
            )
    share = 1.0 if "training" in named else TRAINING
    sizes = {site: max(1, round(share * n)) for site, n in zip(sites, counts, strict=True)}
    if len(sizes) < 2 or len(sizes) < len(counts):
        raise DataError(
            f"{path}: expected one line for each of two or more sites, got the sites "
            f"{', '.join(sites)}. Give each a name of its own."
        )
    return Counts(sizes, cases)


def _count(path: Path, row: int, text: str, *, least: int = 1) -> int:
    try:
        count = float(text)
    except ValueError:
        count = -1.0
    if not (count.is_integer() and count >= least):
        raise DataError(f"{path}, row {row}: expected a number of {least} or more, got {text!r}.")
    return int(count)


def parameters_of(schema: Schema) -> int:
    """The proxy's parameters as the planner counts them: a weight for each feature and a constant,
    for each class. Other tasks are planned like two classes."""
    return (len(feature_names(schema)) + 1) * classes_of(schema)


def classes_of(schema: Schema) -> int:
    """The classes, or the two as which another task is planned."""
    return len(schema.label.classes) if schema.label.task == CLASSIFICATION else 2


def prevalence_of(schema: Schema) -> float | None:
    """The published share of the rarest class, if the schema states it."""
    shares = schema.label.prevalence
    return min(shares) if shares else None


def study_tree(facts: "Facts", settings: "Settings", *, schema: Schema | None = None) -> Document:
    """The settings of a study: a simulation whose clients are sites."""
    exchange: Document = {"settle": "auto", "average": 0.5}
    method = "proxyfl"
    if facts.colluders is not None:
        method = "proxysum"
        exchange = {
            "settle": settings.settle,
            "average": 0.5,
            "colluders": facts.colluders,
            "quorum": facts.clients,
        }
    rounds = settings.rounds + settings.settle
    is_time = schema is not None and schema.label.task == TIME_TO_EVENT
    privacy: Document = {
        "sampling_rate": 1.0,
        "delta": facts.delta,
        "noise_multiplier": settings.noise_multiplier,
    }
    if schema is not None and schema.person is not None:
        privacy["unit"] = "group"
    return {
        "methods": ["alone", method, "pooled"],
        "rounds": rounds,
        "evaluate_every": rounds,
        "checkpoint_every": rounds,
        "partition": {"kind": "site", "clients": facts.clients},
        "models": {"private": "logistic|trees", "proxy": "hazards" if is_time else "linear"},
        "learning": {"batch_size": settings.batch, "steps_per_round": 1},
        "proxy_optimizer": {
            "name": "sgd",
            "momentum": settings.momentum,
            "learning_rate": settings.learning_rate,
            "weight_decay": 0.0,
        },
        "privacy": privacy,
        "exchange": exchange,
    }


def average_of(sizes: Sequence[int]) -> int:
    """The training examples of a site of average size."""
    return max(2, round(sum(sizes) / len(sizes)))
