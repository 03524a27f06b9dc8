"""Made-up tables of a schema."""

from pathlib import Path

import numpy as np
import pytest

from proxyfl.data.sources.drawn import draw_tables
from proxyfl.data.tables import schema as schemas
from proxyfl.data.tables.checking import check
from proxyfl.data.tables.reading import read
from tests.data.tables import making

LABELS = {
    "two": {"column": "died", "classes": ["alive", "dead"], "prevalence": [0.8, 0.2]},
    "three": {"column": "grade", "classes": ["I", "II", "III"]},
    "value": {"task": "regression", "column": "hba1c", "range": [4, 14]},
    "findings": {"task": "multilabel", "findings": ["edema", "mass"]},
    "time": {
        "task": "time-to-event",
        "column": "days",
        "event": "died",
        "intervals": [30, 90, 365],
    },
}
COLUMNS = {
    "age": {"type": "number", "range": [18, 100]},
    "side": {"type": "category", "values": ["left", "middle", "right"]},
    "smoker": {"type": "yes/no", "indicator": False},
    "born": {"type": "date", "until": "seen", "range": [18, 90]},
    "seen": {"type": "date"},
    "note": {"type": "ignored"},
    "bmi": {"type": "number", "range": [10, 60], "encoding": "hinges", "knots": [25, 30]},
}


def _schema(label: str) -> schemas.Schema:
    tree = {"label": LABELS[label], "columns": COLUMNS, "person": "patient", "site": "clinic"}
    return schemas.parse(tree)


@pytest.mark.parametrize("label", LABELS)
def test_the_schema_finds_no_fault(label: str, tmp_path: Path) -> None:
    """Every table has the asked size, and neither a fault nor a person at two sites."""
    schema = _schema(label)
    drawn = draw_tables(schema, tmp_path, [60, 90], tests=40, signal=0.8, seed=1)
    files = check([*drawn.train, *drawn.test], schema)
    assert [file.faults for file in files] == [[], [], [], []]
    assert [file.tally.rows for file in files] == [60, 90, 40, 40]


def test_tables_repeat_and_seeds_differ(tmp_path: Path) -> None:
    """The same seed draws the same bytes, another one other patients."""
    texts = []
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        drawn = draw_tables(
            making.SCHEMA, tmp_path / folder, [50, 50], tests=20, signal=0.8, seed=seed
        )
        texts.append(drawn.train[0].read_bytes())
        assert drawn.train[0].read_bytes() != drawn.train[1].read_bytes()
    assert texts[0] == texts[1] != texts[2]


def test_cases_are_as_common_as_published(tmp_path: Path) -> None:
    """The share of the second class is the schema's prevalence, within its chance."""
    drawn = draw_tables(_schema("two"), tmp_path, [4000], tests=10, signal=0.8, seed=0)
    (part,) = read(drawn.train[0])
    share = np.mean([text == "dead" for text in part.columns["died"]])
    assert abs(share - 0.2) < 4 * np.sqrt(0.2 * 0.8 / 4000)
