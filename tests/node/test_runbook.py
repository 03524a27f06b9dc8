"""The runbook's commands run as printed, in the order in which they stand there."""

import contextlib
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxyfl.cli.main import main
from proxyfl.node.observe.prometheus import METRICS
from tests.node.federations import quick, running, trial

ROOT = Path(__file__).parents[2]
RUNBOOK = (ROOT / "docs" / "guides" / "runbook.md").read_text()

TYPED = ("Is it healthy?", "Back up", "Restore", "Move to another machine", "Upgrade", "Revoke")
"""Sections whose commands need nothing but a site that has run and is stopped."""

NOT_READY = {"health", "preflight"}
"""Commands that say by exit code 1 that this site does not run, or that its peers do not."""


def sections() -> dict[str, str]:
    """The runbook's sections by title."""
    parts = re.split(r"^## (.*)$", RUNBOOK, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in ``folder``."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def test_commands_run_as_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Typed one after the other next to a site that has run, each ends as the page says."""
    layout = trial.lay_out(tmp_path / "study", sites=4, rounds=1, template=quick())
    with running(layout) as made:
        made.join()
    for place in layout.sites:
        (tmp_path / place.name).symlink_to(place)
    typed = []
    with inside(tmp_path):
        for title, text in sections().items():
            if not title.startswith(TYPED):
                continue
            for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
                for line in block.splitlines():
                    words = shlex.split(line)
                    assert words.pop(0) == "proxyfl"
                    code = main(words)
                    allowed = {0, 1} if NOT_READY & set(words) else {0}
                    assert code in allowed, f"{line}: {capsys.readouterr().err}"
                    typed.append(line)
    assert len(typed) >= 10
    assert (tmp_path / "north-again" / "restored.json").exists()
    assert "version 2" in capsys.readouterr().out


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_explained(name: str) -> None:
    """The page lists every metric with the meaning that `/metrics` states."""
    assert f"| `{name}` | {METRICS[name][1]} |" in RUNBOOK


def test_every_alert_is_explained() -> None:
    """What to do stands beside every alert, and no alert is explained that there is not."""
    rules = (ROOT / "deploy" / "prometheus-alerts.yaml").read_text()
    alerts = set(re.findall(r"- alert: (\w+)", rules))
    explained = set()
    for row in re.findall(r"^\| (ProxyFL[^|]*) \|", sections()["Alerts"], re.MULTILINE):
        explained |= set(row.split(", "))
    assert explained == alerts


def test_files_of_deploy_exist() -> None:
    """Every file of deploy/ that the page names is there."""
    names = set(re.findall(r"`(deploy/[\w.-]+)`", RUNBOOK))
    assert len(names) >= 4
    assert not [name for name in names if not (ROOT / name).exists()]
