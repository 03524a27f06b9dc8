"""What the defence buys against members that lie, and what it costs when nobody does."""

from pathlib import Path

import pytest
import torch

from benchmarks.liars import received_accuracy
from proxyfl.gossip.pushsum import Mass
from proxyfl.node.defence import Guard

ROUNDS = 12
SEED = 31
"""Neither of those that chose the radius nor of those in docs/node.md."""


def test_the_defence_holds_against_noise_and_costs_little(tmp_path: Path) -> None:
    """One of eight members sends noise: without a defence the proxies are ruined, with it they are
    within 12 points of those without a liar."""
    found = {}
    for case, rule in (("honest", "clip"), ("noise", "none"), ("noise", "clip")):
        found[case, rule] = received_accuracy(
            tmp_path / f"{case}-{rule}", case, Guard(rule), seed=SEED, rounds=ROUNDS
        )
    print(found)
    assert found["noise", "none"] < found["honest", "clip"] - 0.2
    assert found["noise", "clip"] > found["honest", "clip"] - 0.12


def test_a_guard_bounds_the_step_and_the_weight() -> None:
    """What is received moves a site by at most the radius, and weighs at most so much."""
    guard = Guard("clip", radius=2.0, most_weight=3.0)
    own = Mass(torch.zeros(4), 0.5)
    for way in (1.0, 1.0, 9.0):
        guard.moved(way)
    pulled = guard.guarded(own, Mass(torch.tensor([0.0, 100, 0, 0]), 8.0))
    assert float(pulled.theta.norm()) == pytest.approx(2.0)
    assert pulled.w == 1.5
    assert guard.clipped == 1


def test_the_middle_value_is_not_moved_by_one_liar() -> None:
    """Of three proxies one lies within the radius: each parameter stays between the honest two."""
    guard = Guard("median", radius=100.0)
    guard.moved(1.0)
    own, honest = Mass(torch.zeros(4), 0.5), Mass(torch.ones(4), 0.25)
    lie = Mass(torch.tensor([9.0, -9.0, 9.0, -9.0]), 0.25)
    mixed = guard.mixed(own, [honest, lie])
    assert float(mixed.theta.min()) >= 0
    assert float(mixed.theta.max()) <= 1
    assert mixed.w == 1.0


def test_a_median_of_two_is_clipping() -> None:
    """With one proxy received there is no middle: the rule is that of "clip"."""
    mixed = []
    for rule in ("clip", "median"):
        guard = Guard(rule)
        guard.moved(1.0)
        own, other = Mass(torch.zeros(2), 0.5), Mass(torch.full((2,), 9.0), 0.5)
        mixed.append(guard.mixed(own, [other]).theta)
    assert torch.equal(mixed[0], mixed[1])
