"""What a coefficient means: effects of original columns as combinations of features."""

import math
from pathlib import Path

import numpy as np
import pytest

from proxyfl.data.tables.contrasts import contrasts
from proxyfl.data.tables.encoding import encode
from proxyfl.data.tables.faults import Tally
from proxyfl.data.tables.features import feature_names
from proxyfl.data.tables.reading import read
from proxyfl.data.tables.schema import Column, Label, Schema

SCHEMA = Schema(
    Label("died", classes=("no", "yes")),
    {
        "sex": Column("category", values=("f", "m"), unknown="other"),
        "smokes": Column("yes/no"),
        "age": Column("number", unit="years", range=(20.0, 90.0), encoding="hinges", knots=(60.0,)),
        "crp": Column("number", range=(0.0, 300.0), fill=5.0),
        "bmi": Column("number", range=(15.0, 45.0), encoding="bins", knots=(25.0, 30.0)),
    },
)

PAIRS = {
    ("sex", "m against f"): ("m,no,40,5,20", "f,no,40,5,20"),
    ("sex", "other against f"): ("x,no,40,5,20", "f,no,40,5,20"),
    ("sex", "missing against f"): (",no,40,5,20", "f,no,40,5,20"),
    ("smokes", "yes against no"): ("f,yes,40,5,20", "f,no,40,5,20"),
    ("smokes", "missing against no"): ("f,,40,5,20", "f,no,40,5,20"),
    ("age", "10 years more, below 60"): ("f,no,50,5,20", "f,no,40,5,20"),
    ("age", "10 years more, 60 to 90"): ("f,no,80,5,20", "f,no,70,5,20"),
    ("age", "missing against 55"): ("f,no,,5,20", "f,no,55,5,20"),
    ("crp", "10 more"): ("f,no,40,30,20", "f,no,40,20,20"),
    ("crp", "missing against 5"): ("f,no,40,,20", "f,no,40,5,20"),
    ("bmi", "25 to 30 against 15 to 25"): ("f,no,40,5,27", "f,no,40,5,20"),
    ("bmi", "30 to 45 against 15 to 25"): ("f,no,40,5,37", "f,no,40,5,20"),
    ("bmi", "missing against 15 to 25"): ("f,no,40,5,", "f,no,40,5,20"),
}
"""(column, change) -> two patients who differ by it."""


def test_every_contrast_is_the_difference_of_two_patients(tmp_path: Path) -> None:
    """For each change of each kind of column, the weights are the features of a patient after it
    less those of one before; there is no other change."""
    effects = contrasts(SCHEMA)
    assert [(each.column, each.change) for each in effects] == list(PAIRS)
    for effect in effects:
        path = tmp_path / "two.csv"
        after, before = PAIRS[effect.column, effect.change]
        path.write_text(f"sex,smokes,age,crp,bmi,died\n{after},no\n{before},no\n")
        (part,) = read(path)
        x = encode(SCHEMA, part, Tally())[0].x
        assert x.shape[1] == len(feature_names(SCHEMA)) == len(effect.weights)
        assert np.allclose(x[0] - x[1], effect.weights, atol=1e-6), effect


@pytest.mark.parametrize("width", [3.0, 4.0, 39.0, 40.0, 399.0, 0.5])
def test_the_step_of_a_number_is_a_power_of_ten(width: float) -> None:
    """It is below or at a quarter of the range, and above a fortieth."""
    schema = Schema(Label("y", classes=("a", "b")), {"x": Column("number", range=(1.0, 1 + width))})
    step = contrasts(schema)[0].weights[0] * width / 2
    assert math.log10(step) == pytest.approx(round(math.log10(step)))
    assert width / 40 < step <= width / 4 * (1 + 1e-9)
