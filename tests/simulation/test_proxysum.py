"""The method ``proxysum``: one proxy for all through masked sums, in every engine the same."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from proxyfl.cli.main import main
from proxyfl.errors import ConfigError, TransportError
from proxyfl.federation import masked
from proxyfl.federation.masked import Plan, decode, encode
from proxyfl.federation.membership import Presence
from proxyfl.privacy import masks
from proxyfl.privacy.coalition import Coalition
from proxyfl.privacy.guarantee import largest
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.masks import Attempt
from proxyfl.records.reading import read
from proxyfl.records.row import epsilon
from proxyfl.report.document import cost
from proxyfl.report.graph import graph
from proxyfl.simulation.config import Config
from proxyfl.simulation.run import Callback, resume, run

from .engines import assert_equal_runs, rows, small


def settings(**changes: Any) -> Config:
    """Five clients, two steps a round."""
    return small(**({"methods": ["proxysum"]} | changes))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in one process."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    run(settings(), out=path)
    return path


def proxies(path: Path, method: str = "proxysum") -> list[dict[str, torch.Tensor]]:
    """Every client's proxy at the end."""
    return [load_file(each) for each in sorted((path / "models" / method).glob("*-proxy.*"))]


def assert_one_proxy(path: Path) -> None:
    """All clients have the same proxy, bit for bit."""
    first, *others = proxies(path)
    assert len(others) == 4
    for other in others:
        assert all(torch.equal(first[key], other[key]) for key in first)


def test_everybody_ends_with_the_same_proxy(whole: Path) -> None:
    """There is one proxy, and what was received is what it is."""
    assert_one_proxy(whole)
    last = [row for row in rows(whole) if row["round"] == 3]
    assert {row["proxy_accuracy"] for row in last} == {last[0]["received_accuracy"]}
    assert {row["weight"] for row in last} == {1.0}


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_change_nothing(workers: int, whole: Path, tmp_path: Path) -> None:
    """Two and three processes give the same metrics, ledgers and models as one, bit for bit."""
    run(settings(), out=tmp_path / "run", workers=workers)
    assert_equal_runs(whole, tmp_path / "run")


class StopAfter(Callback):
    """Stops a run after its second round."""

    def round_ended(self, name: str, round: int, rows: Any) -> None:
        """Raise as Ctrl-C would."""
        if round == 1:
            raise KeyboardInterrupt


def test_a_resumed_run_equals_an_uninterrupted_one(whole: Path, tmp_path: Path) -> None:
    """Cut off in the middle and continued by another number of processes, the end is the same."""
    with pytest.raises(KeyboardInterrupt):
        run(settings(), out=tmp_path / "run", callbacks=[StopAfter()])
    resume(tmp_path / "run", workers=2)
    assert_equal_runs(whole, tmp_path / "run")


def test_masks_change_no_bit_of_the_result(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With masks of zeros the proxy is the same: sums are exact."""
    monkeypatch.setattr(masks, "_stream", lambda _key, size: np.zeros(size, np.uint64))
    run(settings(), out=tmp_path / "run")
    assert_equal_runs(whole, tmp_path / "run")


def test_what_travels_is_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every frame of a run has values beyond the range of any honest vector: none is bare."""
    frames: list[bytes] = []

    def recording(*args: Any) -> bytes:
        frames.append(encode(*args))
        return frames[-1]

    monkeypatch.setattr(masked, "encode", recording)
    run(settings(), out=tmp_path / "run")
    assert len(frames) == 5 * 2 * 4
    for frame in frames:
        values = np.frombuffer(frame[48:], dtype="<u8").view(np.int64)
        assert np.mean(np.abs(values.astype(float)) > 2.0**60) > 0.7


def test_ledgers_rows_and_models_state_both_epsilons(whole: Path) -> None:
    """The default is a quorum of all and half of them colluders."""
    ledger = Ledger.read(whole / "ledger" / "proxysum" / "000.jsonl")
    assert {charge.coalition for charge in ledger.charges} == {Coalition(2, 5)}
    spent = ledger.epsilon()
    row = rows(whole)[-1]
    assert (row["colluders"], row["quorum"]) == (2, 5)
    assert row["epsilon_all_others"] == pytest.approx(spent.against_all)
    assert row["epsilon_pld"] < row["epsilon_all_others"]
    summary = json.loads((whole / "summary.json").read_text())
    assert "proxysum" in summary["methods"]


def test_the_report_says_against_whom(whole: Path) -> None:
    """The page's data have both numbers and both sentences."""
    spent = largest(epsilon(each) for each in rows(whole))
    document = cost(spent)
    assert document["epsilon_all_others"] > document["epsilon"]
    assert len(document["epsilon_against"]) == 2


def test_the_report_draws_messages_from_everybody_to_everybody(tmp_path: Path) -> None:
    """Not the graph of PushSum; and none in a round in which nobody took a step."""
    changes = {"exchange": {"settle": 1}, "rounds": 2}
    run(settings(**changes), out=tmp_path / "run")
    drawn = graph(read(tmp_path / "run"))
    first, second = (
        drawn["pictures"][key]["edges"] for key in drawn["methods"]["proxysum"]["pictures"]
    )
    assert {(a, b) for a, b, _ in first} == {(a, b) for a in range(5) for b in range(5) if a != b}
    assert second == []


def test_certificates_state_both_epsilons(whole: Path) -> None:
    """The command writes both, with the terms that they follow from."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert (
            main(["certificate", str(whole), "--method", "proxysum", "--client", "client-0"]) == 0
        )
    assert "against up to 2 members" in out.getvalue()
    assert "| epsilon if all other members collude |" in out.getvalue()


def test_the_first_epsilon_is_that_of_proxyfl(tmp_path: Path) -> None:
    """At the same noise multiplier both methods cost the same against the coalition."""
    run(settings(methods=["proxyfl", "proxysum"], rounds=1), out=tmp_path / "run")
    by_method = {row["method"]: row["epsilon_rdp"] for row in rows(tmp_path / "run")}
    assert by_method["proxysum"] == pytest.approx(by_method["proxyfl"], rel=1e-6)


# Attendance.


def test_who_is_away_takes_over_the_sums(tmp_path: Path) -> None:
    """Clients that join late, are away or leave have everybody's proxy at the end; who is away
    pays nothing."""
    schedule = [
        {"client": 0, "away": [1, 2]},
        {"client": 1, "joins": 2},
        {"client": 2, "leaves": 2},
    ]
    changes = {"exchange": {"quorum": 3, "colluders": 1}, "membership": {"schedule": schedule}}
    run(settings(**changes), out=tmp_path / "one")
    assert_one_proxy(tmp_path / "one")
    paid = [Ledger.read(p).steps for p in sorted((tmp_path / "one" / "ledger").rglob("*.jsonl"))]
    # round 1 has clients 2, 3 and 4; round 2 has 1, 3 and 4
    assert paid == [4, 4, 4, 8, 8]
    run(settings(**changes), out=tmp_path / "two", workers=2)
    assert_equal_runs(tmp_path / "one", tmp_path / "two")


def test_below_the_quorum_nobody_sends_or_pays(tmp_path: Path) -> None:
    """A round with too few clients has no step: no charge, no message, the same proxy."""
    schedule = [{"client": 0, "away": [1, 1]}]
    changes = {"exchange": {"quorum": 5}, "membership": {"schedule": schedule}}
    run(settings(**changes), out=tmp_path / "run")
    assert_one_proxy(tmp_path / "run")
    second = [row for row in rows(tmp_path / "run") if row["round"] == 1]
    assert [(row["steps"], row["messages_sent"]) for row in second] == [(0, 0)] * 4
    for path in (tmp_path / "run" / "ledger").rglob("*.jsonl"):
        assert Ledger.read(path).steps == 3 * 2


def test_a_client_whose_budget_is_spent_leaves_in_the_middle_of_a_round(tmp_path: Path) -> None:
    """The others go on as long as there is a quorum; the ledger's budget holds."""
    changes = {
        "exchange": {"quorum": 4, "colluders": 2},
        "privacy": {"noise_multiplier": 4.0, "budget": [0.32, 9.0, 9.0, 9.0, 9.0]},
    }
    run(settings(**changes), out=tmp_path / "run")
    assert_one_proxy(tmp_path / "run")
    paid = [Ledger.read(p) for p in sorted((tmp_path / "run" / "ledger").rglob("*.jsonl"))]
    assert [ledger.steps for ledger in paid] == [5, 8, 8, 8, 8]
    assert paid[0].epsilon().pld <= 0.32


def test_a_budget_for_the_second_epsilon(tmp_path: Path) -> None:
    """privacy.budget_all_others stops a client that the first budget would let go on."""
    privacy = {"noise_multiplier": 4.0, "budget": 9.0}
    limits = {**privacy, "budget_all_others": [0.55, 9.0, 9.0, 9.0, 9.0]}
    changes = {"exchange": {"quorum": 4, "colluders": 2}, "privacy": limits}
    run(settings(**changes), out=tmp_path / "run")
    first = Ledger.read(tmp_path / "run" / "ledger" / "proxysum" / "000.jsonl")
    assert first.steps == 5
    assert first.epsilon().against_all <= 0.55
    with pytest.raises(ConfigError, match="Set both"):
        settings(privacy={"budget_all_others": 1.0})


def test_settling_and_averaging(tmp_path: Path) -> None:
    """Rounds without steps send nothing; the mean of the last proxies is everybody's."""
    changes = {"exchange": {"settle": 1, "average": 0.7}}
    run(settings(**changes), out=tmp_path / "run")
    assert_one_proxy(tmp_path / "run")
    assert {row["messages_sent"] for row in rows(tmp_path / "run") if row["round"] == 3} == {0}


@pytest.mark.parametrize("models", [{"private": "logistic"}, {"residual": True}])
def test_every_kind_of_private_model(models: dict[str, Any], tmp_path: Path) -> None:
    """Private models that are fitted, and those that correct the proxy, learn with it."""
    run(settings(models=models, rounds=2), out=tmp_path / "run")
    assert_one_proxy(tmp_path / "run")


# Settings.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"exchange": {"quorum": 6}}, "more than the 5 clients"),
        ({"exchange": {"quorum": 3, "colluders": 3}}, "fewer colluders than members"),
        ({"exchange": {"colluders": -1}}, "exchange.colluders"),
        ({"exchange": {"quorum": 0}}, "exchange.quorum"),
        ({"privacy": {"noise_multiplier": [8, 8, 8, 8, 4]}}, "Set one privacy.noise_multiplier"),
        ({"privacy": {"clip_norm": [1, 1, 1, 1, 2]}}, "Set one privacy.clip_norm"),
        ({"learning": {"batch_size": [20, 20, 20, 20, 10]}}, "Set one learning.steps_per_round"),
        ({"privacy": {"enabled": False}}, "privacy.enabled is false"),
    ],
)
def test_terms_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    """Before anything is trained, with what to change."""
    with pytest.raises(ConfigError, match=message):
        run(settings(**changes))


def test_batches_may_differ(tmp_path: Path) -> None:
    """With one number of steps, clients may have batches of their own size, and pay by it."""
    learning = {"batch_size": [20, 20, 20, 20, 10], "steps_per_round": 2}
    run(settings(learning=learning, rounds=2), out=tmp_path / "run")
    assert_one_proxy(tmp_path / "run")
    spent = {row["client"]: row["epsilon_rdp"] for row in rows(tmp_path / "run")}
    assert spent[4] < spent[0]


def plan(**changes: Any) -> Plan:
    about = {
        "federation": "study",
        "manifest": "digest",
        "names": ["a", "b", "c"],
        "batch_sizes": [10, 20, 30],
        "steps": 3,
        "coalition": Coalition(1, 2),
    }
    return Plan(**(about | changes))


def test_rosters_follow_from_the_plan() -> None:
    """Who has no steps left is not on the roster; below the quorum there is none."""
    who = Presence((0, 1, 2), 3, fewer_steps={0: 1, 1: 2})
    assert plan().rosters(who) == [[[0, 1, 2]], [[1, 2]]]
    assert plan().batch_size([1, 2]) == 50


# Messages.


def test_a_message_for_something_else_names_its_sender() -> None:
    """Another attempt, another proxy and something that is no message are refused."""
    about = Attempt("study", "digest", 0, 0, ("a", "b"))
    other = Attempt("study", "digest", 0, 1, ("a", "b"))
    words = np.arange(4, dtype=np.uint64)
    proxy = bytes(16)
    frame = encode(words, about, proxy)
    assert decode(frame, about, proxy, sender="b").tolist() == [0, 1, 2, 3]
    assert len(frame) == 32 + 16 + 4 * 8
    with pytest.raises(TransportError, match="b sent a message that is not for round 0, attempt 1"):
        decode(frame, other, proxy, sender="b")
    with pytest.raises(TransportError, match="b has another proxy"):
        decode(frame, about, b"x" * 16, sender="b")
    for wrong in (b"", frame[:-3], frame[:20]):
        with pytest.raises(TransportError, match="no message of a masked sum"):
            decode(wrong, about, proxy, sender="b")
