"""The tables and figures of docs/joining.md: what joining is worth to true sites, from the recorded
studies alone.

Definitions:
    * ``alone`` is the best of the stated estimators on a site's own records, chosen by the site's
      own validation; ``pooled`` the same on everybody's records in one place, without privacy;
    * the **share** is (joined - alone) / (pooled - alone), of means over sites and seeds;
    * a site **loses** if what it keeps is more than a point below its ``alone``;
    * intervals are Student's, 95 %, over the seeds: each has its own split, noise and models.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib import pyplot as plt
from matplotlib.lines import Line2D

from benchmarks.communication.plots import save
from proxyfl.privacy.statements.worth import Facts, worth
from proxyfl.records.palette import COLOURS
from proxyfl.sweeps.statistics import spread
from reproduction.catalogue import HOME, JOINING, RESULTS
from reproduction.page import filled
from reproduction.records import Record, Scores
from reproduction.series import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE = HOME / "docs" / "joining.md"
EPSILONS = (1, 3)
GOALS = {1: 0.5, 3: 0.7}
"""The share that is aimed at, by epsilon."""
POINT = 0.01
# 97.5 % quantiles of Student's t, by degrees of freedom
_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}


@dataclass(frozen=True)
class Study:
    """One recorded federation, read in one measure."""

    name: str
    title: str
    record: Record
    measure: str = "auroc"

    @property
    def clients(self) -> int:
        """The number of sites."""
        return int(self.record.base["partition.clients"])

    @property
    def alone(self) -> Scores:
        """(seed, site) -> score of the site's own best model."""
        return self._scores("alone", "reference")

    @property
    def pooled(self) -> dict[int, float]:
        """Seed -> score of the model on everybody's records."""
        found = self._scores("pooled", "reference")
        return {seed: score for (seed, _), score in found.items()}

    def joined(self, epsilon: int) -> Scores:
        """(seed, site) -> score of what the site keeps."""
        return self._scores("proxyfl", f"epsilon-{epsilon}")

    def gains(self, epsilon: int) -> dict[tuple[int, int], float]:
        """(seed, site) -> joined minus alone."""
        alone = self.alone
        found = self.joined(epsilon)
        return {key: found[key] - alone[key] for key in found if key in alone}

    def share(self, epsilon: int) -> float:
        """The part of what pooling gives that joining recovers."""
        alone = _mean(self.alone)
        return (_mean(self.joined(epsilon)) - alone) / (
            spread(self.pooled.values()).mean - alone
        )

    def losers(self, epsilon: int) -> list[float]:
        """The gains of those who lose more than a point."""
        return sorted(g for g in self.gains(epsilon).values() if g < -POINT)

    def kept(self, epsilon: int) -> dict[str, int]:
        """What sites chose, and how often."""
        group = self.record.group(
            "proxyfl", "private", variant=f"epsilon-{epsilon}"
        )
        counts: dict[str, int] = {}
        for names in group.keeps:
            for name in names:
                kind = str(name).split(",")[0].split(" ")[0]
                counts[kind] = counts.get(kind, 0) + 1
        return counts

    def facts(self, epsilon: int) -> Facts:
        """What everybody may know of it."""
        base = self.record.base
        return Facts(
            self.clients,
            int(base["learning.batch_size"]),
            PARAMETERS[self.name],
            float(epsilon),
            float(base["privacy.delta"]),
        )

    def _scores(self, method: str, variant: str) -> Scores:
        group = self.record.group(method, "private", variant=variant)
        return group.at(max(group.rounds), self.measure)


PARAMETERS = {"heart": 50, "gusto": 64, "ist": 62, "impact": 32, "loans": 48}
"""The size of each study's proxy: two outputs on the schema's features. A test compares."""


def studies(results: Results, measure: str = "auroc") -> list[Study]:
    """The recorded studies."""
    found = []
    for name, experiment in JOINING.items():
        if results.has(experiment.name):
            record = results.record(experiment.name)
            found.append(Study(name, experiment.title, record, measure))
    return found


def write() -> None:
    """Make the page's tables anew."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(filled(text, Results(RESULTS), TABLES), encoding="utf-8")


def gains_table(results: Results) -> str:
    """Best alone, pooled, joined; the share; who loses."""
    lines = [
        "| federation | seeds | alone | pooled, no privacy | joined, epsilon 1 | joined, epsilon 3 "
        "| lose more than a point |",
        "|---|---|---|---|---|---|---|",
    ]
    for study in studies(results):
        cells = [
            study.title,
            f"{len(study.record.seeds)}",
            f"{_mean(study.alone):.3f}",
        ]
        cells.append(f"{spread(study.pooled.values()).mean:.3f}")
        for epsilon in EPSILONS:
            cells.append(
                f"{_mean(study.joined(epsilon)):.3f}: {_points(study.gains(epsilon))}, "
                f"{study.share(epsilon):.0%} of what pooling gives"
            )
        cells.append(" and ".join(_losing(study, epsilon) for epsilon in EPSILONS))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def goals_table(results: Results) -> str:
    """Where the goal is met and where it is missed."""
    lines = [
        "| federation | epsilon | share | goal | nobody loses a point |",
        "|---|---|---|---|---|",
    ]
    for study in studies(results):
        for epsilon in EPSILONS:
            share = study.share(epsilon)
            met = "met" if share >= GOALS[epsilon] else "**missed**"
            losers = study.losers(epsilon)
            nobody = "yes" if not losers else f"**no**: {_losing(study, epsilon)}"
            goal = f"{GOALS[epsilon]:.0%}, {met}"
            lines.append(
                f"| {study.title} | {epsilon} | {share:.0%} | {goal} | {nobody} |"
            )
    return "\n".join(lines)


def kept_table(results: Results) -> str:
    """What the sites chose at home."""
    kinds = ("alone", "proxy", "sum", "residual")
    lines = [
        f"| federation | epsilon | {' | '.join(kinds)} |",
        "|---|---|---|---|---|---|",
    ]
    for study in studies(results):
        for epsilon in EPSILONS:
            counts = study.kept(epsilon)
            cells = " | ".join(str(counts.get(kind, 0)) for kind in kinds)
            lines.append(f"| {study.title} | {epsilon} | {cells} |")
    return "\n".join(lines)


def accuracy_table(results: Results) -> str:
    """The four hospitals by accuracy, beside FLamby's published figure."""
    lines = ["| | accuracy on the merged test set |", "|---|---|"]
    heart = [s for s in studies(results, "accuracy") if s.name == "heart"]
    for study in heart:
        lines.append(f"| alone, mean of the four | {_mean(study.alone):.3f} |")
        for epsilon in EPSILONS:
            lines.append(
                f"| joined, epsilon {epsilon} | {_mean(study.joined(epsilon)):.3f} |"
            )
        pooled = spread(study.pooled.values()).mean
        lines.append(f"| pooled, no privacy | {pooled:.3f} |")
    lines.append("| FLamby: FedAvg, no privacy, its own split | 0.748 |")
    return "\n".join(lines)


def prediction_table(results: Results) -> str:
    """What ``proxyfl worth`` says beforehand, beside what was measured."""
    lines = [
        "| federation | epsilon | expected share | measured | expected gain | measured |",
        "|---|---|---|---|---|---|",
    ]
    for study in studies(results):
        for epsilon in EPSILONS:
            expected = worth(study.facts(epsilon))
            measured = 100 * _mean(study.gains(epsilon))
            lines.append(
                f"| {study.title} | {epsilon} | {expected.share:.0%} | {study.share(epsilon):.0%} "
                f"| {expected.gain:.1f} | {measured:.1f} |"
            )
    return "\n".join(lines)


TABLES = {
    "gains": gains_table,
    "goals": goals_table,
    "kept": kept_table,
    "accuracy": accuracy_table,
    "prediction": prediction_table,
}


def draw(results: Path, to: Path) -> Iterator[Path]:
    """The figures of the page."""
    found = studies(Results(results))
    if not found:
        return
    height = 1.5 + 0.55 * len(found)
    figure, axes = plt.subplots(figsize=(8.5, height), layout="constrained")
    _gains(axes, found)
    yield save(figure, to / "joining.png")
    figure, axes = plt.subplots(figsize=(4.8, 4.4), layout="constrained")
    _predicted(axes, found)
    yield save(figure, to / "joining-predicted.png")


def seed_interval(gains: Scores) -> tuple[float, float]:
    """The 95 % interval of the mean over seeds of each seed's mean."""
    by_seed: dict[int, list[float]] = {}
    for (seed, _), gain in gains.items():
        by_seed.setdefault(seed, []).append(gain)
    seen = spread(sum(values) / len(values) for values in by_seed.values())
    if seen.std is None:
        return seen.mean, seen.mean
    half = _T[seen.n - 1] * seen.std / math.sqrt(seen.n)
    return seen.mean - half, seen.mean + half


def _gains(axes: "Axes", found: Sequence[Study]) -> None:
    """From alone to pooled on a line each, and how far joining comes."""
    for place, study in enumerate(reversed(found)):
        alone = _mean(study.alone)
        pooled = spread(study.pooled.values()).mean
        axes.plot(
            [alone, pooled], [place, place], color="0.8", linewidth=5, zorder=1
        )
        axes.plot(alone, place, "o", color=COLOURS["alone"], markersize=8, zorder=3)
        axes.plot(
            pooled, place, "D", color=COLOURS["pooled"], markersize=7, zorder=3
        )
        for epsilon, marker in zip(EPSILONS, ("v", "^"), strict=True):
            joined = _mean(study.joined(epsilon))
            low, high = seed_interval(study.gains(epsilon))
            axes.errorbar(
                joined,
                place,
                xerr=[[(high - low) / 2], [(high - low) / 2]],
                fmt=marker,
                color=COLOURS["proxyfl"],
                markersize=9,
                capsize=3,
                markerfacecolor="white" if epsilon == 1 else COLOURS["proxyfl"],
                zorder=4,
            )
    axes.set_yticks(range(len(found)), [study.title for study in reversed(found)])
    axes.set_ylim(-0.6, len(found) - 0.4)
    axes.set_xlabel("AUROC on the merged test set, mean over sites and seeds")
    handles = [
        Line2D([], [], marker="o", color=COLOURS["alone"], linestyle=""),
        Line2D(
            [],
            [],
            marker="v",
            color=COLOURS["proxyfl"],
            linestyle="",
            markerfacecolor="white",
        ),
        Line2D([], [], marker="^", color=COLOURS["proxyfl"], linestyle=""),
        Line2D([], [], marker="D", color=COLOURS["pooled"], linestyle=""),
    ]
    names = [
        "alone",
        "joined, epsilon 1",
        "joined, epsilon 3",
        "pooled, no privacy",
    ]
    axes.figure.legend(
        handles, names, loc="outside upper center", ncols=4, frameon=False
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _predicted(axes: "Axes", found: Sequence[Study]) -> None:
    """Expected gain against measured gain, in points."""
    most = 1.0
    for study in found:
        for epsilon in EPSILONS:
            expected = worth(study.facts(epsilon)).gain
            measured = 100 * _mean(study.gains(epsilon))
            most = max(most, expected, measured)
            axes.plot(
                expected,
                measured,
                "v" if epsilon == 1 else "^",
                color=COLOURS["proxyfl"],
                markerfacecolor="white" if epsilon == 1 else COLOURS["proxyfl"],
            )
            axes.annotate(
                f"{study.name}, {epsilon}",
                (expected, measured),
                textcoords="offset points",
                xytext=(6, -3),
                fontsize=7,
            )
    axes.plot([0, most * 1.25], [0, most * 1.25], color="0.7", zorder=0)
    axes.set_xlim(0, most * 1.25)
    axes.set_ylim(0, most * 1.25)
    axes.set_xlabel("expected gain (proxyfl worth), points of AUROC")
    axes.set_ylabel("measured gain, points of AUROC")


def _points(gains: Scores) -> str:
    """The mean gain in points, with its interval where there are seeds enough for one."""
    low, high = seed_interval(gains)
    mean = f"{100 * _mean(gains):+.1f} points"
    if low == high:
        return f"{mean} (one seed)"
    return f"{mean} ({100 * low:+.1f} to {100 * high:+.1f})"


def _losing(study: Study, epsilon: int) -> str:
    losers = study.losers(epsilon)
    of = len(study.gains(epsilon))
    if not losers:
        return f"0 of {of}"
    return f"{len(losers)} of {of} (worst {100 * losers[0]:.1f})"


def _mean(scores: Scores) -> float:
    return spread(scores.values()).mean
