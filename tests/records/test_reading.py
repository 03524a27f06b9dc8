"""Reading runs is quick, and folders of release 0.1 are read or refused with a sentence."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

import proxyfl
from proxyfl.cli.main import main
from proxyfl.errors import RunError
from proxyfl.simulation.run import resume

OLD = Path(__file__).parent / "release-0.1"
"""Two small runs that release 0.1 wrote (commit a11dff4), without their weights: one finished, in
which client 0's budget was spent in the last round, and one cut off in round 5 of 6."""

BEFORE = Path(__file__).parent / "before" / "run"
"""A small run with its models, written by commit 292ca6c, before simulation and site were one."""

HEAVY = ("torch", "numpy", "scipy", "pandas", "dp_accounting")

COMMANDS = {
    "table": "main(['table', run, '--json'])",
    "report": "main(['report', run, '--out', out])",
    "load": "proxyfl.load(run).runs[0].gain('fedavg', 0)",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_readers_import_nothing_heavy(command: str, tmp_path: Path) -> None:
    """`table`, `report` and `load` import neither PyTorch nor NumPy nor what builds on them."""
    code = (
        "import sys, proxyfl; from proxyfl.cli.main import main; run, out = sys.argv[1:];"
        f"{COMMANDS[command]}; print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    line = [sys.executable, "-c", code, str(OLD / "finished"), str(tmp_path / "page.html")]
    found = subprocess.run(line, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"


def test_a_folder_of_release_0_1_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    """Its gains are those that release 0.1 printed in the terminal, also of a client that left."""
    (run,) = proxyfl.load(OLD / "finished")
    assert run.finished
    assert run.measure == "accuracy"
    printed = [-0.025069637883008353, -0.20334261838440112, -0.11420612813370476]
    assert [run.gain("fedavg", client) for client in range(3)] == pytest.approx(printed)
    assert run.departures("fedavg") == {0: "budget spent after 17 steps"}
    assert main(["table", str(OLD / "finished"), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["rows"][1]
    assert row["comparison"]["over_clients"]["difference"] == pytest.approx(sum(printed) / 3)


def test_a_cut_folder_of_release_0_1_is_shown(tmp_path: Path) -> None:
    """A report shows it as far as it got, and says that it is not finished."""
    shutil.copytree(OLD / "cut", tmp_path / "cut")
    assert main(["report", str(tmp_path / "cut")]) == 0
    (run,) = proxyfl.load(tmp_path / "cut")
    assert not run.finished
    assert run.gain("fedavg", 1) is not None


@pytest.mark.parametrize("name", ["finished", "cut"])
def test_a_folder_of_release_0_1_is_not_resumed(name: str) -> None:
    """Resuming it is refused with a sentence that names the release that can."""
    with pytest.raises(
        RunError, match=r"begun by release 0\.1\.0 of proxyfl.*Install that release"
    ):
        resume(OLD / name)


def test_final_records_lie_on_disk_once(tmp_path: Path) -> None:
    """A finished run has its final records in its summary, and no copy of them besides."""
    config = proxyfl.Config(rounds=1, methods=("alone",))
    proxyfl.run(config, out=tmp_path / "run")
    assert not (tmp_path / "run" / "ended").exists()
    assert not list((tmp_path / "run" / "checkpoints").glob("*/*"))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert len(summary["methods"]["alone"]["clients"]) == 8


def test_a_folder_of_before_answers_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`load`, `table`, `report`, `certificate` and `predict` read what an earlier commit wrote."""
    folder = tmp_path / "run"
    shutil.copytree(BEFORE, folder)
    (run,) = proxyfl.load(folder)
    written = json.loads((folder / "summary.json").read_text())["methods"]
    for client in range(3):
        alone, joined = (
            written[name]["clients"][client]["private_accuracy"] for name in ("alone", "proxyfl")
        )
        assert run.gain("proxyfl", client) == pytest.approx(joined - alone)
    digits = load_digits().images[:5, None].astype("float32") / 16
    np.save(tmp_path / "new.npy", digits)
    for command in (
        ["table", str(folder)],
        ["report", str(folder)],
        ["certificate", str(folder)],
        ["predict", str(folder), str(tmp_path / "new.npy"), "--client", "1"],
    ):
        assert main(command) == 0, command
    assert "(0.399, 0.00409)" in capsys.readouterr().out
