"""The figures of docs/research/joining.md."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib import pyplot as plt
from matplotlib.lines import Line2D

from benchmarks.communication.plots import save
from proxyfl.privacy.worth import worth
from proxyfl.records.answers import spread
from proxyfl.records.palette import COLOURS
from reproduction.joining import ENOUGH, EPSILONS, Study, mean_of, seed_interval, studies
from reproduction.series import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(results: Path, to: Path) -> Iterator[Path]:
    """The figures of the page."""
    found = studies(Results(results))
    if not found:
        return
    height = 1.5 + 0.55 * len(found)
    figure, axes = plt.subplots(figsize=(8.5, height), layout="constrained")
    _gains(axes, found)
    yield save(figure, to / "joining.png")
    figure, axes = plt.subplots(figsize=(6.4, 5.6), layout="constrained")
    _predicted(axes, found)
    yield save(figure, to / "joining-predicted.png")


def _gains(axes: "Axes", found: Sequence[Study]) -> None:
    """From alone to pooled on a line each, and how far joining comes."""
    for place, study in enumerate(reversed(found)):
        alone = mean_of(study.alone)
        pooled = spread(study.pooled.values()).mean
        axes.plot([alone, pooled], [place, place], color="0.8", linewidth=5, zorder=1)
        axes.plot(alone, place, "o", color=COLOURS["alone"], markersize=8, zorder=3)
        axes.plot(pooled, place, "D", color=COLOURS["pooled"], markersize=7, zorder=3)
        for epsilon, marker in zip(EPSILONS, ("v", "^"), strict=True):
            joined = mean_of(study.joined(epsilon))
            low, high = 0.0, 0.0
            if len(study.record.seeds) >= ENOUGH:
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
        Line2D([], [], marker="v", color=COLOURS["proxyfl"], linestyle="", markerfacecolor="white"),
        Line2D([], [], marker="^", color=COLOURS["proxyfl"], linestyle=""),
        Line2D([], [], marker="D", color=COLOURS["pooled"], linestyle=""),
    ]
    names = ["alone", "joined, epsilon 1", "joined, epsilon 3", "pooled, no privacy"]
    axes.figure.legend(handles, names, loc="outside upper center", ncols=4, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _predicted(axes: "Axes", found: Sequence[Study]) -> None:
    """Expected gain against measured gain, in points, on logarithmic axes. A line joins a study's
    points; the larger epsilon's has the name."""
    for study in found:
        ends: list[tuple[float, float]] = []
        for epsilon in EPSILONS:
            expected = worth(study.facts(epsilon)).gain
            measured = 100 * mean_of(study.gains(epsilon))
            axes.plot(
                expected,
                measured,
                "v" if epsilon == 1 else "^",
                color=COLOURS["proxyfl"],
                markerfacecolor="white" if epsilon == 1 else COLOURS["proxyfl"],
                label=f"epsilon {epsilon}" if study is found[0] else None,
            )
            ends.append((expected, measured))
        axes.plot(*zip(*ends, strict=True), color=COLOURS["proxyfl"], linewidth=0.7)
        axes.annotate(study.name, ends[-1], textcoords="offset points", xytext=(6, -8), fontsize=7)
    axes.legend(frameon=False, loc="upper left")
    limits = (1.0, 80.0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.plot(limits, limits, color="0.7", zorder=0)
    for factor in (0.5, 2.0):
        twice = [factor * limit for limit in limits]
        axes.plot(limits, twice, color="0.85", linestyle=":", zorder=0)
    axes.set_xlim(limits)
    axes.set_ylim(limits)
    ticks = (1, 2, 5, 10, 20, 50)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlabel("expected gain (proxyfl worth), points of AUROC")
    axes.set_ylabel("measured gain, points of AUROC")
