"""The tables and figures of docs/medical.md: the paper's medical applications, as far as they were
run, from the recorded studies alone.

``alone`` is the paper's plain one: the private model on a site's own records, for the same rounds.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib import pyplot as plt

from benchmarks.communication.plots import save
from proxyfl.privacy.accounting import Segment, pld_of
from proxyfl.privacy.guarantee import shown
from proxyfl.privacy.statements.persons import person_epsilon
from proxyfl.sweeps.statistics import spread
from reproduction.catalogue import HOME, IMAGES, RESULTS
from reproduction.figures import HEIGHT, WIDTH, curves, legend_below
from reproduction.page import core_hours, evidence, filled, markdown, plus_minus
from reproduction.records import Record, Scores
from reproduction.series import (
    ALONE,
    FEDAVG,
    FML,
    FML_PROXY,
    MODELS,
    PROXYFL,
    Model,
    Results,
)
from reproduction.statements import Row, Statement, difference, higher, lower

PAGE = HOME / "docs" / "medical.md"
FIGURE = "medical"
THE_PAPERS = "kvasir"
"""The study that the paper's statements are about; comparisons in others are shown and do not
count."""
SHARE = 0.5
"""A model learns little if it gains less than this part of what ProxyFL's private models gain over
chance."""


@dataclass(frozen=True)
class Site:
    """A site of BreaKHis as ``breakhis_sites.py`` makes it, seed 0: what it trains on."""

    name: str
    images: int
    patients: int
    most_of_one: int


SITES = (
    Site("site-0", 304, 14, 56),
    Site("site-1", 349, 17, 35),
    Site("site-2", 369, 18, 33),
    Site("site-3", 315, 16, 35),
)
BATCH, NOISE, EPOCHS, DELTA = 32, 1.4, 30, 1e-5
"""The paper's for histopathology; a test compares them with the experiment's file."""


def write() -> None:
    """Make the page's tables anew."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(filled(text, Results(RESULTS), TABLES), encoding="utf-8")


def recorded(results: Results) -> dict[str, Record]:
    """The studies of which there is a record."""
    return {
        name: results.record(study.name)
        for name, study in IMAGES.items()
        if results.has(study.name)
    }


def overview(results: Results) -> str:
    """How far each study was run."""
    found = recorded(results)
    rows = []
    for name, study in IMAGES.items():
        link = f"[{name}](../experiments/images/{name}.toml)"
        if name not in found:
            rows.append([link, study.title, study.place, "not run", "", ""])
            continue
        record = found[name]
        done = {group.rounds[-1] for group in record.groups}
        seeds = {len(group.seeds) for group in record.groups}
        rows.append(
            [
                link,
                study.title,
                study.place,
                f"{_range(done)} of {record.rounds}",
                f"{_range(seeds)} of {len(record.seeds)}",
                f"{core_hours(record):.2f}",
            ]
        )
    heads = ["experiment", "data", "in the paper", "rounds", "seeds", "core-hours"]
    return markdown(heads, rows)


def accuracies(results: Results) -> str:
    """Accuracy, macro-accuracy and epsilon of every model in every recorded study."""
    rows = []
    for name, record in recorded(results).items():
        for model in MODELS:
            groups = [
                group
                for group in record.groups
                if (group.method, group.role) == (model.method, model.role)
            ]
            for group in groups:
                last = record.last_round
                macro = spread(group.at(last, "macro_accuracy").values()).mean
                spent = group.epsilon_at(last)
                cost = (
                    "none" if spent is None else f"{shown(spent, 1)} {group.kind}"
                )
                scored = plus_minus(group.at(last))
                cells = [name, model.name, f"{last}", scored, f"{macro:.3f}", cost]
                rows.append(cells)
    heads = ["study", "model", "rounds", "accuracy", "macro-accuracy", "epsilon"]
    return markdown(heads, rows)


def privacy(_results: Results) -> str:
    """What thirty epochs of the histopathology setting cost one image, and one patient."""
    rows = []
    for site in SITES:
        steps = EPOCHS * (site.images // BATCH)
        segment = Segment(BATCH / site.images, NOISE, steps)
        image = pld_of([segment], DELTA)
        patient = person_epsilon(segment, site.most_of_one, DELTA)
        rows.append(
            [
                site.name,
                f"{site.images}",
                f"{site.patients}",
                f"{site.most_of_one}",
                f"{shown(image, 2)} conditional",
                f"{shown(patient, 0)} conditional",
            ]
        )
    heads = [
        "site",
        "training images",
        "patients",
        "most of one patient",
        "epsilon per image",
        "epsilon per patient",
    ]
    return markdown(heads, rows)


def little(results: Results) -> Statement:
    """Whether a hub's models learn little."""
    rows: list[Row] = []
    for name, record in recorded(results).items():
        if not name.startswith("kvasir"):
            continue
        chance = 1 / _classes(record)
        ours = _last(record, PROXYFL)
        half = {key: SHARE * (score - chance) for key, score in ours.items()}
        for model in (FEDAVG, FML_PROXY):
            if not ours or not _last(record, model):
                continue
            gained = {k: s - chance for k, s in _last(record, model).items()}
            against = f"half of ProxyFL private, by {model.name}"
            counts = name == THE_PAPERS
            rows.append(
                difference(name, against, gained, half, lower, counts=counts)
            )
    return Statement(
        "little",
        "Centralized schemes learn little under DP",
        "gains less than half of what ProxyFL's private models gain over chance",
        rows,
    )


def above_fml(results: Results) -> Statement:
    """Whether ProxyFL's private models are above FML's, and above ``alone``; the claim is about FML
    on Kvasir."""
    rows: list[Row] = []
    for name, record in recorded(results).items():
        for model in (FML, ALONE):
            ours, theirs = _last(record, PROXYFL), _last(record, model)
            if ours and theirs:
                rows.append(
                    difference(
                        name,
                        model.name,
                        ours,
                        theirs,
                        higher,
                        counts=name == THE_PAPERS and model is FML,
                    )
                )
    return Statement(
        "fml",
        "ProxyFL's private models are above FML's",
        "higher mean",
        rows,
    )


STATEMENTS = (little, above_fml)


def verdicts(results: Results) -> str:
    """Each statement and what was found."""
    found = [statement(results) for statement in STATEMENTS]
    rows = [[s.claim, f"{s.count} comparisons", f"**{s.verdict}**"] for s in found]
    return markdown(["the paper says", "met by", "verdict"], rows)


TABLES: Mapping[str, Callable[[Results], str]] = {
    "overview": overview,
    "verdicts": verdicts,
    "accuracies": accuracies,
    "privacy": privacy,
    "statement-little": lambda results: evidence(little(results)),
    "statement-fml": lambda results: evidence(above_fml(results)),
}


def draw(results: Path, to: Path) -> Iterator[Path]:
    """Accuracy over rounds, a panel for each recorded study whose settings do not vary."""
    found = {
        name: record
        for name, record in recorded(Results(results)).items()
        if not any(group.settings for group in record.groups)
    }
    if not found:
        return
    figure, axes = plt.subplots(
        1,
        len(found),
        figsize=(1.1 * WIDTH * max(2, len(found)), HEIGHT + 0.9),
        squeeze=False,
    )
    for axis, (name, record) in zip(axes[0], found.items(), strict=True):
        curves(axis, record, "accuracy")
        axis.set_title(IMAGES[name].title)
    axes[0, 0].set_ylabel("test accuracy")
    legend_below(figure, axes[0], room=0.24)
    yield save(figure, to / FIGURE)


def _last(record: Record, model: Model) -> Scores:
    """The model's scores at the last round that all have; of the first setting where one varies."""
    for group in record.groups:
        if (group.method, group.role) == (model.method, model.role):
            return group.at(record.last_round)
    return {}


def _classes(record: Record) -> int:
    """The classes of the study's data."""
    return {"kvasir.store": 8, "kvasir-features.store": 8}[
        str(record.base["data.source"])
    ]


def _range(values: set[int]) -> str:
    least, most = min(values), max(values)
    return str(most) if least == most else f"{least} to {most}"
