"""The public schema: what it accepts, what it refuses, and that it survives writing."""

import copy
import tomllib

import pytest

from proxyfl.data.tables import schema
from proxyfl.errors import ConfigError

TEXT = """
name = "stroke"
site = "hospital"
person = "patient"
missing = ["", "-9"]

[label]
column = "died"
classes = ["alive", "dead"]
written = {alive = ["0", "no"], dead = ["1", "yes"]}
prevalence = [0.9, 0.1]

[columns.age]
type = "number"
unit = "years"
range = [18, 100]

[columns."blood pressure"]
type = "number"
unit = "mmHg"
range = [60, 240]
encoding = "hinges"
knots = [120, 160]
missing = ["0"]
fill = 130

[columns.side]
type = "category"
values = ["left", "right"]
unknown = "other"
absent = "missing"

[columns.smoker]
type = "yes/no"
indicator = false

[columns.born]
type = "date"
formats = ["%Y-%m-%d", "%d.%m.%Y"]
until = "admitted"
unit = "years"
range = [18, 100]

[columns.admitted]
type = "date"

[columns.note]
type = "ignored"
"""


def tree():
    """The example as a nested mapping, to be changed at will."""
    return copy.deepcopy(tomllib.loads(TEXT))


def test_a_schema_survives_writing():
    """What ``to_toml`` writes is read back as an equal schema with an equal fingerprint."""
    found = schema.parse(tree())
    again = schema.parse(tomllib.loads(schema.to_toml(found)))
    assert again == found
    assert again.fingerprint == found.fingerprint


def test_features_are_the_columns_that_models_see():
    """Dates that only end intervals, ignored columns, label, site and person are no features."""
    found = schema.parse(tree())
    assert list(found.features) == ["age", "blood pressure", "side", "smoker", "born"]
    assert found.roles == ("died", "hospital", "patient")


def test_the_fingerprint_follows_every_setting():
    """A change of one knot changes the fingerprint."""
    changed = tree()
    changed["columns"]["blood pressure"]["knots"] = [120, 161]
    assert schema.parse(changed).fingerprint != schema.parse(tree()).fingerprint


@pytest.mark.parametrize(
    ("column", "changes", "message"),
    [
        ("age", {"range": [50, 50]}, r"columns.age.*low to high, got \[50, 50\]"),
        ("age", {"range": [100, 18]}, "low to high"),
        ("age", {"range": []}, "Expected a plausible range"),
        ("age", {"range": [0, float("inf")]}, "finite number for range"),
        ("age", {"type": "numbr"}, "Unknown type 'numbr'"),
        ("age", {"rnage": [0, 1]}, "Unknown key 'rnage'.*range"),
        ("age", {"possible": [30, 90]}, "possible around the range"),
        ("age", {"encoding": "bins"}, "knots with the encodings"),
        ("age", {"knots": [40]}, "knots with the encodings"),
        ("age", {"values": ["a"]}, "values does not apply to a column of type 'number'"),
        ("age", {"fill": 200}, "18.0 <= fill <= 100.0"),
        ("blood pressure", {"knots": [160, 120]}, "ascending knots"),
        ("blood pressure", {"knots": [60, 120]}, "ascending knots within"),
        ("side", {"values": []}, "a list of values, got none"),
        ("side", {"values": ["1", "1.0"]}, "distinct values"),
        ("side", {"written": [["l"]]}, "for each of the 2 values, got 1"),
        ("side", {"written": [["l", "x"], ["r", "x"]]}, "one meaning .* got 'x' for"),
        ("side", {"written": {"lef": ["l"]}}, "Unknown name in written 'lef'"),
        ("smoker", {"yes": ["1"], "no": ["1.0"]}, "one meaning"),
        ("born", {"until": "death"}, "another column of type date .admitted., got 'death'"),
        ("born", {"formats": ["%d/%m/%Y", "%m/%d/%Y"]}, "different dates"),
        ("born", {"formats": []}, "at least one date format"),
        ("born", {"unit": "hours"}, "Unknown unit 'hours'"),
    ],
)
def test_what_a_column_cannot_be(column, changes, message):
    """A column that cannot be encoded, or a setting that would do nothing, is refused by name."""
    changed = tree()
    changed["columns"][column].update(changes)
    with pytest.raises(ConfigError, match=message):
        schema.parse(changed, "schema.toml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ["alive"], "written": []}, "at least two classes"),
        ({"prevalence": [0.9]}, "a share for each of 2 classes"),
        ({"prevalence": [0.9, 0.2]}, "add up to 1"),
        ({"prevalence": [1.0, 0.0]}, "prevalence"),
        ({"column": "age"}, "'age' is a label, a site or a person, and is in .columns. too"),
    ],
)
def test_what_a_label_cannot_be(changes, message):
    """A label has two classes or more, shares that are shares, and a column of its own."""
    changed = tree()
    changed["label"].update(changes)
    with pytest.raises(ConfigError, match=message):
        schema.parse(changed)


def test_a_schema_needs_something_to_learn_from():
    """A schema whose columns are all ignored is refused."""
    changed = tree()
    changed["columns"] = {"note": {"type": "ignored"}}
    with pytest.raises(ConfigError, match="no column to learn from"):
        schema.parse(changed)


def test_a_missing_label_table_is_named(tmp_path):
    """A file without [label] is refused with the file's name."""
    path = tmp_path / "schema.toml"
    path.write_text('[columns.age]\ntype = "ignored"\n')
    with pytest.raises(ConfigError, match=r"schema.toml: .*label"):
        schema.read(path)


@pytest.mark.parametrize(
    ("text", "found"),
    [("1.0", "1"), (" 1 ", "1"), ("-2.00", "-2"), ("1.5", "1.5"), ("a.0", "a.0"), (".0", ".0")],
)
def test_whole_numbers_have_one_form(text, found):
    """A code is the same with and without decimals, and nothing else is changed."""
    assert schema.canonical(text) == found


@pytest.mark.parametrize(
    ("classes", "written", "message"),
    [
        (["yes", "no"], [["0"], ["1"]], "'0' means 'yes'"),
        (["Yes", "No"], [["N"], ["Y"]], "'N' means 'Yes'"),
        (["alive", "dead"], [["dead"], ["1"]], "'dead' is one of the classes itself"),
        (["alive", "dead"], {"alive": ["0", "dead"]}, "'dead' is one of the classes itself"),
        (["0", "1"], [["1"], ["0"]], "'1' is one of the classes itself"),
        (["1", "2"], {"1": ["a"], "2": ["1.0"]}, "'1' is one of the classes itself"),
        (["alive", "dead"], {"alive": ["x"], "dead": ["x"]}, "got 'x' for 'alive' and 'dead'"),
    ],
)
def test_a_flipped_outcome_is_refused(classes, written, message):
    """No spelling of one class is the name of another, and a list calls no yes a no."""
    changed = tree()
    changed["label"].update(classes=classes, written=written)
    with pytest.raises(ConfigError, match=message):
        schema.parse(changed)


def test_the_table_by_class_may_say_what_nobody_would_guess():
    """A study in which 0 is a yes states it by name; the order of the table does not matter."""
    changed = tree()
    changed["label"].update(classes=["no", "yes"], written={"yes": ["0"], "no": ["1"]})
    label = schema.parse(changed).label
    codes = schema.codes_of(label.classes, label.written)
    assert codes == {"no": 0, "yes": 1, "1": 0, "0": 1}


def test_a_list_in_the_order_of_classes_is_read_with_a_note():
    """A list of earlier releases means what it meant; where nothing confirms its order, a note
    gives the table to state instead."""
    changed = tree()
    changed["label"].update(classes=["alive", "dead"], written=[["0", "no"], ["1", "yes"]])
    old = schema.parse(changed)
    (note,) = old.notes
    assert note.endswith('written = {alive = ["0", "no"], dead = ["1", "yes"]}')
    changed["label"]["written"] = {"alive": ["0", "no"], "dead": ["1", "yes"]}
    new = schema.parse(changed)
    assert not new.notes
    ways = [schema.codes_of(one.label.classes, one.label.written) for one in (old, new)]
    assert ways[0] == ways[1]
    changed["label"].update(classes=["no", "yes"], written=[["0"], ["1"]])
    assert not schema.parse(changed).notes
