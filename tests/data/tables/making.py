"""A small hospital table in the layout that sites have, made for the tests."""

import random

from proxyfl.data.tables import schema

TREE = {
    "name": "clinic",
    "person": "patient",
    "label": {"column": "died", "classes": ["no", "yes"], "written": [["0"], ["1"]]},
    "columns": {
        "age": {"type": "number", "unit": "years", "range": [18, 100]},
        "height": {"type": "number", "unit": "cm", "range": [120, 220]},
        "stage": {"type": "category", "values": ["I", "II", "III"]},
        "smoker": {"type": "yes/no"},
        "born": {
            "type": "date",
            "formats": ["%Y-%m-%d", "%d.%m.%Y"],
            "until": "2020-01-01",
            "range": [0, 120],
        },
    },
}
SCHEMA = schema.parse(TREE)
HEADER = ("patient", "age", "height", "stage", "smoker", "born", "died")


def row(generator: random.Random, number: int) -> list[str]:
    """One patient without a fault."""
    return [
        f"p{number}",
        str(generator.randint(18, 100)),
        f"{generator.uniform(140, 200):.1f}",
        generator.choice(["I", "II", "III"]),
        generator.choice(["yes", "no"]),
        f"19{generator.randint(20, 99)}-0{generator.randint(1, 9)}-15",
        generator.choice("01"),
    ]


def rows(count: int, seed: int = 0, first: int = 0) -> list[list[str]]:
    """Patients without a fault."""
    generator = random.Random(seed)
    return [row(generator, first + i) for i in range(count)]


def write(path, table, header=HEADER, separator=","):
    """Write a table as CSV and return its path."""
    lines = [separator.join(line) for line in [list(header), *table]]
    path.write_text("\n".join(lines) + "\n")
    return path
