"""From sites' files to a dataset: parts by person, no one in two, faults refused or skipped."""

import copy

import pytest
import torch

from proxyfl.data.tables import schema
from proxyfl.data.tables.loading import load_tables
from proxyfl.errors import DataError
from tests.data.tables import making


def sites(tmp_path, counts=(40, 30), **options):
    """A file per site with so many patients each."""
    files = []
    first = 0
    for i, count in enumerate(counts):
        table = making.rows(count, seed=i, first=first)
        files.append(making.write(tmp_path / f"site{i}.csv", table, **options))
        first += count
    return files


def test_a_file_is_a_site(tmp_path):
    """Each file is a site with the file's name; every site has a test part of its own."""
    found = load_tables(sites(tmp_path), making.SCHEMA, test_fraction=0.25)
    assert found.site_names == ("site0", "site1")
    train, test = found.site.bincount(), found.test_site.bincount()
    assert (train + test).tolist() == [40, 30]
    assert test.min() > 0
    assert found.class_names == ("no", "yes")
    assert len(found.feature_names) == found.shape[0]


def test_columns_in_another_order_give_the_same_features(tmp_path):
    """The schema decides the order of features, not the file."""
    table = making.rows(20)
    order = [6, 3, 0, 5, 1, 4, 2]
    mixed = [[line[i] for i in order] for line in table]
    header = [making.HEADER[i] for i in order]
    one = load_tables([making.write(tmp_path / "a.csv", table)], making.SCHEMA)
    other = making.write(tmp_path / "b.csv", mixed, header)
    two = load_tables([other], making.SCHEMA)
    assert torch.equal(one.train_x, two.train_x)
    assert torch.equal(one.train_y, two.train_y)


def test_nobody_is_in_both_parts(tmp_path):
    """A person's rows are all in one part, and who is held out follows from persons alone."""
    table = making.rows(60)
    for i, line in enumerate(table):
        line[0] = f"p{i // 3}"
    path = making.write(tmp_path / "a.csv", table)
    found = load_tables([path], making.SCHEMA, test_fraction=0.3)
    train = set(found.train.groups.tolist())
    test = set(found.test.groups.tolist())
    assert not train & test
    assert test
    for line in table:
        line[6] = "1" if line[6] == "0" else "0"
    again = load_tables([making.write(path, table)], making.SCHEMA, test_fraction=0.3)
    assert torch.equal(again.test.groups, found.test.groups)


def test_a_site_may_lack_classes(tmp_path):
    """Class 1 is the schema's second class at every site, also where it is the only one."""
    files = sites(tmp_path)
    ill = making.rows(20, seed=9, first=500)
    for line in ill:
        line[6] = "1"
    files.append(making.write(tmp_path / "ill.csv", ill))
    found = load_tables(files, making.SCHEMA)
    assert set(found.train_y[found.site == 2].tolist()) == {1}
    assert found.classes == 2


def test_a_column_that_is_skipped_over_is_noted(tmp_path):
    """With faults skipped, a file without a column is read with a note that says so."""
    files = sites(tmp_path)
    table = [line[:4] + line[5:] for line in making.rows(20, seed=9, first=500)]
    header = [name for name in making.HEADER if name != "smoker"]
    files.append(making.write(tmp_path / "west.csv", table, header))
    found = load_tables(files, making.SCHEMA, faults="skip")
    (note,) = (note for note in found.notes if note.startswith("west.csv"))
    assert "1 x absent column in 'smoker'" in note


def test_notes_have_no_value_of_any_row(tmp_path):
    """What a run keeps of skipped rows are counts: no cell of a patient is among them."""
    table = making.rows(40)
    table[3][2] = "1.7777"
    table[4][3] = "a secret"
    path = making.write(tmp_path / "a.csv", table)
    found = load_tables([path], making.SCHEMA, faults="skip")
    notes = " ".join(found.notes)
    assert "1 x unit in 'height'" in notes
    assert "1.7777" not in notes
    assert "secret" not in notes


def test_a_site_may_lack_a_column_by_choice(tmp_path):
    """A column that a file lacks is refused by name, or missing for all rows if the schema says."""
    table = [[cell for i, cell in enumerate(line) if i != 2] for line in making.rows(20)]
    header = [name for name in making.HEADER if name != "height"]
    path = making.write(tmp_path / "a.csv", table, header)
    with pytest.raises(DataError, match=r"1 x absent column .*column 'height'"):
        load_tables([path], making.SCHEMA)
    tree = copy.deepcopy(making.TREE)
    tree["columns"]["height"]["absent"] = "missing"
    found = load_tables([path], schema.parse(tree))
    indicator = found.feature_names.index("height missing")
    assert found.train_x[:, indicator].tolist() == [1] * len(found.train_x)


def test_files_with_different_columns_are_refused_by_name(tmp_path):
    """The file with a column of its own is named, and so is the column."""
    files = sites(tmp_path)
    wide = [[*line, "42"] for line in making.rows(20, first=500)]
    files.append(making.write(tmp_path / "wide.csv", wide, [*making.HEADER, "shoe size"]))
    with pytest.raises(DataError, match=r"(?s)wide.csv: 1 fault .*unknown column.*'shoe size'"):
        load_tables(files, making.SCHEMA)
    found = load_tables(files, making.SCHEMA, faults="skip")
    assert len(found.site_names) == 3


def test_an_empty_column_is_named(tmp_path):
    """A column without a value is refused with its name."""
    table = making.rows(20)
    for line in table:
        line[1] = ""
    with pytest.raises(DataError, match=r"1 x empty column .*'age'"):
        load_tables([making.write(tmp_path / "a.csv", table)], making.SCHEMA)


def test_faults_are_refused_or_skipped_by_choice(tmp_path):
    """All faults are named at once with a count; skip leaves these rows out and says so."""
    table = making.rows(40)
    table[3][2] = "1.7"
    table[5][3] = "IV"
    table[6][3] = "V"
    table[9][6] = "5"
    path = making.write(tmp_path / "a.csv", table)
    with pytest.raises(DataError, match=r"(?s)4 faults.*1 x unit.*2 x category.*1 x label"):
        load_tables([path], making.SCHEMA)
    found = load_tables([path], making.SCHEMA, faults="skip")
    assert len(found.train_y) + len(found.test_y) == 36
    assert any("4 of 40 rows left out" in note for note in found.notes)


def test_clipped_values_are_in_the_notes(tmp_path):
    """What was clipped is said, with its count."""
    table = making.rows(40)
    table[0][1] = "17"
    found = load_tables([making.write(tmp_path / "a.csv", table)], making.SCHEMA)
    assert found.notes == ("a.csv: age: 1 of 40 values clipped to its range",)


def test_a_rare_class_without_a_prevalence_is_in_the_notes(tmp_path):
    """Where a class has fewer than a tenth of the examples the note asks for the published share,
    and has no count; a schema that states it is not asked."""
    table = making.rows(600)
    for number, line in enumerate(table):
        line[6] = "1" if number % 15 == 0 else "0"
    path = making.write(tmp_path / "a.csv", table)
    (note,) = load_tables([path], making.SCHEMA).notes
    assert note.startswith("'yes' is rare here")
    assert not any(letter.isdigit() for letter in note)
    label = making.TREE["label"] | {"prevalence": [0.95, 0.05]}
    stated = schema.parse(making.TREE | {"label": label})
    assert load_tables([path], stated).notes == ()


def test_a_person_at_two_sites_is_refused_or_left_out(tmp_path):
    """A person belongs to one site: the first that has it, if the others' rows may be skipped."""
    one = making.write(tmp_path / "a.csv", making.rows(20))
    two = making.write(tmp_path / "b.csv", making.rows(20, seed=1, first=19))
    with pytest.raises(DataError, match=r"1 x two sites .*b.csv row 2"):
        load_tables([one, two], making.SCHEMA)
    found = load_tables([one, two], making.SCHEMA, faults="skip")
    assert len(found.train_y) + len(found.test_y) == 39
    assert "1 x two sites" in found.notes[0]


def test_a_site_has_its_own_test_part(tmp_path):
    """Test files of the sites' names are the test part; a person in both is refused or skipped."""
    files = sites(tmp_path)
    (tmp_path / "test").mkdir()
    tests = [
        making.write(tmp_path / "test" / "site0.csv", making.rows(10, seed=5, first=200)),
        making.write(tmp_path / "test" / "site1.csv", making.rows(10, seed=6, first=300)),
    ]
    found = load_tables(files, making.SCHEMA, tests=tests)
    assert (len(found.train_y), len(found.test_y)) == (70, 20)
    assert found.test_site.bincount().tolist() == [10, 10]
    making.write(tests[0], making.rows(10, first=5))
    with pytest.raises(DataError, match="10 x two parts"):
        load_tables(files, making.SCHEMA, tests=tests)
    found = load_tables(files, making.SCHEMA, tests=tests, faults="skip")
    assert (len(found.train_y), len(found.test_y)) == (60, 20)


def test_a_test_part_without_a_site_is_refused(tmp_path):
    """A test file that belongs to no site's file is named."""
    files = sites(tmp_path)
    other = making.write(tmp_path / "nobody.csv", making.rows(10, first=500))
    with pytest.raises(DataError, match=r"nobody.csv: expected .* named like .*site0, site1"):
        load_tables(files, making.SCHEMA, tests=[other])


@pytest.mark.parametrize(
    ("labels", "fraction", "message"),
    [("0101", 0.25, "two rows in the test part, got 1"), ("0" * 20, 0.5, "rows of 'no' only")],
)
def test_test_parts_that_tell_nothing(tmp_path, labels, fraction, message):
    """A test part of one row or of one class is refused."""
    table = making.rows(len(labels))
    for line, label in zip(table, labels, strict=True):
        line[6] = label
    path = making.write(tmp_path / "a.csv", table)
    with pytest.raises(DataError, match=message):
        load_tables([path], making.SCHEMA, test_fraction=fraction)


def test_duplicate_columns_are_refused_whatever_the_choice(tmp_path):
    """Two columns of one name are ambiguous, so even skip refuses them."""
    header = [*making.HEADER[:-2], "age", "died"]
    path = making.write(tmp_path / "a.csv", making.rows(5), header)
    with pytest.raises(DataError, match="duplicate column"):
        load_tables([path], making.SCHEMA, faults="skip")


def test_a_file_of_faults_only_is_refused(tmp_path):
    """Where nothing is left after skipping, the message says how many rows were left out."""
    table = making.rows(5)
    for line in table:
        line[6] = "9"
    with pytest.raises(DataError, match="got none: all 5 were left out"):
        load_tables([making.write(tmp_path / "a.csv", table)], making.SCHEMA, faults="skip")


def test_sites_from_a_column(tmp_path):
    """With a site column, one file holds all sites; a row without a site is a fault."""
    tree = copy.deepcopy(making.TREE) | {"site": "hospital"}
    table = [[*line, "north" if i % 2 else "south, east"] for i, line in enumerate(making.rows(30))]
    table = [[*line[:-1], f'"{line[-1]}"'] for line in table]
    path = making.write(tmp_path / "a.csv", table, [*making.HEADER, "hospital"])
    found = load_tables([path], schema.parse(tree))
    assert set(found.site_names) == {"north", "south, east"}
    table[4][-1] = ""
    path = making.write(tmp_path / "a.csv", table, [*making.HEADER, "hospital"])
    with pytest.raises(DataError, match="1 x no site"):
        load_tables([path], schema.parse(tree))
