"""The look of a method in every chart: colours that readers with any colour vision tell apart, on
light and on dark ground, and a shape that says the same again.

The methods' colours were searched so that any two are at least 21 apart (CIE76) for normal, protan,
deutan and tritan vision. The named colours are Okabe and Ito's, for figures of something else."""

from collections.abc import Iterable

BLACK = "#000000"
GREY = "#999999"
BLUE = "#0072B2"
SKY = "#56B4E9"
GREEN = "#009E73"
ORANGE = "#E69F00"
VERMILION = "#D55E00"
PURPLE = "#CC79A7"

COLOURS = {
    "alone": "#14181D",
    "proxyfl": "#0A62A9",
    "proxysum": "#B03A86",
    "fml": "#8333FA",
    "avgpush": "#2E4C0B",
    "fedavg": "#4B9BC3",
    "cwt": "#C34B4B",
    "regular": "#8F8714",
    "joint": "#6B7580",
    "pooled": "#6B7580",
}
"""On light ground. Vermilion is not among them: it means a loss."""

DARK = {
    "alone": "#E9EDF2",
    "proxyfl": "#6FB7F5",
    "proxysum": "#F08CC8",
    "fml": "#9E60FB",
    "avgpush": "#A3E755",
    "fedavg": "#3883A8",
    "cwt": "#FC7E7E",
    "regular": "#918B30",
    "joint": "#98A3AF",
    "pooled": "#98A3AF",
}
"""The same methods on dark ground: 3 to 1 or more against it, like the others against theirs."""

SYMBOLS = {
    "alone": "circle",
    "proxyfl": "star",
    "proxysum": "hexagon",
    "fml": "triangle-down",
    "avgpush": "cross",
    "fedavg": "triangle-up",
    "cwt": "x",
    "regular": "square",
    "joint": "diamond",
    "pooled": "diamond-open",
}
"""By the names of ``report/page/plot.js``."""

SPARE = (
    ("#8C6D00", "#D6B53A", "pentagon"),
    ("#6A3D9A", "#B794E8", "square"),
    ("#1B7F79", "#4FC7BE", "hourglass"),
    ("#A0522D", "#E2946B", "bowtie"),
)
"""For methods that are not in the table, in the order in which they appear."""

DASHES = {"private": "solid", "proxy": "dash", "received": "dot"}
"""The dash of a line, by the model that it is about."""


def looks(methods: Iterable[str]) -> dict[str, tuple[str, str, str]]:
    """Method -> (colour on light ground, on dark ground, symbol), the known ones first and in the
    palette's order."""
    names = list(dict.fromkeys(methods))
    looks_of = {}
    for name in COLOURS:
        if name in names:
            looks_of[name] = (COLOURS[name], DARK[name], SYMBOLS[name])
    others = [name for name in names if name not in COLOURS]
    for number, name in enumerate(others):
        looks_of[name] = SPARE[number % len(SPARE)]
    return looks_of
