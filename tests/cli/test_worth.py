"""``proxyfl worth``: a verdict from public facts, and a rehearsal that measures."""

import json
import tomllib
from pathlib import Path

import pytest

from proxyfl.cli.main import main
from proxyfl.simulation.config import load

FACTS = ["--clients", "4", "--examples", "184", "--parameters", "50"]
RARE = ["--clients", "29", "--examples", "300", "--parameters", "26", "--prevalence", "0.05"]


def test_the_verdict_and_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    """The first three lines say whether to join, the gain with its spread, and the price; then
    come the settings."""
    assert main(["worth", *FACTS, "--epsilon", "3", "--alone", "0.7"]) == 0
    said = capsys.readouterr().out
    verdict, gain, price = said.splitlines()[:3]
    assert verdict == "Join."
    assert "one run in six ends below" in gain
    assert price.startswith("It costs epsilon 3 (delta 0.00054) against all other members")
    for setting in ("privacy.sampling_rate=1.0", "exchange.settle=auto"):
        assert setting in said


def test_a_masked_sum_has_two_epsilons(capsys: pytest.CaptureFixture[str]) -> None:
    """With --colluders the price names the coalition and what is left if all others collude."""
    line = ["worth", *RARE, "--epsilon", "1", "--score", "0.75", "--colluders", "14"]
    assert main(line) == 0
    said = capsys.readouterr().out
    assert "against up to 14 colluding members, " in said
    assert "if all others collude" in said
    assert "exchange.colluders=14" in said
    assert "exchange.settle=1\n" in said


def test_two_sites_cannot_do_this(capsys: pytest.CaptureFixture[str]) -> None:
    """Where the noise takes nearly all, the command says so, and what would be enough."""
    line = ["worth", "--clients", "2", "--examples", "230", "--parameters", "62"]
    assert main([*line, "--epsilon", "1", "--score", "0.85", "--prevalence", "0.35"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("Do not join: 2 sites of this size cannot do this at epsilon 1.")
    assert "It would take" in said


def test_ones_own_score_decides(capsys: pytest.CaptureFixture[str]) -> None:
    """A site whose own model is as good as the literature's is told to stay."""
    assert main(["worth", *FACTS, "--epsilon", "1", "--alone", "0.8"]) == 1
    assert "your own model is as good" in capsys.readouterr().out


def test_a_site_that_is_too_small_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The least size is said, and what a smaller site counts best for under gossip; in a masked sum
    the least size is smaller by the honest members, and nobody counts for less."""
    line = ["worth", *RARE, "--epsilon", "1", "--smallest", "50", "--json"]
    main(line)
    gossip = json.loads(capsys.readouterr().out)
    assert 50 < gossip["least_size"] < 300
    least = gossip["least_size"]
    assert gossip["weight_of_smallest"] == pytest.approx(50 / (50 + least), abs=0.01)
    main([*line, "--colluders", "14"])
    masked = json.loads(capsys.readouterr().out)
    assert masked["least_size"] == pytest.approx(least / 15, abs=1)
    assert masked["weight_of_smallest"] is None
    main(line[:-1])
    assert "learning.weight = " in capsys.readouterr().out


def test_the_smallest_and_the_largest_site(capsys: pytest.CaptureFixture[str]) -> None:
    """Each has its line, and delta follows from the largest."""
    sizes = ["--smallest", "50", "--largest", "2000"]
    main(["worth", *RARE, "--epsilon", "1", *sizes])
    said = capsys.readouterr().out
    assert "The smallest site (50 examples)" in said
    assert "The largest site (2,000 examples)" in said
    assert "(delta 5e-05)" in said
    assert main(["worth", *RARE, "--epsilon", "1", "--smallest", "301"]) == 2
    assert "--smallest" in capsys.readouterr().err


def test_the_settings_as_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--out writes a study that runs as soon as it names its data, and never overwrites one."""
    out = tmp_path / "study.toml"
    line = ["worth", *RARE, "--epsilon", "3", "--score", "0.8", "--colluders", "14"]
    main([*line, "--out", str(out)])
    assert f"proxyfl run {out}" in capsys.readouterr().out
    config = load(out)
    assert config.methods == ("alone", "proxysum", "pooled")
    assert config.exchange.colluders == 14
    assert config.privacy.sampling_rate == 1.0
    assert tomllib.loads(out.read_text())["rounds"] == 41
    assert main([*line, "--out", str(out)]) == 2
    assert "exists" in capsys.readouterr().err


def test_not_worth_it(capsys: pytest.CaptureFixture[str]) -> None:
    """At a budget that drowns the proxy the exit code is 1."""
    assert main(["worth", *FACTS, "--epsilon", "0.05", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["expected"]["join"] is False
    assert document["expected"]["share"] < 0.1
    assert document["rehearsal"] is None


def test_a_rehearsal_measures(capsys: pytest.CaptureFixture[str]) -> None:
    """On a public dataset the gain is measured, within the budget."""
    facts = ["--clients", "2", "--examples", "60", "--parameters", "650"]
    line = [*facts, "--classes", "10", "--epsilon", "8"]
    main(["worth", *line, "--rehearsal", "digits", "--json"])
    found = json.loads(capsys.readouterr().out)["rehearsal"]
    assert 0 < found["epsilon"] <= 8
    assert 0.3 < found["alone"] < 1
    assert found["measure"] == "accuracy"


def test_a_rehearsal_with_other_classes(capsys: pytest.CaptureFixture[str]) -> None:
    """A rehearsal with another number of classes is refused by name."""
    line = ["worth", *FACTS, "--epsilon", "1", "--rehearsal", "digits"]
    assert main(line) == 2
    assert "--classes" in capsys.readouterr().err
