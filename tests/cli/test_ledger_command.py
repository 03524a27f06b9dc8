"""The ledger command, called as the program calls it."""

import json
from pathlib import Path

import pytest

from proxyfl.cli.main import main
from proxyfl.privacy.guarantee import Kind
from proxyfl.privacy.ledger import Ledger


@pytest.fixture
def sites(tmp_path: Path) -> list[str]:
    """Two studies of one site, each in its own folder."""
    found = []
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "ledger.jsonl"
        ledger = Ledger(
            "north", delta=1e-4, kind=Kind.END_TO_END, simulated=False, path=path
        )
        ledger.charge(0, 30, 0.1, 2.0)
        found.append(str(tmp_path / name))
    return found


def test_the_total_and_what_is_left(
    sites: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each study and the total are stated; within the budget the exit code is 0, beyond it 1."""
    assert main(["ledger", *sites, "--budget-epsilon", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    alone = [study["pld"] for study in found["studies"]]
    assert max(alone) < found["total"]["pld"] < sum(alone)
    assert (found["exceeded"], found["simulation"]) == (False, False)
    assert found["steps_left"] > 0
    assert main(["ledger", *sites, "--budget-epsilon", "0.5"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "together" in out
    assert "More than the budget of 0.5 is spent" in out


def test_what_cannot_be_used(
    sites: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A ledger that is given twice, by whichever name, and a folder without one are refused."""
    assert main(["ledger", sites[0], f"{sites[0]}/ledger.jsonl"]) == 2
    assert "twice" in capsys.readouterr().err
    assert main(["ledger", str(tmp_path)]) == 2
    assert "folder without ledger.jsonl" in capsys.readouterr().err
