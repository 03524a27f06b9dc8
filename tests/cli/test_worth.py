"""``proxyfl worth``: a verdict from public facts, and a rehearsal that measures."""

import json

import pytest

from proxyfl.cli.main import main

FACTS = ["--clients", "4", "--examples", "184", "--parameters", "50"]


def test_the_verdict_and_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    """The command says whether to join, and which settings to take."""
    assert main(["worth", *FACTS, "--epsilon", "1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Join.")
    for setting in ("privacy.sampling_rate=1.0", "exchange.settle=auto"):
        assert setting in said


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
