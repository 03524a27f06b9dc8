"""Tables from databases: SQLite, and a PostgreSQL that the test starts."""

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from proxyfl.data import Dataset, sources
from proxyfl.data.tables.databases import Query
from proxyfl.errors import DataError, RunError
from proxyfl.simulation.config import load as load_config
from proxyfl.simulation.run import Callback, resume, run

from .databases import COLUMNS, SCHEMA, cohort, postgres, postgres_programs, sqlite

QUERY = "SELECT * FROM cohort"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a database and a schema, and the same rows as a CSV file."""
    rows = cohort()
    sqlite(tmp_path / "cohort.sqlite", rows)
    lines = [",".join(COLUMNS), *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "cohort.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return tmp_path


def load(place: Path, source: str = "sqlite:///cohort.sqlite", query: str = QUERY) -> Dataset:
    return sources.load(source, query=query, schema=place / "schema.toml", folder=place)


def contents(dataset: Dataset) -> list[tuple[object, ...]]:
    """All examples of both parts, in an order of their own."""
    found = []
    for name, part in (("train", dataset.train), ("test", dataset.test)):
        for x, y in zip(part.take(torch.arange(len(part))), part.labels, strict=True):
            found.append((name, *x.tolist(), int(y)))
    return sorted(found)


def test_a_query_gives_what_the_file_gives(place: Path) -> None:
    """The same records from SQLite and from CSV: the same features, labels and test part."""
    from_file = sources.load(str(place / "cohort.csv"), schema=place / "schema.toml")
    assert contents(load(place)) == contents(from_file)
    assert load(place).site_names == ("cohort",)


def test_the_order_of_the_rows_plays_no_part(place: Path) -> None:
    """A database promises no order: the same rows give the same examples, one for one."""
    forward, backward = load(place), load(place, query=f"{QUERY} ORDER BY patient DESC")
    for one, other in ((forward.train, backward.train), (forward.test, backward.test)):
        rows = torch.arange(len(one))
        assert torch.equal(one.take(rows), other.take(rows))
        assert torch.equal(one.labels, other.labels)


def test_the_query_may_be_a_file_and_has_colons(place: Path) -> None:
    """A .sql file next to the settings; a text with a colon is no parameter."""
    (place / "cohort.sql").write_text(
        "-- the cohort\n/* of 2020 */ SELECT c.*, ':x' AS mark, 'a:b' AS other FROM cohort c;\n"
    )
    (place / "schema.toml").write_text(f'others = "ignore"\n{SCHEMA}')
    assert len(load(place, query="cohort.sql").train) > 80


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("DELETE FROM cohort", "begins with SELECT or WITH"),
        ("/* SELECT */ DROP TABLE cohort", "begins with SELECT or WITH"),
        ("SELECT 1; DROP TABLE cohort", "one statement"),
        ("SELECT '; DROP TABLE cohort' AS x", "one statement"),
        ("WITH x AS (SELECT 1) DELETE FROM cohort", "readonly database"),
        ("SELECT * FROM patients", "no such table: patients"),
        ("SELECT * FORM cohort", "syntax error"),
        ("SELECT age FROM cohort", "died"),
        ("SELECT * FROM cohort WHERE age > 200", "expected rows, got none"),
        ("", "Set data.query"),
        ("absent.sql", "cannot be read"),
    ],
)
def test_a_query_that_fails_is_a_sentence(place: Path, query: str, said: str) -> None:
    """Nothing can be written, and each failure says what happened."""
    before = (place / "cohort.sqlite").read_bytes()
    with pytest.raises(DataError, match=said):
        load(place, query=query)
    assert (place / "cohort.sqlite").read_bytes() == before


def test_what_is_missing_is_said(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database, a driver, a variable that is not there; a password where it would be copied."""
    with pytest.raises(DataError, match=r"absent.sqlite: no such database"):
        load(place, "sqlite:///absent.sqlite")
    assert not (place / "absent.sqlite").exists()
    with pytest.raises(DataError, match="driver is not installed"):
        load(place, "oracle+oracledb://db.example.org/x")
    with pytest.raises(DataError, match=r"NO_SUCH_SECRET.*not set"):
        load(place, "postgresql+psycopg://reader:${NO_SUCH_SECRET}@localhost/x")
    with pytest.raises(DataError, match=r"reader:\$\{DB_PASSWORD\}@localhost") as problem:
        load(place, "postgresql+psycopg://reader:hunter2@localhost/x")
    assert "hunter2" not in str(problem.value)
    with pytest.raises(DataError, match=r"data.query is for a database"):
        sources.load("digits", query=QUERY)


def test_without_a_schema_columns_are_numbers(place: Path) -> None:
    """As with a file: a label, features, and words refused."""
    found = sources.load(
        "sqlite:///cohort.sqlite",
        query="SELECT age, age * 1.5 AS more, died AS label FROM cohort",
        folder=place,
    )
    assert found.feature_names == ("age", "more")
    with pytest.raises(DataError, match=r"expected numbers in column 'sex'"):
        sources.load(
            "sqlite:///cohort.sqlite",
            query="SELECT age, sex, died AS label FROM cohort",
            folder=place,
        )


class Interrupt(Callback):
    """Stops a run in its second round."""

    def round_ended(self, name: str, round: int, rows: object) -> None:
        if round == 1:
            raise KeyboardInterrupt


def test_a_run_reads_the_database_and_notices_a_change(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was cut off is not continued with a changed table, and is with the old one."""
    monkeypatch.chdir(place)
    changes = {
        "rounds": "4",
        "checkpoint_every": "1",
        "data.source": "sqlite:///cohort.sqlite",
        "data.query": QUERY,
        "data.schema": "schema.toml",
        "partition.kind": "iid",
        "partition.clients": "2",
        "learning.batch_size": "20",
        "models.private": "logistic",
        "models.proxy": "linear",
        "methods": '["proxyfl"]',
    }
    config = load_config(None, [f"{name}={value}" for name, value in changes.items()])
    with pytest.raises(KeyboardInterrupt):
        run(config, out="out", callbacks=[Interrupt()])

    def set_age(change: int) -> None:
        with closing(sqlite3.connect("cohort.sqlite")) as connection, connection:
            connection.execute(f"UPDATE cohort SET age = age + {change} WHERE patient = 'p0003'")

    set_age(1)
    with pytest.raises(RunError, match=r"data has changed.*Put it back"):
        resume("out")
    set_age(-1)
    assert resume("out").finals("proxyfl")[0]["round"] == 3


@pytest.fixture(scope="module")
def server() -> Iterator[Path]:
    """The socket's folder of a PostgreSQL server with a password; its path is short, as it must."""
    if postgres_programs() is None:
        pytest.skip("no PostgreSQL server here (Debian: apt-get install postgresql)")
    pytest.importorskip("psycopg")
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    try:
        with postgres(folder, "p@ss:w/rd") as place:
            yield place
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_postgresql(place: Path, server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with a password from the environment: what CSV gives, and nothing can be written."""
    import psycopg

    connection = psycopg.connect(
        host=str(server), user="reader", password="p@ss:w/rd", dbname="postgres", autocommit=True
    )
    connection.execute(
        "CREATE TABLE cohort (patient text, age numeric(4,1), sex char(1), smoker boolean, "
        "seen date, died smallint)"
    )
    for row in cohort():
        connection.execute("INSERT INTO cohort VALUES (%s, %s, %s, %s, %s, %s)", row)
    url = f"postgresql+psycopg://reader:${{COHORT_PASSWORD}}@/postgres?host={server}"
    monkeypatch.setenv("COHORT_PASSWORD", "p@ss:w/rd")
    from_file = sources.load(str(place / "cohort.csv"), schema=place / "schema.toml")
    assert contents(load(place, url)) == contents(from_file)

    writing = "WITH gone AS (DELETE FROM cohort RETURNING *) SELECT * FROM gone"
    with pytest.raises(DataError, match="read-only transaction"):
        load(place, url, writing)
    hidden = r"SELECT E'\'' AS x; COMMIT; DROP TABLE cohort; --'"
    with pytest.raises(DataError, match="one statement"):
        load(place, url, hidden)
    with pytest.raises(DataError, match="does not exist"):
        load(place, url, "SELECT * FROM absent")
    monkeypatch.setenv("COHORT_PASSWORD", "wrong-secret")
    with pytest.raises(DataError, match="password authentication failed") as problem:
        load(place, url)
    assert "wrong-secret" not in str(problem.value)
    answer = connection.execute("SELECT count(*) FROM cohort").fetchone()
    assert answer == (120,)
    connection.close()


OMOP = """
CREATE TABLE person (person_id int, year_of_birth int, gender_concept_id int);
CREATE TABLE death (person_id int, death_date date);
CREATE TABLE concept_ancestor (ancestor_concept_id int, descendant_concept_id int);
CREATE TABLE condition_occurrence (
  person_id int, condition_concept_id int, condition_start_date date);
CREATE TABLE measurement (
  person_id int, measurement_concept_id int, measurement_date date, value_as_number numeric);
INSERT INTO concept_ancestor VALUES (443454, 443454), (443454, 1), (316866, 2);
INSERT INTO person VALUES (10, 1950, 8532), (11, 1940, 8507), (12, 1930, 8507);
INSERT INTO condition_occurrence VALUES
  (10, 1, '2015-03-02'), (10, 1, '2016-01-01'), (10, 2, '2010-01-01'), (11, 443454, '2018-05-05'),
  (12, 9, '2018-05-05');
INSERT INTO measurement VALUES (10, 3004249, '2015-03-02', 150), (10, 3004249, '2015-03-03', 140);
INSERT INTO death VALUES (11, '2018-06-01');
"""


def test_the_omop_query_of_the_page(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query in docs/guides/data.md gives a row per person with a first infarction."""
    import psycopg

    page = (Path(__file__).parents[3] / "docs" / "guides" / "data.md").read_text()
    query = page.partition("```sql\n")[2].partition("```")[0]
    monkeypatch.setenv("COHORT_PASSWORD", "p@ss:w/rd")
    with psycopg.connect(
        host=str(server), user="reader", password="p@ss:w/rd", dbname="template1", autocommit=True
    ) as connection:
        connection.execute(OMOP)
    url = f"postgresql+psycopg://reader:${{COHORT_PASSWORD}}@/template1?host={server}"
    header, rows = Query(url, query).answer()
    assert header == ("person", "age", "sex", "hypertension", "systolic", "died")
    assert sorted(rows) == [
        (10, 65, "female", True, 145, False),
        (11, 78, "male", False, None, True),
    ]
