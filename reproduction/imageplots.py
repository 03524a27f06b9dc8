"""The figures of docs/research/medical.md: accuracy over rounds, and every model where
its study stands."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib import pyplot as plt

from benchmarks.communication.plots import save
from proxyfl.records.answers import spread
from reproduction.catalogue import IMAGES
from reproduction.figures import HEIGHT, STYLES, WIDTH, curves, legend_below
from reproduction.images import Part, parts
from reproduction.series import MODELS, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROUNDS = "medical"
LAST = "medical-last"
ACROSS = 3
LEGEND = 0.7
"""Inches of height that the legend takes."""
FEWEST = 3
"""Scored rounds below which a study has no curve."""


def draw(results: Path, to: Path) -> Iterator[Path]:
    """Both figures, as far as there are records."""
    found = parts(Results(results))
    long = [part for part in found if _is_curve(part)]
    if long:
        yield _over_rounds(long, to)
    if found:
        yield _where_they_stand(found, to)


def _is_curve(part: Part) -> bool:
    """Whether it was scored often enough, and under one setting."""
    scored = max(len(group.rounds) for group in part.groups)
    return scored >= FEWEST and not part.groups[0].settings


def _over_rounds(found: Sequence[Part], to: Path) -> Path:
    figure, panels = _panels(len(found), more=LEGEND)
    for axis, part in zip(panels, found, strict=True):
        curves(axis, part.record, "accuracy")
        axis.set_title(IMAGES[part.study].title)
        axis.set_ylabel("test accuracy")
    legend_below(figure, panels, room=LEGEND / figure.get_figheight() + 0.05)
    return save(figure, to / ROUNDS)


def _where_they_stand(found: Sequence[Part], to: Path) -> Path:
    figure, panels = _panels(len(found), sharey=True)
    for axis, part in zip(panels, found, strict=True):
        _dots(axis, part)
    figure.tight_layout()
    return save(figure, to / LAST)


def _panels(
    count: int, *, more: float = 0.0, sharey: bool = False
) -> tuple["Figure", list["Axes"]]:
    """A figure of so many panels, three across, with ``more`` inches of height for a legend."""
    across = min(ACROSS, count)
    down = -(-count // across)
    figure, axes = plt.subplots(
        down,
        across,
        figsize=(1.2 * WIDTH * max(2, across), HEIGHT * down + more),
        squeeze=False,
        sharey=sharey,
    )
    panels = list(axes.flat)
    for axis in panels[count:]:
        axis.set_visible(False)
    return figure, panels[:count]


def _dots(axis: "Axes", part: Part) -> None:
    """Each model's mean, and one standard deviation over clients to either side."""
    for row, model in enumerate(MODELS):
        scores = part.scores(model)
        if not scores:
            continue
        seen = spread(scores.values())
        style = STYLES[model]
        axis.errorbar(
            seen.mean,
            row,
            xerr=seen.std or 0.0,
            color=style["color"],
            marker=style["marker"] or "P",
            markerfacecolor=style.get("markerfacecolor", style["color"]),
            markersize=5,
        )
    axis.set_yticks(range(len(MODELS)), [model.name for model in MODELS])
    axis.set_ylim(len(MODELS) - 0.5, -0.5)
    axis.set_title(f"{part.name}\n{part.far}", fontsize=9)
    axis.set_xlabel("test accuracy")
    axis.grid(alpha=0.3)
