"""``proxyfl audit``: from a config or a run to a verdict."""

import json
from pathlib import Path
from typing import Any

import pytest

from proxyfl.audit.finding import audit
from proxyfl.audit.shadows import TARGETS
from proxyfl.cli.main import main
from proxyfl.privacy import dpsgd
from proxyfl.records import reading
from proxyfl.report.document import document
from tests.audit.settings import SMALL, small


def arguments(*more: str) -> list[str]:
    words = ["audit", "--canaries", "40", "--json", *more]
    for setting in (*SMALL, "rounds=10"):
        words += ["--set", setting]
    return words


def test_a_sound_config_is_not_contradicted(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0, and the document holds claim, bound, ceiling, confidence and verdict."""
    assert main(arguments()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "not contradicted"
    assert 0 < found["lower_bound"] <= found["epsilon"]
    assert found["ceiling"] > 0
    assert found["confidence"] == 0.95
    assert found["method"] == "step by step"


def test_missing_noise_gives_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mechanism that forgets its noise is found out."""

    def forget(flat: Any, **_: Any) -> None:
        pass

    monkeypatch.setattr(dpsgd, "add_noise", forget)
    assert main(arguments()) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "exceeded"
    assert found["lower_bound"] > found["epsilon"]


def test_a_runs_folder_gives_its_settings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The folder of a run stands for the config in it."""
    settings = [word for word in arguments() if word not in ("audit", "--canaries", "40")]
    assert main(["run", "--out", str(tmp_path / "a"), "--workers", "1", *settings]) == 0
    capsys.readouterr()
    path = tmp_path / "a"
    assert main(["audit", str(path), "--canaries", "40"]) == 0
    printed = capsys.readouterr().out
    assert "does not contradict" in printed
    assert "recorded by the run" in printed
    kept = json.loads((path / "audit.json").read_text())
    run = reading.read(path)
    spent = run.spent("avgpush", 0)
    assert spent is not None
    assert kept["epsilon"] == spent.best
    assert kept["claim"] == "recorded by the run"
    assert document([run])["runs"][0]["additions"]["audit"] == kept
    assert main(["certificate", str(path)]) == 0
    assert f"lower_bound {kept['lower_bound']}" in capsys.readouterr().out


def test_a_bound_above_what_the_run_recorded_gives_exit_code_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A run that recorded less than it spent is found out."""
    config = small(rounds=10)
    found = audit(config, canaries=40, recorded=0.01)
    assert found.epsilon == 0.01
    assert found.verdict == "exceeded"


def test_membership_is_resumed_and_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A second call trains only what is missing; other settings are refused."""
    words = ["audit", "--membership", "--json", "--out", str(tmp_path)]
    for setting in (*SMALL, "rounds=1", "privacy.noise_multiplier=1"):
        words += ["--set", setting]
    assert main([*words, "--shadows", "8"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert [row["target"] for row in first["targets"]] == list(TARGETS)
    assert first == json.loads((tmp_path / "membership.json").read_text())
    record = tmp_path / "shadows.jsonl"
    lines = record.read_text().splitlines()
    record.write_text("\n".join([*lines[:7], lines[7][:20]]))
    assert main([*words, "--shadows", "8"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert record.read_text().splitlines() == lines
    assert again == first
    assert main([*words, "--shadows", "8", "--client", "1"]) == 2
    assert "other settings" in capsys.readouterr().err


def test_what_shares_nothing_with_dp_cannot_be_audited(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and the message says which method to name."""
    assert main(["audit", "--set", "methods=alone"]) == 2
    assert "nothing to audit" in capsys.readouterr().err
