"""The programs in examples/, run."""

import json
from pathlib import Path

import pytest

from examples import dpsgd, fedprox, four_hospitals, own_loop, survival, three_sites, trimmed_mean

EXAMPLES = Path(dpsgd.__file__).parent
NOTEBOOKS = ("is_joining_worth_it", "survival_by_hand")


def test_dpsgd_alone_keeps_its_budget() -> None:
    """A loss of one's own, real noise, and an end before the budget is exceeded."""
    trainer = dpsgd.main(steps=300, records=500)
    assert not trainer.ledger.simulated
    assert trainer.epsilon().pld <= 2.0
    assert str(trainer.gradients) == "proven"


def test_a_loop_of_ones_own_learns_and_mixes() -> None:
    """Five sites by hand: all know more than chance, and their proxies have come together."""
    accuracies = own_loop.main(rounds=8)
    assert min(accuracies) > 0.7
    assert max(accuracies) - min(accuracies) < 0.1


def test_four_hospitals_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hospital has an AUROC alone and joined, at the epsilon that was asked for."""
    monkeypatch.setattr(four_hospitals, "ROUNDS", 10)
    result = four_hospitals.main()
    assert len(result.clients) == 4
    spent = result.epsilon("proxyfl")
    assert spent is not None
    assert 0.9 < spent.pld <= 1.0
    for client in result.clients:
        assert result.kept("proxyfl", client) is not None


@pytest.mark.parametrize("example", [fedprox, trimmed_mean])
def test_methods_of_ones_own(example: object, capsys: pytest.CaptureFixture[str]) -> None:
    """FedProx and the trimmed mean run in simulation with two workers."""
    result = example.main(rounds=2, workers=2)  # type: ignore[attr-defined]
    printed = capsys.readouterr().out
    for name in result.methods:
        assert f"{name} " in printed
        assert result.accuracy(name, client=0) > 0


def test_survival_in_small_hospitals(capsys: pytest.CaptureFixture[str]) -> None:
    """Every hospital has a C-index alone and joined, and survival that falls; epsilon is kept."""
    result = survival.main(rounds=10)
    assert len(result.clients) == 8
    spent = result.epsilon("proxyfl")
    assert spent is not None
    assert spent.pld <= 2.0
    for client in result.clients:
        assert (result.kept("proxyfl", client) or 0) > 0.6
    predicted = [point[1] for point in result.final("proxyfl", 0)["private_survival"]]
    assert predicted == sorted(predicted, reverse=True)
    assert "hospital-8: C-index" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_from_top_to_bottom(name: str, tmp_path: Path) -> None:
    """Every cell runs in a fresh kernel, in an empty folder."""
    client = pytest.importorskip("nbclient")
    book = pytest.importorskip("nbformat").read(EXAMPLES / f"{name}.ipynb", 4)
    folder = {"metadata": {"path": str(tmp_path)}}
    client.NotebookClient(book, timeout=600, resources=folder).execute()
    assert any(cell.get("outputs") for cell in book.cells)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_kept_without_its_outputs(name: str) -> None:
    """What a notebook printed on somebody's machine is in no commit."""
    book = json.loads((EXAMPLES / f"{name}.ipynb").read_text())
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert len(code) > 3
    for cell in code:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_sites_in_one_script(tmp_path: Path) -> None:
    """Three real sites are founded, run and end; one of them exports what it keeps."""
    printed = three_sites.main(tmp_path / "sites", rounds=2)
    for site, text in zip(three_sites.SITES, printed, strict=True):
        assert f"{site}: round 2 of 2" in text
        assert f"{site}: finished" in text
    assert (tmp_path / "sites" / "north-model" / "certificate.md").exists()


def test_every_example_is_run_and_listed() -> None:
    """A file in examples/ is in this test and in the README next to it."""
    names = {path.stem for path in EXAMPLES.glob("*.py")} - {"__init__"}
    run = (dpsgd, fedprox, four_hospitals, own_loop, survival, three_sites, trimmed_mean)
    assert names == {Path(each.__file__).stem for each in run}
    listed = (EXAMPLES / "README.md").read_text()
    for name in names:
        assert f"]({name}.py)" in listed
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == set(NOTEBOOKS)
    for name in NOTEBOOKS:
        assert f"]({name}.ipynb)" in listed
