"""Agreement on rosters and sums without a server, over random schedules of faults."""

import random

import pytest

from proxyfl.errors import TransportError
from proxyfl.node.agreement import Agreement, Record

from .sums import World

QUICK = 24
SLOW = 400


def test_undisturbed_sites_need_one_ballot_a_step() -> None:
    """Nothing is charged but the steps themselves, and all hold the same proxy."""
    world = World(0, sites=5, quorum=5, faults=0.0)
    for _ in range(4000):
        world.event()
        world.check()
    for site in world.sites.values():
        assert site.disk.charges - site.disk.record.step <= 1
    assert min(world.steps) > 5


def disturb(seed: int) -> None:
    """Run a schedule of faults, then let everything work."""
    sites = 3 + seed % 4
    least = sites // 2 + 1
    world = World(seed, sites=sites, quorum=least + seed % (sites - least + 1))
    for _ in range(1200):
        world.event()
        world.check()
    before = min(world.steps)
    for _ in range(40):
        world.heal(500)
        world.check()
        if min(world.steps) > before:
            break
    assert min(world.steps) > before, f"steps {world.steps}"
    assert max(world.steps) - min(world.steps) <= 2
    for step in range(max(world.steps) - 1):
        assert len(world.proxies(step)) <= 1


@pytest.mark.parametrize("seed", range(QUICK))
def test_schedules_of_faults(seed: int) -> None:
    """No vector under two rosters, no charge missing, no two proxies in one step; once faults end
    all go on, with one proxy."""
    disturb(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(QUICK, SLOW))
def test_many_schedules_of_faults(seed: int) -> None:
    """The same, for longer."""
    disturb(seed)


@pytest.mark.parametrize("seed", range(QUICK))
def test_a_quorum_goes_on_without_members_lost_for_good(seed: int) -> None:
    """After a schedule of faults two of six are down for good: the others, whatever they had
    promised and however far each has come, take two more steps."""
    world = World(seed, sites=6, quorum=4)
    for _ in range(1200):
        world.event()
        world.check()
    left = world.lose(random.Random(seed).sample(world.names, 2))
    goal = 2 + min(site.disk.record.step for site in left)
    for _ in range(40 * 500):
        world.event()
        world.check()
        if all(site.disk.record.step >= goal for site in left):
            return
    pytest.fail(f"two are lost, and the others stay at {[site.disk.record for site in left]}")


def sends_again(agreement: Agreement[str], ballot: int) -> bool:
    """A site that forgets to which ballots it has contributed."""
    return True


def accepts_anything(agreement: Agreement[str], ballot: int) -> bool:
    """A site that forgets its promises."""
    return True


@pytest.mark.parametrize(
    ("name", "sabotage", "said", "seeds"),
    [
        ("_may_contribute", sends_again, "sends twice|second vector|given up", range(1000, 1400)),
        # About one schedule in a thousand shows it.
        ("_may_accept", accepts_anything, "two proxies", range(1800, 1840)),
    ],
)
def test_the_checker_finds_sabotage(
    name: str, sabotage: object, said: str, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schedules like these fail if a site forgets what it must not."""
    monkeypatch.setattr(Agreement, name, sabotage)
    with pytest.raises((AssertionError, TransportError), match=said):
        run_schedules(seeds)


def run_schedules(seeds: range) -> None:
    """Schedules of faults without an end."""
    for seed in seeds:
        world = World(seed, sites=3 + seed % 3, quorum=2 + seed % 3)
        for _ in range(1500):
            world.event()
            world.check()


def test_half_of_all_members_are_no_quorum() -> None:
    """Two groups could go on with two proxies."""
    with pytest.raises(TransportError, match="not more than half of 4"):
        Agreement("a", "abcd", quorum=2, colluders=1, version=1, record=Record(), start=1, key="")
