"""Encoding by the schema alone: features, clipping, missing values, and every kind of fault."""

import copy
import datetime
import random
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxyfl.data.tables import schema
from proxyfl.data.tables.encoding import encode
from proxyfl.data.tables.faults import KINDS, Tally, of_header
from proxyfl.data.tables.features import feature_names
from proxyfl.data.tables.reading import Part
from tests.data.tables import making


def part(decimal=".", **columns):
    """A part with these columns."""
    count = len(next(iter(columns.values())))
    return Part(tuple(columns), np.arange(2, count + 2), columns, decimal)


def one(column, texts, decimal="."):
    """(features, faults, tally) of a table with this one column."""
    tree = {"label": {"column": "y", "classes": ["a", "b"]}, "columns": {"c": column}}
    tally = Tally()
    found, faults = encode(
        schema.parse(tree), part(decimal, c=texts), tally, labelled=False, today=TODAY
    )
    return found.x.tolist(), faults, tally


TODAY = datetime.date(2024, 6, 1)
AGE = {"type": "number", "unit": "years", "range": [20, 100]}


def test_numbers_are_scaled_by_their_range():
    """The range becomes [-1, 1]; a missing value the middle, and its indicator is 1."""
    x, faults, tally = one(AGE, ["20", "60", "100", "", " 80.0 "])
    assert x == [[-1, 0], [0, 0], [1, 0], [0, 1], [0.5, 0]]
    assert not faults
    assert tally.missing["c"] == 1


def test_fill_and_no_indicator():
    """A fixed fill stands for a missing value; without an indicator there is no second feature."""
    x, _, _ = one(AGE | {"fill": 40, "indicator": False}, ["?", "100"])
    assert x == [[-0.5], [1]]


def test_values_outside_the_range_are_clipped_and_counted():
    """A value a little outside becomes the end of the range, and is counted."""
    x, faults, tally = one(AGE | {"indicator": False}, ["18", "105", "50"])
    assert x[:2] == [[-1], [1]]
    assert not faults
    assert tally.clipped["c"] == 2


def test_bins_and_hinges():
    """Bins are indicators of intervals, closed on the left; hinges ramp from a knot to the end."""
    bins, _, _ = one(AGE | {"encoding": "bins", "knots": [40, 60]}, ["20", "40", "60", "100", ""])
    assert bins == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    hinges, _, _ = one(AGE | {"encoding": "hinges", "knots": [60]}, ["20", "60", "80", "100"])
    assert hinges == [[-1, 0, 0], [0, 0, 0], [0.5, 0.5, 0], [1, 1, 0]]


def test_decimal_comma():
    """With a decimal comma 55,5 is a number and 55.5 still is."""
    x, faults, _ = one(AGE | {"indicator": False}, ["60,0", "80,0"], decimal=",")
    assert x == [[0], [0.5]]
    assert not faults


@pytest.mark.parametrize("text", ["abc", "inf", "1_000", "1,5", "1e400", "0x10", "--3"])
def test_texts_that_are_no_numbers(text):
    """What is no number is a fault with its row, its column and the text as it stands."""
    _, faults, _ = one(AGE, ["50", text])
    assert [(f.row, f.column, f.kind, f.found) for f in faults] == [(3, "c", "number", text)]


@pytest.mark.parametrize("text", ["1.7", "0.18", "1750", "-9", "999"])
def test_heights_that_cannot_be(text):
    """Metres for centimetres, a code for missing and a typing error are faults, not clipped."""
    column = {"type": "number", "unit": "cm", "range": [120, 220]}
    _, faults, tally = one(column, [text])
    assert [fault.kind for fault in faults] == ["unit"]
    assert "120 to 220 cm" in faults[0].expected
    assert not tally.clipped


def test_the_message_guesses_the_unit():
    """A height in metres is told that a hundred times it would fit."""
    _, faults, _ = one({"type": "number", "unit": "cm", "range": [50, 250]}, ["1.7"])
    assert "times 100 it would fit" in faults[0].expected


def test_possible_replaces_the_rule():
    """A schema that says what is possible clips up to there and refuses beyond."""
    column = {"type": "number", "range": [0, 10], "possible": [-5, 1e6]}
    _, faults, tally = one(column, ["500", "-3", "2e6"])
    assert [fault.found for fault in faults] == ["2e6"]
    assert tally.clipped["c"] == 2


def test_categories():
    """A category is one indicator each; spaces and decimals of a code make no difference."""
    column = {"type": "category", "values": ["1", "2"], "indicator": False}
    x, faults, _ = one(column, ["1", " 2.0", "3"])
    assert x == [[1, 0], [0, 1]]
    assert [(f.kind, f.found) for f in faults] == [("category", "3")]


def test_categories_with_commas_and_other_spellings():
    """A value may have a comma in it, and may be written in several ways."""
    column = {
        "type": "category",
        "values": ["left, upper", "right"],
        "written": [["left, upper", "LU"], ["R"]],
        "indicator": False,
    }
    x, faults, _ = one(column, ["left, upper", "LU", "R"])
    assert x == [[1, 0], [1, 0], [0, 1]]
    assert not faults


def test_unknown_categories_go_to_other_by_choice():
    """With unknown = other they share one feature, and are counted."""
    column = {"type": "category", "values": ["a"], "unknown": "other"}
    x, faults, tally = one(column, ["a", "b", ""])
    assert x == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert not faults
    assert tally.others["c"] == 1


def test_yes_and_no():
    """Yes is 1, no is -1, in capital and small letters; anything else is a fault."""
    x, faults, _ = one({"type": "yes/no"}, ["Yes", "FALSE", "1.0", "", "maybe"])
    assert x == [[1, 0], [-1, 0], [1, 0], [0, 1]]
    assert [(f.kind, f.found) for f in faults] == [("yes/no", "maybe")]


def test_dates_are_intervals():
    """A date in any of its formats becomes the time until the end, in its unit."""
    column = {
        "type": "date",
        "formats": ["%Y-%m-%d", "%d.%m.%Y", "%b %d %Y"],
        "until": "2020-01-01",
        "unit": "days",
        "range": [0, 20],
        "indicator": False,
    }
    x, faults, _ = one(column, ["2020-01-01", "22.12.2019", "Dec 12 2019"])
    assert x == [[-1], [0], [1]]
    assert not faults


def test_dates_until_another_column():
    """The interval may end at another column's date; where that is missing, so is the interval."""
    tree = {
        "label": {"column": "y", "classes": ["a", "b"]},
        "columns": {
            "born": {"type": "date", "until": "seen", "unit": "years", "range": [0, 100]},
            "seen": {"type": "date"},
        },
    }
    table = part(born=["1970-01-01"] * 3, seen=["2020-01-01", "", "2030-01-01"])
    tally = Tally()
    found, faults = encode(schema.parse(tree), table, tally, labelled=False, today=TODAY)
    assert found.x[0] == pytest.approx([0, 0], abs=1e-3)
    assert found.x[1].tolist() == [0, 1]
    assert [(f.kind, f.column) for f in faults] == [("future", "seen")]


@pytest.mark.parametrize(("text", "kind"), [("31.02.2019", "date"), ("2024-06-02", "future")])
def test_dates_that_cannot_be(text, kind):
    """A date that no calendar has and a date after today are faults."""
    column = {
        "type": "date",
        "formats": ["%Y-%m-%d", "%d.%m.%Y"],
        "until": "2030-01-01",
        "range": [0, 50],
    }
    _, faults, _ = one(column, [text])
    assert [fault.kind for fault in faults] == [kind]


def test_label_faults():
    """A label that the schema does not know and a row without label are told apart."""
    table = dict(zip(making.HEADER, zip(*making.rows(3), strict=True), strict=True))
    table["died"] = ("1", "2", "")
    found, faults = encode(making.SCHEMA, part(**table), Tally())
    assert [(f.row, f.kind) for f in faults] == [(3, "label"), (4, "no label")]
    assert found.y.tolist() == [1]
    assert found.rows.tolist() == [2]


def test_of_header():
    """Columns that are absent, unknown or there twice are named, all at once."""
    header = ["patient", "age", "stage", "stage", "smoker", "born", "died", "shoe size"]
    found = {(fault.kind, fault.column) for fault in of_header(making.SCHEMA, header)}
    assert found == {
        ("duplicate column", "stage"),
        ("unknown column", "shoe size"),
        ("absent column", "height"),
    }


def test_feature_names_match_the_features():
    """There is a name for every feature, in order."""
    tree = copy.deepcopy(making.TREE)
    tree["columns"]["age"] |= {"encoding": "bins", "knots": [40, 60]}
    tree["columns"]["height"] |= {"encoding": "hinges", "knots": [170]}
    tree["columns"]["stage"] |= {"unknown": "other"}
    found = schema.parse(tree)
    table = part(**dict(zip(making.HEADER, zip(*making.rows(3), strict=True), strict=True)))
    encoded, _ = encode(found, table, Tally())
    assert encoded.x.shape == (3, len(feature_names(found)))
    assert feature_names(found)[:4] == (
        "age 18 to 40",
        "age 40 to 60",
        "age 60 to 100",
        "age missing",
    )


SPOILT = {
    "number": ("age", "old"),
    "unit": ("height", "1.75"),
    "category": ("stage", "IV"),
    "yes/no": ("smoker", "perhaps"),
    "date": ("born", "15/15/1950"),
    "future": ("born", "2190-01-01"),
    "label": ("died", "7"),
    "no label": ("died", ""),
    "no person": ("patient", "NaN"),
}


def test_a_thousand_seeded_faults_are_all_found():
    """Of 1,000 faults spoilt into 5,000 rows each is found, with its row, column and kind."""
    generator = random.Random(1)
    table = making.rows(5000)
    planted = set()
    for i in generator.sample(range(5000), 1000):
        kind = generator.choice(list(SPOILT))
        column, text = SPOILT[kind]
        table[i][making.HEADER.index(column)] = text
        planted.add((i + 2, column, kind))
    columns = dict(zip(making.HEADER, zip(*table, strict=True), strict=True))
    kept, faults = encode(making.SCHEMA, part(**columns), Tally())
    assert {(f.row, f.column, f.kind) for f in faults} == planted
    assert len(faults) == 1000
    assert len(kept.y) == 4000
    assert {kind for _, _, kind in planted} <= set(KINDS)


@settings(max_examples=50)
@given(
    ages=st.lists(st.floats(18, 100).map(str) | st.sampled_from(["", "NA", "500"]), min_size=1),
    seed=st.integers(0, 100),
)
def test_a_row_is_encoded_by_itself(ages, seed):
    """A row's features do not depend on the other rows or on their order, and lie in [-1, 1]."""
    alone = [one(AGE, [age])[0] for age in ages]
    together = one(AGE, ages)[0]
    assert [x for rows in alone for x in rows] == together
    order = list(range(len(ages)))
    random.Random(seed).shuffle(order)
    shuffled = one(AGE, [ages[i] for i in order])[0]
    assert sorted(shuffled) == sorted(together)
    assert np.abs(np.array(together or [[0.0]])).max() <= 1


@pytest.mark.slow
def test_a_million_rows_encode_in_seconds(tmp_path):
    """A million rows of a CSV file are encoded within a minute of one core, in bounded memory."""
    import resource

    from proxyfl.data.tables.loading import Names, read_file
    from proxyfl.data.tables.scratch import Scratch

    lines = [",".join(line) for line in making.rows(10_000)]
    path = tmp_path / "large.csv"
    with path.open("w") as file:
        file.write(",".join(making.HEADER) + "\n")
        for _ in range(100):
            file.write("\n".join(lines) + "\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    encoded = Scratch(len(feature_names(making.SCHEMA)))
    table = read_file(path, making.SCHEMA, encoded, Names())
    assert time.process_time() - start < 60
    assert len(table) == 1_000_000
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 300e6
