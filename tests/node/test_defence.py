"""What the default defence buys against a member that lies, and what it costs when nobody does."""

from pathlib import Path

import pytest

from benchmarks.liars import received_accuracy
from proxyfl.node.mixing import Guard

ROUNDS = 12
SEED = 31
"""Neither of those that chose the radius nor of those in docs/research/exchange.md."""


def accuracy(folder: Path, case: str, rule: str, topology: str = "exponential") -> float:
    """The honest sites' accuracy in the end."""
    place = folder / f"{case}-{rule}-{topology}"
    return received_accuracy(place, case, Guard(rule), seed=SEED, topology=topology, rounds=ROUNDS)


def test_the_default_defence_holds_against_what_is_far_away(tmp_path: Path) -> None:
    """One of eight members sends its proxy 100-fold: without a defence the proxies are ruined, with
    it they are within 5 points of those without a liar. When nobody lies it costs nothing."""
    honest = accuracy(tmp_path, "honest", "clip")
    assert honest == accuracy(tmp_path, "honest", "none")
    assert accuracy(tmp_path, "100-fold", "none") < honest - 0.2
    assert accuracy(tmp_path, "100-fold", "clip") > honest - 0.05


def test_sites_that_take_more_steps_are_not_mistaken_for_liars(tmp_path: Path) -> None:
    """Honest sites that take between 1 and 15 steps a round lose less than 2 points."""
    case = "honest, uneven sites"
    assert accuracy(tmp_path, case, "clip") > accuracy(tmp_path, case, "none") - 0.02


@pytest.mark.parametrize(
    ("trick", "rule", "topology"),
    [
        ("weight 8", "clip", "exponential"),
        ("weight 8", "median", "complete"),
        ("four shares", "median", "complete"),
    ],
)
def test_false_weight_and_many_shares_gain_a_liar_nothing(
    tmp_path: Path, trick: str, rule: str, topology: str
) -> None:
    """A liar that claims all members' weight, or that outnumbers the others by four shares at once,
    does no more harm than one that does neither."""
    plain = accuracy(tmp_path, "one direction", rule, topology)
    assert accuracy(tmp_path, f"one direction, {trick}", rule, topology) > plain - 0.03


@pytest.mark.parametrize("others", range(1, 8))
def test_more_than_half_of_the_others_can_stretch_a_limit_and_no_fewer(others: int) -> None:
    """A liar's limit as docs/guides/network.md states it: accomplices lift it only where they are
    more than half of the other senders, so two suffice where a site has heard nobody else."""
    for accomplices in range(others + 1):
        far = {f"a{i}": 1e6 for i in range(accomplices)}
        near = {f"h{i}": 1.0 for i in range(others - accomplices)}
        guard = Guard(distances={"liar": 1e6, **far, **near})
        is_stretched = guard.limit("liar") > 1e3
        assert is_stretched == (2 * accomplices > others)
