"""The look of a method in every chart: Okabe and Ito's colours, which readers with any colour
vision tell apart, and a shape that says the same again."""

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
    "alone": BLACK,
    "proxyfl": VERMILION,
    "fml": ORANGE,
    "avgpush": GREEN,
    "fedavg": SKY,
    "cwt": PURPLE,
    "regular": BLUE,
    "joint": GREY,
    "pooled": "#5C5C5C",
}

SYMBOLS = {
    "alone": "circle",
    "proxyfl": "star",
    "fml": "triangle-down",
    "avgpush": "cross",
    "fedavg": "triangle-up",
    "cwt": "x",
    "regular": "square",
    "joint": "diamond",
    "pooled": "diamond-open",
}
"""By plotly's names."""

SPARE = (
    ("#8C6D00", "pentagon"),
    ("#6A3D9A", "hexagon"),
    ("#1B7F79", "hourglass"),
    ("#A0522D", "bowtie"),
)
"""For methods that are not in the table, in the order in which they appear."""

DASHES = {"private": "solid", "proxy": "dash", "received": "dot"}
"""The dash of a line, by the model that it is about."""


def looks(methods: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Method -> (colour, symbol), the known ones first and in the palette's order."""
    names = list(dict.fromkeys(methods))
    found = {}
    for name in COLOURS:
        if name in names:
            found[name] = (COLOURS[name], SYMBOLS[name])
    others = [name for name in names if name not in COLOURS]
    for number, name in enumerate(others):
        found[name] = SPARE[number % len(SPARE)]
    return found
