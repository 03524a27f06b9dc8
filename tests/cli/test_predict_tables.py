"""``proxyfl predict`` on tables: by the names of columns, with ids, in the file's order."""

import csv
import io
import json

import pytest

from proxyfl.cli.main import main
from proxyfl.data.tables import schema
from tests.data.tables import making


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run on two sites' tables."""
    here = tmp_path_factory.mktemp("tables")
    (here / "schema.toml").write_text(schema.to_toml(making.SCHEMA))
    making.write(here / "north.csv", making.rows(60))
    making.write(here / "south.csv", making.rows(60, seed=1, first=60))
    sets = [
        "methods=proxyfl",
        "rounds=1",
        f"data.source={here}/*.csv",
        f"data.schema={here}/schema.toml",
        "partition.kind=site",
        "learning.batch_size=10",
    ]
    arguments = []
    for one in sets:
        arguments += ["--set", one]
    assert main(["run", *arguments, "--out", str(here / "run"), "--json", "--workers", "1"]) == 0
    return here / "run"


def predict(run, path, capsys, *arguments):
    """(exit code, stdout, stderr) of a prediction by the model of north."""
    capsys.readouterr()
    code = main(["predict", str(run), str(path), "--client", "north", *arguments])
    return code, *capsys.readouterr()


def new_rows(tmp_path, order=range(6), name="new.csv"):
    """New patients without a label, with columns in this order."""
    table = [[line[i] for i in order] for line in making.rows(8, seed=7, first=900)]
    return making.write(tmp_path / name, table, [making.HEADER[i] for i in order])


def test_the_order_of_columns_makes_no_difference(run, tmp_path, capsys):
    """The same patients with columns in another order get the same predictions."""
    _, one, _ = predict(run, new_rows(tmp_path), capsys, "--json")
    mixed = new_rows(tmp_path, [5, 2, 4, 0, 3, 1], "mixed.csv")
    _, two, _ = predict(run, mixed, capsys, "--json")
    assert json.loads(one)["predictions"] == json.loads(two)["predictions"]


def test_predictions_as_csv_have_the_ids_in_order(run, tmp_path, capsys):
    """CSV output has a row per input row, in its order, with its id and all probabilities."""
    code, out, _ = predict(run, new_rows(tmp_path), capsys, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert [row["id"] for row in rows] == [f"p{900 + i}" for i in range(8)]
    for row in rows:
        assert float(row["no"]) + float(row["yes"]) == pytest.approx(1, abs=1e-5)
        assert row["class"] == max(("no", "yes"), key=lambda name: float(row[name]))


def test_columns_are_refused_by_name(run, tmp_path, capsys):
    """A missing and an unknown column are both named; nothing is predicted."""
    path = new_rows(tmp_path, [0, 1, 3, 4, 5])
    code, out, err = predict(run, path, capsys)
    assert (code, out) == (2, "")
    assert "absent column" in err
    assert "'height'" in err
    text = path.read_text().replace("stage", "phase", 1)
    path.write_text(text)
    _, _, err = predict(run, path, capsys)
    assert "unknown column" in err
    assert "'phase'" in err


def test_values_outside_the_range_are_reported(run, tmp_path, capsys):
    """A value that is clipped is reported; one that cannot be is refused with its row."""
    path = new_rows(tmp_path)
    lines = path.read_text().splitlines()
    cells = lines[1].split(",")
    cells[1] = "107"
    path.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
    code, _, err = predict(run, path, capsys, "--json")
    assert code == 0
    assert "age: 1 of 8 values clipped to its range" in err
    cells[1] = "700"
    path.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
    code, _, err = predict(run, path, capsys)
    assert code == 2
    assert "row 2, column 'age'" in err


def test_an_id_column_may_be_named(run, tmp_path, capsys):
    """A column that the schema does not know may serve as id."""
    path = new_rows(tmp_path)
    lines = path.read_text().splitlines()
    text = [f"visit,{lines[0]}"] + [f"v{i},{line}" for i, line in enumerate(lines[1:])]
    path.write_text("\n".join(text) + "\n")
    _, out, _ = predict(run, path, capsys, "--json", "--id", "visit")
    assert [row["id"] for row in json.loads(out)["predictions"]] == [f"v{i}" for i in range(8)]
    code, _, err = predict(run, path, capsys, "--id", "visits")
    assert code == 2
    assert "no column 'visits' for the ids" in err


def test_numeric_tables_go_by_name_too(tmp_path, capsys):
    """Without a schema, columns in another order give the same, and strange ones are refused."""
    pytest.importorskip("pandas")
    rows = [f"{i % 5},{i % 7},{i % 2}" for i in range(60)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["a,b,label", *rows]) + "\n")
    sets = [f"data.source={path}", "rounds=1", "methods=alone", "partition.kind=iid"]
    arguments = []
    for one in [*sets, "partition.clients=2", "learning.batch_size=5"]:
        arguments += ["--set", one]
    out = tmp_path / "run"
    assert main(["run", *arguments, "--out", str(out), "--json", "--workers", "1"]) == 0
    (tmp_path / "ab.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "ba.csv").write_text("b,a,label\n2,1,0\n4,3,1\n")
    (tmp_path / "ac.csv").write_text("a,c\n1,2\n")
    found = []
    for name in ("ab.csv", "ba.csv"):
        capsys.readouterr()
        assert main(["predict", str(out), str(tmp_path / name), "--client", "0", "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["predictions"])
    assert found[0] == found[1]
    assert main(["predict", str(out), str(tmp_path / "ac.csv"), "--client", "0"]) == 2
    assert "no column b; unknown column c" in capsys.readouterr().err
