"""``proxyfl run``: what it prints, to whom, and what it leaves."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

from proxyfl.cli.main import main
from proxyfl.records import folder
from proxyfl.simulation.config import Config, from_tree, keys, load
from proxyfl.simulation.progress import Progress
from proxyfl.simulation.run import run as run_config
from tests.waiting import PATIENCE, wait_until

TINY = [
    "rounds=2",
    "partition.clients=2",
    "partition.examples=30",
    "learning.batch_size=15",
    "methods=alone,proxyfl",
]


def arguments(*more: str) -> list[str]:
    return [part for one in (*TINY, *more) for part in ("--set", one)]


def test_json_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json standard output is one JSON document, standard error is empty, and the folder is
    named."""
    assert (
        main(["run", *arguments(), "--out", str(tmp_path / "run"), "--json", "--workers", "1"]) == 0
    )
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert printed.err == ""
    assert found["out"] == str(tmp_path / "run")
    assert [c["name"] for c in found["clients"]] == ["client-0", "client-1"]
    record = found["methods"]["proxyfl"]["clients"][1]
    assert (record["round"], record["epsilon_kind"]) == (1, "end-to-end")
    assert found["methods"]["alone"]["clients"][0]["epsilon_pld"] is None


def test_plain_lines_in_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is no terminal: progress as lines on standard error, the result on standard
    output, no escapes."""
    assert main(["run", *arguments(), "--out", str(tmp_path / "run"), "--workers", "1"]) == 0
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    assert "2 clients, digits, 2 rounds, methods alone, proxyfl\n" in printed.err
    last = printed.err.splitlines()[-1]
    assert last.startswith("proxyfl: round 2/2")
    assert "end-to-end" in last
    words = " ".join(printed.out.split())  # wherever the lines break
    assert words.startswith("proxyfl: Joining ")
    assert "What each client gains over training alone" not in words, "that is for --explain"
    assert f"Recorded in {tmp_path / 'run'}" in printed.out
    assert f"Next: proxyfl report {tmp_path / 'run'}" in printed.out


def test_print_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--print-config prints TOML that gives the same config when read, and runs nothing."""
    monkeypatch.chdir(tmp_path)
    assert (
        main(
            ["run", *arguments("models.private=mlp,cnn1"), "--data-dir", 'a "b"', "--print-config"]
        )
        == 0
    )
    (tmp_path / "c.toml").write_text(capsys.readouterr().out)
    config = load(tmp_path / "c.toml")
    assert config.each == {"models.private": ("mlp", "cnn1")}
    assert (config.data.directory, config.rounds) == ('a "b"', 2)
    assert main(["run", "c.toml", "--print-config"]) == 0
    assert capsys.readouterr().out == (tmp_path / "c.toml").read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["c.toml"]


def test_the_defaults_are_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Without arguments --print-config shows the demo's settings, those without a value too."""
    assert main(["run", "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert from_tree(tomllib.loads(printed)) == Config()
    shown = set(re.findall(r"^(?:# )?(\w+) =", printed, re.MULTILINE))
    assert shown == {key.rpartition(".")[2] for key in keys()}
    assert "# budget =    # absent; takes a number, or a list with one for each client" in printed


def test_a_folder_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    """Without --out a run gets a new folder below runs/, named by time and data."""
    monkeypatch.chdir(tmp_path)
    assert main(["run", *arguments("methods=alone", "rounds=1"), "--json", "--workers", "1"]) == 0
    (path,) = (tmp_path / "runs").iterdir()
    assert path.name.endswith("-digits")
    assert json.loads(capsys.readouterr().out)["out"] == f"runs/{path.name}"


def test_a_live_table_on_a_terminal() -> None:
    """On a terminal the table has a row per method with round, accuracies and epsilon with its
    kind."""
    console = Console(force_terminal=True, width=120, file=io.StringIO())
    config = load(None, TINY)
    with Progress(console=console) as progress:
        run_config(config, callbacks=[progress])
        view = progress.view()
    screen = Console(width=120, record=True, file=io.StringIO())
    screen.print(view)
    text = screen.export_text()
    (row,) = [line for line in text.splitlines() if "proxyfl" in line]
    assert "2/2" in row
    assert "end-to-end" in row
    assert "kB" in row
    (row,) = [line for line in text.splitlines() if "alone" in line]
    assert "no DP" in row


def start(path: Path, *more: str) -> subprocess.Popen[str]:
    """A real process with a run too long to wait for."""
    sets = [
        part
        for one in ("rounds=100000", *TINY[1:], "methods=proxyfl", *more)
        for part in ("--set", one)
    ]
    command = [
        sys.executable,
        "-m",
        "proxyfl.cli.main",
        "run",
        *sets,
        "--out",
        str(path),
        "--workers",
        "1",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_interrupted(tmp_path: Path) -> None:
    """Ctrl-C ends a run long before its time: exit code 130, readable records, no traceback."""
    process = start(tmp_path / "run")
    try:
        metrics = tmp_path / "run" / "metrics.jsonl"

        def at_work() -> bool:
            assert process.poll() is None, process.stderr.read()
            return metrics.exists() and metrics.read_text().count("\n") >= 6

        wait_until(at_work)
        process.send_signal(signal.SIGINT)
        err = ""
        while "interrupted" not in err:
            err += process.stderr.readline() or pytest.fail(f"ended without a word: {err}")
        err += process.communicate(timeout=PATIENCE)[1]
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
    rows = list(folder.read_metrics(tmp_path / "run"))
    assert [row["round"] for row in rows] == [r for r in range(len(rows) // 2) for _ in range(2)]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["methods"]["proxyfl"]
