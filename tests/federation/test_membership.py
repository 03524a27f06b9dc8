"""Who takes part when."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxyfl.errors import ConfigError, TopologyError
from proxyfl.federation.membership import Allowance, Attendance, everyone, plan, rehearse
from proxyfl.gossip import topology


def test_everyone_is_always_there() -> None:
    """Without settings all clients take part in every round and nobody leaves."""
    presences = plan(3, 4)
    assert [p.present for p in presences] == [(0, 1, 2)] * 4
    assert presences[0] == everyone(3)(0)
    assert not any(p.leaving for p in presences)


def test_joining_leaving_and_being_away() -> None:
    """A schedule is followed to the round; expected counts those who have joined and not left."""
    schedule = [Attendance(0, joins=2), Attendance(1, away=(1, 2)), Attendance(2, leaves=3)]
    presences = plan(4, 5, schedule=schedule)
    assert [p.present for p in presences] == [(1, 2, 3), (2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 3)]
    assert [p.expected for p in presences] == [3, 3, 4, 3, 3]
    assert presences[2].leaving == {2: "scheduled to leave at round 3"}
    assert presences[2].handing_over == {2}


@pytest.mark.parametrize(
    ("in_all", "steps"),
    [
        (None, [4, 4, 4, 4]),
        (16, [4, 4, 4, 4]),
        (10, [4, 4, 2, 0]),
        (8, [4, 4, 0, 0]),
        (1, [1, 0, 0, 0]),
    ],
)
def test_a_budget_is_used_to_its_last_step(in_all: int | None, steps: list[int]) -> None:
    """A client takes what its budget allows, fewer in its last round, and leaves in that round."""
    presences = plan(2, 4, allowances={0: Allowance(4, in_all)})
    taken = [p.steps(0, 4) if 0 in p.present else 0 for p in presences]
    assert taken == steps
    leaves = [round for round, p in enumerate(presences) if 0 in p.leaving]
    assert leaves == ([] if in_all in (None, 16) else [(in_all or 0) // 4])
    for round in leaves:
        assert "budget spent" in presences[round].leaving[0]
        assert all(0 not in p.present for p in presences[round + 1 :])


def test_when_all_leave_nobody_hands_over() -> None:
    """Equal budgets end in the same round: the last exchange is an ordinary one, and then nobody is
    there."""
    presences = plan(2, 3, allowances=dict.fromkeys(range(2), Allowance(2, 3)))
    assert presences[1].leaving.keys() == {0, 1}
    assert presences[1].handing_over == frozenset()
    assert presences[2].present == ()


@settings(max_examples=50)
@given(st.integers(1, 12), st.floats(0, 0.9), st.integers(0, 1000))
def test_absences_are_random_and_agreed(clients: int, absence: float, seed: int) -> None:
    """The same settings give the same absences everywhere; their share is the probability asked
    for."""
    presences = plan(clients, 60, absence=absence, seed=seed)
    assert presences == plan(clients, 60, absence=absence, seed=seed)
    missing = sum(clients - len(p.present) for p in presences) / (60 * clients)
    assert abs(missing - absence) < 5 * (0.25 / (60 * clients)) ** 0.5 + 1e-9
    assert all(p.expected == clients for p in presences)


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ([Attendance(7)], "names client 7; there are clients 0 to 1"),
        ([Attendance()], "names nobody"),
        ([Attendance(0), Attendance(0, joins=1)], "names client 0 twice"),
        ([Attendance(0, away=(3,))], r"away = \[first, last"),
        ([Attendance(0, away=(5, 3))], r"away = \[first, last"),
        ([Attendance(0, joins=3, leaves=3)], "would never take part"),
        ([Attendance(0, leaves=5, away=(4, 6))], "could not hand its mass on"),
        ([Attendance(0, joins=1), Attendance(1, joins=2)], "leaves no one in round 0"),
    ],
)
def test_impossible_schedules_are_refused(schedule: list[Attendance], reason: str) -> None:
    """A schedule that names nobody, or leaves no one, is an error that says so."""
    with pytest.raises(ConfigError, match=reason):
        plan(2, 10, schedule=schedule)


FIXED = topology.from_matrices([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": [Attendance(1, away=(8, 8))]},
        {"schedule": [Attendance(2, leaves=8)]},
        {"absence": 0.1},
        {"allowances": {0: Allowance(2, 17)}},
    ],
)
def test_a_rehearsal_finds_what_fails_in_a_late_round(changes: dict[str, object]) -> None:
    """Matrices for three clients fit until one is missing, and the rehearsal names that round."""
    rehearse(FIXED, plan(3, 20))
    with pytest.raises(TopologyError, match=r"for 3 clients, but 2 are present in round \d+"):
        rehearse(FIXED, plan(3, 20, **changes))  # type: ignore[arg-type]


def test_a_rehearsal_finds_a_client_left_with_nothing() -> None:
    """A schedule whose second matrix leaves a client bare is found, though the first is sound."""
    bare = [[0.0, 0.0], [1.0, 1.0]]
    with pytest.raises(TopologyError, match=r"In round 1 nobody sends to clients \[0\]"):
        rehearse(topology.from_matrices([[[0.5, 0.5], [0.5, 0.5]], bare]), plan(2, 4))


def test_a_rehearsal_finds_a_weight_that_decays_away() -> None:
    """A client that keeps a tenth and is never sent to lasts 307 rounds, and no more."""
    source = topology.from_matrices([[0.1, 0.0], [0.9, 1.0]])
    rehearse(source, plan(2, 307))
    with pytest.raises(TopologyError, match=r"Client 0 in round 307: .* too small"):
        rehearse(source, plan(2, 400))


def test_a_rehearsal_takes_what_works() -> None:
    """Built-in topologies pass with clients that come, go, leave and are all gone at the end."""
    schedule = [Attendance(0, joins=3), Attendance(1, away=(2, 5)), Attendance(2, leaves=6)]
    presences = plan(5, 30, schedule=schedule, absence=0.2, allowances={3: Allowance(2, 11)})
    for name in topology.TOPOLOGIES:
        rehearse(topology.make(name), presences)
    rehearse(topology.make("ring"), plan(2, 9, allowances=dict.fromkeys((0, 1), Allowance(2, 3))))
