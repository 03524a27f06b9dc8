"""The ledger command, called as the program calls it."""

import json
from pathlib import Path

import pytest

from proxyfl.cli.main import main
from proxyfl.privacy.account import Account
from proxyfl.privacy.guarantee import Kind
from proxyfl.privacy.ledger import Ledger


@pytest.fixture
def sites(tmp_path: Path) -> list[str]:
    """Two studies of one site, each in its own folder."""
    found = []
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "ledger.jsonl"
        ledger = Ledger("north", delta=1e-4, kind=Kind.END_TO_END, simulated=False, path=path)
        ledger.charge(0, 30, 0.1, 2.0)
        found.append(str(tmp_path / name))
    return found


def test_the_total_and_what_is_left(sites: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each study and the total are stated; within the budget the exit code is 0, beyond it 1."""
    assert main(["ledger", "sum", *sites, "--budget-epsilon", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    alone = [study["pld"] for study in found["studies"]]
    assert max(alone) < found["total"]["pld"] < sum(alone)
    assert (found["exceeded"], found["simulation"]) == (False, False)
    assert found["steps_left"] > 0
    assert main(["ledger", "sum", *sites, "--budget-epsilon", "0.5"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "together" in out
    assert "More than the budget of 0.5 is spent" in out


def test_what_cannot_be_used(
    sites: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A ledger that is given twice, by whichever name, and a folder without one are refused."""
    assert main(["ledger", "sum", sites[0], f"{sites[0]}/ledger.jsonl"]) == 2
    assert "twice" in capsys.readouterr().err
    assert main(["ledger", "sum", str(tmp_path)]) == 2
    assert "folder without ledger.jsonl" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::proxyfl.privacy.accounting.AccountingWarning")
@pytest.mark.parametrize(("steps", "shown"), [(10**30, "3.528e+26"), (10**400, "inf")])
def test_numbers_of_steps_that_nobody_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int, shown: str
) -> None:
    """The commands state the cost of such a ledger, and that it is above every budget."""
    (tmp_path / "site").mkdir()
    path = tmp_path / "site" / "ledger.jsonl"
    ledger = Ledger("north", delta=1e-5, kind=Kind.END_TO_END, simulated=False, path=path)
    ledger.charge(0, steps, 0.1, 4.0)
    folder = str(tmp_path / "accounts")
    assert main(["ledger", "open", folder, "--delta", "1e-5", "--budget-epsilon", "5"]) == 0
    assert main(["ledger", "enter", folder, str(path)]) == 0
    capsys.readouterr()
    for command in (
        ["ledger", "sum", str(path), "--budget-epsilon", "5"],
        ["ledger", "show", folder],
        ["ledger", "list", folder],
    ):
        assert main(command) == 1
        assert shown in capsys.readouterr().out
    assert main(["certificate", str(tmp_path / "site")]) == 0


def test_an_account_from_opening_to_the_last_step(
    sites: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An account is opened, earlier studies are entered, and list and show say what was spent, by
    whom, and what is left; beyond the budget the exit code is 1."""
    folder = tmp_path / "accounts"
    opening = ["ledger", "open", str(folder), "--delta", "1e-4"]
    assert main([*opening, "--budget-epsilon", "1.5"]) == 0
    assert "epsilon 1.5 per record" in capsys.readouterr().out
    assert main(["ledger", "list", str(folder)]) == 0
    assert "Nothing was charged" in capsys.readouterr().out
    assert main(["ledger", "enter", str(folder), sites[0]]) == 0
    assert "1 charges entered" in capsys.readouterr().out
    account = Account(folder)
    rehearsal = Ledger(
        "north", delta=1e-4, kind=Kind.END_TO_END, simulated=True, path=tmp_path / "rehearsal.jsonl"
    )
    rehearsal.page = account.page(("cardiology",), rehearsal, study="run rehearsal")
    rehearsal.charge(0, 5, 0.1, 2.0)
    assert main(["ledger", "list", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    names = [one["population"] for one in found["populations"]]
    assert names == ["every", "cardiology"]
    spent = found["populations"][1]["spent"]["pld"]
    assert spent == found["populations"][0]["spent"]["pld"] > 0
    assert main(["ledger", "show", str(folder), "card", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert one["releases"][0]["study"].startswith("earlier study")
    assert one["releases"][0]["mechanism"] == "DP-SGD"
    assert one["releases"][0]["steps"] == 30
    assert one["simulations"][0]["study"] == "run rehearsal"
    assert one["steps_left"] > 0
    assert one["unit"] == "record"
    assert main(["ledger", "show", str(folder), "cardiology"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Not counted, a simulation: run rehearsal (north), 5 steps." in out
    assert "Population cardiology." in out
    assert main(["ledger", "show", str(folder), "every"]) == 0
    assert "It stands for all" in " ".join(capsys.readouterr().out.split())
    assert main(["ledger", "enter", str(folder), sites[1], "--population", "stroke + hernia"]) == 0
    capsys.readouterr()
    assert main(["ledger", "list", str(folder), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    exceeded = {one["population"]: one["exceeded"] for one in found["populations"]}
    assert exceeded == {"every": True, "cardiology": False, "stroke": True, "hernia": True}
    assert main(["ledger", "enter", str(folder), sites[1], "--population", "every + a"]) == 2
    assert main(["ledger", "list", str(folder)]) == 1
    assert "EXCEEDED" in capsys.readouterr().out


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    """The help says what an account is, how to use one, and what it cannot see."""
    with pytest.raises(SystemExit):
        main(["ledger", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    for said in ("privacy.account", "privacy.population", "ledger open", "cannot be seen"):
        assert said in out
