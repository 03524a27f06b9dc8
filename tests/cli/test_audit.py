"""``proxyfl audit``: from a config or a run to a verdict."""

import json
from pathlib import Path
from typing import Any

import pytest

from proxyfl.cli.main import main
from proxyfl.privacy import dpsgd
from tests.audit.settings import SMALL


def arguments(*more: str) -> list[str]:
    words = ["audit", "--canaries", "40", "--json", *more]
    for setting in (*SMALL, "rounds=10"):
        words += ["--set", setting]
    return words


def test_a_sound_config_is_not_contradicted(
    capsys: pytest.CaptureFixture[str],
) -> None:
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
    settings = [
        word for word in arguments() if word not in ("audit", "--canaries", "40")
    ]
    assert (
        main(["run", "--out", str(tmp_path / "a"), "--workers", "1", *settings])
        == 0
    )
    capsys.readouterr()
    assert main(["audit", str(tmp_path / "a"), "--canaries", "40"]) == 0
    assert "does not contradict" in capsys.readouterr().out


def test_what_shares_nothing_with_dp_cannot_be_audited(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2, and the message says which method to name."""
    assert main(["audit", "--set", "methods=alone"]) == 2
    assert "nothing to audit" in capsys.readouterr().err
