"""Labels of tasks other than classification: read by the schema, faults named, nothing guessed."""

import numpy as np
import pytest
import torch

from proxyfl.data.tables import schema as schemas
from proxyfl.data.tables.loading import load_tables
from proxyfl.errors import ConfigError, DataError

AGE = '[columns.age]\ntype = "number"\nrange = [0, 100]\nindicator = false\n'
REGRESSION = f"""
name = "table"
others = "ignore"
[label]
task = "regression"
column = "hba1c"
range = [4, 14]
unit = "%"
{AGE}"""
SURVIVAL = f"""
name = "table"
others = "ignore"
[label]
task = "time-to-event"
column = "days"
event = "died"
intervals = [30, 90]
{AGE}"""
FINDINGS = f"""
name = "table"
others = "ignore"
[label]
task = "multilabel"
findings = ["edema", "mass"]
yes = ["ja"]
no = ["nein"]
{AGE}"""


def parsed(text):
    """The schema in a TOML text."""
    import tomllib

    return schemas.parse(tomllib.loads(text))


def table(folder, header, rows, name="a.csv"):
    """A file of a site with so many times these rows, each with another age."""
    lines = [f"age,{header}"]
    for number in range(60):
        lines.append(f"{number},{rows[number % len(rows)]}")
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def loaded(folder, text, header, rows, **options):
    """The dataset of one file."""
    return load_tables([table(folder, header, rows)], parsed(text), **options)


def every_label(dataset):
    """All labels, of both parts."""
    return torch.cat([dataset.train_y, dataset.test_y])


@pytest.mark.parametrize("text", [REGRESSION, SURVIVAL, FINDINGS])
def test_a_schema_is_read_back_from_its_own_text(text):
    """to_toml and parse are inverse for every task, and the fingerprint is stable."""
    schema = parsed(text)
    again = parsed(schemas.to_toml(schema))
    assert again == schema
    assert again.fingerprint == schema.fingerprint


def test_a_schema_of_classes_is_written_as_before():
    """The new fields do not show in a schema of classes, whose fingerprint members compare."""
    text = f'[label]\ncolumn = "y"\nclasses = ["a", "b"]\n{AGE}'
    assert schemas.to_toml(parsed(text)).startswith(
        '[label]\ncolumn = "y"\nclasses = ["a", "b"]\n\n[columns'
    )


def test_values_outside_the_range_are_clipped_and_counted(tmp_path):
    """15 is a value that can be, and counts as 14; the note says how many."""
    dataset = loaded(tmp_path, REGRESSION, "hba1c", ["5.5", "15", "3.9"])
    assert sorted(every_label(dataset).unique().tolist()) == [4.0, 5.5, 14.0]
    assert any("hba1c: 40 of 60 values clipped" in note for note in dataset.notes), dataset.notes
    assert dataset.task.kind == "regression"
    assert dataset.class_names == ("hba1c",)


@pytest.mark.parametrize("bad", ["1e300", "-5", "high", "", "NA", "nan", "inf"])
def test_values_that_cannot_be_are_faults(tmp_path, bad):
    """Each is named with its column; with skip the row is left out and counted."""
    rows = ["5.5", "7", bad]
    with pytest.raises(DataError, match="hba1c"):
        loaded(tmp_path, REGRESSION, "hba1c", rows)
    dataset = loaded(tmp_path, REGRESSION, "hba1c", rows, faults="skip")
    assert len(every_label(dataset)) == 40
    assert any("20 of 60 rows left out" in note for note in dataset.notes), dataset.notes


def test_possible_refuses_what_the_range_would_clip(tmp_path):
    """With possible = [4, 14] nothing is clipped."""
    text = REGRESSION.replace("range = [4, 14]", "range = [4, 14]\npossible = [4, 14]")
    with pytest.raises(DataError, match="a number from 4 to 14 %"):
        loaded(tmp_path, text, "hba1c", ["5.5", "15"])


def test_times_and_events(tmp_path):
    """Times stay as they are, also beyond the horizon; yes and no become 1 and 0."""
    dataset = loaded(tmp_path, SURVIVAL, "days,died", ["12.5,1", "400,no", "90,TRUE", "0,0"])
    rows = {tuple(row) for row in every_label(dataset).tolist()}
    assert rows == {(12.5, 1.0), (400.0, 0.0), (90.0, 1.0), (0.0, 0.0)}
    assert dataset.class_names == ("0 to 30", "30 to 90")


@pytest.mark.parametrize("bad", ["-1,1", "x,1", ",1", "12,2", "12,", "12,maybe", "1e12,0"])
def test_times_and_events_that_cannot_be_are_faults(tmp_path, bad):
    """A negative time and an event other than yes or no are refused, with row and column."""
    with pytest.raises(DataError, match=r"days|died"):
        loaded(tmp_path, SURVIVAL, "days,died", ["12,1", "50,0", bad])


def test_no_event_by_the_horizon_in_the_test_part_is_said(tmp_path):
    """Nothing could be judged; the sentence says what to do."""
    with pytest.raises(DataError, match="at least one event by the horizon"):
        loaded(tmp_path, SURVIVAL, "days,died", ["12,0", "400,1"])


def test_findings(tmp_path):
    """One column for each finding, in the schema's order."""
    dataset = loaded(tmp_path, FINDINGS, "mass,edema", ["ja,nein", "nein,nein", "ja,JA"])
    assert {tuple(row) for row in every_label(dataset).tolist()} == {(0, 1), (0, 0), (1, 1)}
    with pytest.raises(DataError, match="a yes or a no"):
        loaded(tmp_path, FINDINGS, "mass,edema", ["ja,1", "nein,nein"])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ('task = "regression"\ncolumn = "y"', "needs label.range"),
        ('task = "regression"\ncolumn = "y"\nrange = [1, 1]', "low below high"),
        ('task = "regression"\ncolumn = "y"\nrange = [0, 1]\nclasses = ["a", "b"]', "classes does"),
        ('task = "time-to-event"\ncolumn = "y"\nintervals = [30]', "needs label.event"),
        ('task = "time-to-event"\ncolumn = "y"\nevent = "d"\nintervals = [3, 2]', "rising ends"),
        ('task = "time-to-event"\ncolumn = "y"\nevent = "y"\nintervals = [3]', "Name both"),
        ('task = "multilabel"', "needs label.findings"),
        ('task = "multilabel"\nfindings = ["age"]', "models must not learn from it"),
        ('task = "survival"\ncolumn = "y"', "Unknown label.task 'survival'"),
        ('classes = ["a", "b"]', "needs label.column"),
    ],
)
def test_a_label_that_makes_no_sense_is_refused(wrong, words):
    """The words name the field."""
    with pytest.raises(ConfigError, match=words):
        parsed(f"[label]\n{wrong}\n{AGE}")


def test_labels_are_float32(tmp_path):
    """As every label that is no class."""
    dataset = loaded(tmp_path, REGRESSION, "hba1c", ["5.5", "7"])
    assert dataset.train_y.numpy().dtype == np.float32
