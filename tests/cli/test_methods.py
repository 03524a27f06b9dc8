"""``proxyfl methods``."""

import json

import pytest

from proxyfl.cli.main import main
from proxyfl.federation.methods import METHODS


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON object with a row for each method and nothing else."""
    assert main(["methods", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == list(METHODS)
    assert found["alone"]["dp"] is False
    assert found["proxyfl"] == {**vars(METHODS["proxyfl"])}


def test_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """People get a table with every method, what is exchanged, and whether there is DP."""
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["methods"]) == 0
    rows = {
        line.split("│")[1].strip(): line
        for line in capsys.readouterr().out.splitlines()
        if "│" in line
    }
    assert set(METHODS) <= set(rows)
    assert "pushsum" in rows["proxyfl"]
    assert " no " in rows["alone"]
    assert "pooled" in rows["joint"]
