"""``proxyfl topology``."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxyfl.cli.main import parser
from proxyfl.errors import TopologyError


def run(*words: str) -> int:
    arguments = parser("topology").parse_args(["topology", *words])
    return arguments.run(arguments)  # type: ignore[no-any-return]


def machine(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run(*words, "--json") == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def human(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(*words) == 0
    return capsys.readouterr().out


def test_json_holds_the_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints one document: who sends which share to whom in each round, and what it
    costs."""
    words = [
        "exponential",
        "--clients",
        "4",
        "--rounds",
        "2",
        "--self-weight",
        "0.25",
        "--parameters",
        "650",
    ]
    found = machine(capsys, *words)
    assert [row["shares"][3] for row in found["rounds"]] == [
        {"3": 0.25, "0": 0.75},
        {"3": 0.25, "1": 0.75},
    ]
    assert found["rounds"][0]["most_per_client"] == {
        "messages_sent": 1,
        "messages_received": 1,
        "bytes_sent": 2600,
        "bytes_received": 2600,
    }
    assert found["column_sums_ok"] is True
    assert found["heard_by"] == [2, 4]


def test_mixing_reports_when_all_have_heard(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a self weight the answer is ceil(log2 K) rounds, for machines and for people."""
    assert (
        machine(capsys, "exponential", "--clients", "9", "--self-weight", "0.5")["all_heard_after"]
        == 4
    )
    text = human(capsys, monkeypatch, "exponential", "--clients", "9", "--self-weight", "0.5")
    assert "Everyone has heard from everyone after 4 rounds." in text


def test_the_permutation_reports_what_does_hold(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With self weight 0 nobody hears from all, and a proxy has been with 1 + log2 K clients after
    log2 K rounds."""
    found = machine(capsys, "exponential", "--clients", "8", "--rounds", "3")
    assert found["all_heard_after"] is None
    assert found["been_with"] == [2, 3, 4]
    assert found["been_with_all_after"] == 12
    assert found["consensus_error"] == pytest.approx([1, 1, 1])
    text = human(capsys, monkeypatch, "exponential", "--clients", "8", "--rounds", "3")
    assert "passed on whole" in text
    assert "After 3 rounds each proxy has been with 4 of 8 clients" in text
    assert "--self-weight 0.5" in text


def test_many_clients_are_shown_in_brief(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many clients the first eight and the rule are printed; --json lists all."""
    text = human(capsys, monkeypatch, "complete", "--clients", "100", "--rounds", "1")
    assert "first 8 of 100" in text
    assert "7→0,1,2,3,4,5,6,8+91 more" in text
    assert "8→" not in text
    assert "Send equal shares to all others" in text
    assert (
        len(machine(capsys, "complete", "--clients", "100", "--rounds", "1")["rounds"][0]["shares"])
        == 100
    )


def test_unequal_costs_show_the_most(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Messages are counted for the client with the most, from a user's own matrix too."""
    star = np.array([[1.0, 0.5, 0.5], [0.0, 0.5, 0.0], [0.0, 0.0, 0.5]])
    np.save(tmp_path / "star.npy", star)
    found = machine(capsys, str(tmp_path / "star.npy"), "--clients", "3", "--rounds", "1")
    assert found["rounds"][0]["most_per_client"] == {"messages_sent": 1, "messages_received": 2}
    assert found["all_heard_after"] is None


@pytest.mark.parametrize("clients", ["1", "2"])
def test_smallest_federations_work(
    clients: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client and two clients are printed like any other number."""
    assert f"{clients} client" in human(capsys, monkeypatch, "exponential", "--clients", clients)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["exponential", "--clients", "0"], "--clients >= 1, got --clients=0"),
        (["exponential", "--rounds", "0"], "--rounds >= 1"),
        (["exponential", "--limit", "0"], "--limit >= 1"),
        (["exponential", "--parameters", "0"], "--parameters >= 1"),
        (["exponential", "--self-weight", "1"], "self_weight=1"),
        (["star"], "Unknown topology 'star'"),
    ],
)
def test_bad_input_is_refused(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be used is a TopologyError that names it, and nothing is printed."""
    with pytest.raises(TopologyError, match=reason):
        run(*words)
    assert capsys.readouterr().out == ""


def test_a_matrix_that_loses_mass_is_refused_with_its_column(tmp_path: Path) -> None:
    """A file whose column does not sum to 1 is refused with the file, the column and the sum."""
    (tmp_path / "p.json").write_text("[[0.5, 0.3], [0.5, 0.6]]")
    with pytest.raises(TopologyError, match=r"p\.json: Matrix 0 of 1: Column 1 .* sums to 0\.9"):
        run(str(tmp_path / "p.json"), "--clients", "2")


def test_too_many_clients_are_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """What would take minutes is refused with the reason and what to ask for instead."""
    with pytest.raises(TopologyError, match=r"at most 1,000,000 shares .*got 1,700,000. Ask for"):
        run("ring", "--clients", "100000")
    with pytest.raises(TopologyError, match=r"at most 1,000,000 shares .*Ask for fewer --clients"):
        run("complete", "--clients", "2000", "--self-weight", "0.5")


def test_many_clients_get_what_can_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Above some thousands the graph is shown, and why who has heard from whom is not."""
    assert run("ring", "--clients", "5001", "--rounds", "1") == 0
    assert "worked out for at most 5,000 clients" in " ".join(capsys.readouterr().out.split())
