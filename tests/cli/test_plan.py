"""The plan command, called as the program calls it."""

import json

import pytest

from proxyfl.cli.commands.plan import bar
from proxyfl.cli.main import main

LINE = ["plan", "--examples", "300", "--budget-epsilon", "0.5", "--delta", "1e-4", "--rounds", "2"]


def test_json_has_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option has its noise alone and averaged; sizes beyond the largest proxy are hopeless."""
    assert main([*LINE, "--parameters", "50", "--clients", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["batch"] for row in found["options"]] == [3, 9, 30, 90]
    for row in found["options"]:
        assert row["noise_alone"] == pytest.approx(2 * row["noise_averaged"])
    largest = found["largest_proxy"]
    assert largest == max(row["largest_proxy"] for row in found["options"])
    assert found["hopeless"]
    assert all(size > largest for size in found["hopeless"])


def test_a_hopeless_proxy_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The table is shown, the refusal says why, and the exit code is 1."""
    assert main([*LINE, "--parameters", "100000000"]) == 1
    shown = capsys.readouterr().out
    assert "…" not in shown
    out = " ".join(shown.split())
    assert "Refused: 100,000,000 parameters cannot be had" in out
    assert "hopeless" in out


def test_bars_are_to_scale() -> None:
    """A ratio of one has half of the bar for each; the noise grows with the ratio."""
    assert bar(1.0).count("█") == bar(1.0).count("░") == 12
    assert bar(0.0) == "█" * 24
    assert bar(1e9) == "░" * 24
