"""Kinds of clients: one proxy for each kind, in every exchange and engine."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from proxyfl.errors import ConfigError
from proxyfl.federation.exchange import MassChannel, mixing
from proxyfl.gossip import topology
from proxyfl.gossip.pushsum import Mass
from proxyfl.records.reading import read
from proxyfl.report.graph import graph
from proxyfl.simulation.config import Config
from proxyfl.simulation.run import run
from proxyfl.transport.memory import MemoryTransport

from .engines import assert_equal_runs, rows, small

KINDS = ("town", "land", "town", "land", "town")
METHODS = ["proxyfl", "proxysum", "fedavg"]


def settings(**changes: Any) -> Config:
    """Five clients of two kinds, two steps a round; at the end proxies only mix. ``changes`` are
    to the exchange."""
    exchange = {"kinds": list(KINDS), "settle": 2} | changes
    return small(methods=METHODS, exchange=exchange)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in one process."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    run(settings(), out=path)
    return path


def test_each_kind_has_one_proxy_and_it_is_another(whole: Path) -> None:
    """A masked sum's proxies are equal within a kind, bit for bit, and unequal between kinds."""
    files = sorted((whole / "models" / "proxysum").glob("*-proxy.*"))
    found = [torch.cat([v.flatten() for v in load_file(each).values()]) for each in files]
    assert len(found) == len(KINDS)
    for at, kind in enumerate(KINDS):
        assert torch.equal(found[at], found[KINDS.index(kind)])
    assert not torch.allclose(found[1], found[0], rtol=0, atol=1e-3)


def test_no_message_leaves_a_kind(whole: Path) -> None:
    """The report's graph has no edge between kinds, and everybody sends something."""
    drawn = graph(read(whole))
    for method in METHODS:
        senders = set()
        for key in drawn["methods"][method]["pictures"]:
            for sender, receiver, _ in drawn["pictures"][key]["edges"]:
                assert KINDS[sender] == KINDS[receiver]
                senders.add(sender)
        assert senders == set(range(len(KINDS)))
    for row in rows(whole):
        if row["method"] == "proxysum" and row["steps"]:
            others = KINDS.count(KINDS[row["client"]]) - 1
            assert row["messages_sent"] == row["messages_received"] == others * row["steps"]


def test_workers_change_nothing(whole: Path, tmp_path: Path) -> None:
    """Two processes, each with clients of both kinds, give the same bits as one."""
    run(settings(), out=tmp_path / "run", workers=2)
    assert_equal_runs(whole, tmp_path / "run")


@pytest.mark.parametrize("name", ["mean", "cycle", "pushsum"])
def test_mass_stays_within_its_kind(name: str) -> None:
    """What a kind's clients hold together is the same before and after, for every exchange."""
    before = {i: Mass(torch.full((3,), float(10**i)), 1.0) for i in range(5)}
    mix = mixing(name, topology.make("exponential", self_weight=0.5), KINDS)
    channel = MassChannel(MemoryTransport(), 0, "model", 3)
    after = mix(before, range(5), frozenset(), channel)
    for kind in set(KINDS):
        own = [i for i, each in enumerate(KINDS) if each == kind]
        totals = [sum(float(masses[i].theta[0]) for i in own) for masses in (before, after)]
        assert totals[0] == pytest.approx(totals[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kinds": ["town", "land"]}, "kind of each of the 5 clients"),
        ({"quorum": 3}, "more than the 2 clients of a kind"),
    ],
)
def test_kinds_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    """Before anything is trained."""
    with pytest.raises(ConfigError, match=message):
        run(settings(**changes), out=None)
