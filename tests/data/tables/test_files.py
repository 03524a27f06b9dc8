"""One file per site, by pattern or by list, through ``data.load``."""

import pytest

from proxyfl.data.sources import load
from proxyfl.data.tables import reading as files
from proxyfl.data.tables import schema
from proxyfl.errors import DataError
from tests.data.tables import making


@pytest.fixture
def folder(tmp_path):
    """Three sites in three dialects, and the schema."""
    (tmp_path / "schema.toml").write_text(schema.to_toml(making.SCHEMA))
    (tmp_path / "sites").mkdir()
    making.write(tmp_path / "sites" / "a.csv", making.rows(30))
    making.write(tmp_path / "sites" / "b.csv", making.rows(30, 1, 30), separator=";")
    making.write(tmp_path / "sites" / "c.csv", making.rows(30, 2, 60), separator="\t")
    return tmp_path


def test_a_pattern_stands_for_the_sites(folder):
    """The files that match are the sites, in the order of their names, each in its dialect."""
    found = load(str(folder / "sites" / "*.csv"), schema=folder / "schema.toml")
    assert found.site_names == ("a", "b", "c")
    assert len(found.train) + len(found.test) == 90


def test_a_list_stands_for_the_sites(folder):
    """Files may be listed, in any order."""
    names = [str(folder / "sites" / name) for name in ("c.csv", "a.csv")]
    assert load(names, schema=folder / "schema.toml").site_names == ("c", "a")


def test_a_pattern_without_a_file_is_named(folder):
    """A pattern that matches nothing is an error with the folder that was looked in."""
    with pytest.raises(DataError, match=r"\*.parquet: no file matches"):
        files.find(str(folder / "*.parquet"))


def test_patterns_are_found_from_here(folder, monkeypatch):
    """A relative pattern is looked for in the current folder."""
    monkeypatch.chdir(folder)
    assert [path.name for path in files.find("sites/[ab].csv")] == ["a.csv", "b.csv"]


def test_several_files_need_a_schema(folder):
    """Without a schema nobody knows that the columns of two files mean the same."""
    with pytest.raises(DataError, match=r"need a schema .*data.schema"):
        load(str(folder / "sites" / "*.csv"))
