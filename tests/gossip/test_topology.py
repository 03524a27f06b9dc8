"""Schedules, the checks on them, routes between client ids, and how far news travels."""

import json
import math
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxyfl.errors import TopologyError
from proxyfl.gossip import reach as spreading
from proxyfl.gossip import routes as routing
from proxyfl.gossip import topology as gossip

EVERY = {
    "exponential": gossip.exponential(),
    "exponential-half": gossip.exponential(0.5),
    "ring": gossip.ring(),
    "ring-third": gossip.ring(1 / 3),
    "cycle": gossip.cycle(),
    "complete": gossip.complete(),
    "complete-zero": gossip.complete(0.0),
    "random-1": gossip.random_out(1, seed=3),
    "random-4": gossip.random_out(4, seed=3, self_weight=0.2),
}


def dense(topology: gossip.Topology, round: int, n: int) -> np.ndarray:
    return routing.routes(topology, round, range(n)).matrix()


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 33])
def test_every_topology_is_column_stochastic(name: str, n: int) -> None:
    """Each column of each built-in schedule sums to 1, for one client, two, and any other
    number."""
    for round in range(8):
        columns = EVERY[name](round, n)
        gossip.check_columns(columns, n)
        assert all(share > 0 for column in columns for share in column.values())


@pytest.mark.parametrize("name", EVERY)
def test_one_client_keeps_everything(name: str) -> None:
    """Alone, a client keeps its whole mass."""
    assert EVERY[name](5, 1) == ({0: 1.0},)


@pytest.mark.parametrize(
    ("n", "hops"),
    [(2, [1, 1]), (3, [1, 2, 1]), (5, [1, 2, 4, 1]), (8, [1, 2, 4, 1]), (9, [1, 2, 4, 8, 1])],
)
def test_exponential_hops_are_the_papers(n: int, hops: list[int]) -> None:
    """Client j sends to j + 2^0, 2^1, ..., 2^floor(log2(n-1)) in turn and starts over."""
    for round, hop in enumerate(hops):
        assert gossip.exponential()(round, n) == tuple({(j + hop) % n: 1.0} for j in range(n))


def test_self_weight_is_kept() -> None:
    """With self weight W a client keeps W and sends 1 - W."""
    assert gossip.exponential(0.25)(0, 3)[2] == {2: 0.25, 0: 0.75}
    assert gossip.complete(0.5)(0, 3)[1] == {1: 0.5, 0: 0.25, 2: 0.25}


def test_random_receivers_are_distinct_agreed_and_uniform() -> None:
    """Receivers are distinct others, equal for equal (seed, round), new each round, and each other
    is as likely."""
    topology = gossip.random_out(3, seed=11)
    counts = np.zeros(9)
    for round in range(400):
        columns = topology(round, 10)
        assert columns == gossip.random_out(3, seed=11)(round, 10)
        for j, column in enumerate(columns):
            assert len(column) == 4
            assert column[j] == 0.25
            counts[[(k - j - 1) % 10 for k in column if k != j]] += 1
    assert topology(0, 10) != topology(1, 10)
    assert topology(0, 10) != gossip.random_out(3, seed=12)(0, 10)
    expected = 400 * 10 * 3 / 9
    # 9 bins with sd of about sqrt(4000 * (1/3) * (2/3)) = 30 each: five sd hold for a fair draw,
    # not for a skewed one.
    assert np.abs(counts - expected).max() < 150


def test_random_degree_beyond_the_others_means_all_others() -> None:
    """When fewer others are present than the degree asks for, a client sends to all of them."""
    assert gossip.random_out(5)(0, 3)[0] == pytest.approx({0: 1 / 3, 1: 1 / 3, 2: 1 / 3})


@pytest.mark.parametrize("weight", [-0.1, 1.0, 1.5, math.nan])
@pytest.mark.parametrize("factory", [gossip.exponential, gossip.ring, gossip.complete])
def test_self_weight_outside_its_range_is_refused(factory: object, weight: float) -> None:
    """A self weight below 0, of 1 or more, or NaN is refused with its value."""
    with pytest.raises(TopologyError, match=f"self_weight={weight}"):
        factory(weight)  # type: ignore[operator]


def test_random_without_self_weight_is_refused() -> None:
    """Random receivers with self weight 0 could leave a client with nothing, so it is refused."""
    with pytest.raises(TopologyError, match="0 < self_weight"):
        gossip.random_out(2, self_weight=0.0)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (({0: 0.5, 1: 0.5}, {0: 0.7, 1: 0.2}), r"Column 1 .* sums to 0\.9"),
        (({0: 1.0}, {2: 1.0}), "Column 1 sends to 2"),
        (({0: 1.5, 1: -0.5}, {1: 1.0}), "Column 0 has the share -0.5"),
        (({0: math.nan}, {1: 1.0}), "Column 0 has the share nan"),
        (({"0": 1.0}, {1: 1.0}), "Column 0 sends to '0'"),
        (({0: "1"}, {1: 1.0}), "Column 0 has the share '1'"),
        (({0: 1.0}, {}), "Column 1 .* sums to 0"),
        (({0: 1.0},), "Expected 2 columns"),
    ],
)
def test_what_is_not_column_stochastic_is_refused(
    columns: tuple[dict[int, float], ...], reason: str
) -> None:
    """A matrix that is not column-stochastic is refused with the column and what is wrong with
    it."""
    with pytest.raises(TopologyError, match=reason):
        gossip.check_columns(columns, 2)


def test_column_sums_may_differ_from_one_by_rounding_only() -> None:
    """A sum within 1e-9 of 1 passes and one further away does not."""
    gossip.check_columns(({0: 1.0 + 9e-10},), 1)
    with pytest.raises(TopologyError):
        gossip.check_columns(({0: 1.0 + 2e-9},), 1)


def test_matrices_repeat_in_order() -> None:
    """A schedule of matrices is used in order and starts over; entry [k, j] is what j sends to
    k."""
    first, second = [[0.0, 0.3], [1.0, 0.7]], [[1.0, 0.0], [0.0, 1.0]]
    topology = gossip.from_matrices([first, second])
    for round, P in enumerate([first, second, first]):
        assert (dense(topology, round, 2) == np.array(P)).all()
    assert (dense(gossip.from_matrices(np.array(first)), 9, 2) == np.array(first)).all()


@pytest.mark.parametrize(
    ("matrices", "reason"),
    [
        ([[1.0, 0.5], [0.0, 0.4]], r"Matrix 0 of 1: Column 1 .* 0\.9"),
        ([np.eye(2), 2 * np.eye(2)], "Matrix 1 of 2: Column 0 .* sums to 2"),
        ([[1.0, 0.0]], "shape"),
        ([[1.0], [0.5, 0.5]], "K x K"),
        ([], "shape"),
        ([["a"]], "K x K"),
        ({"a": 1}, "K x K"),
    ],
)
def test_bad_matrices_are_refused(matrices: object, reason: str) -> None:
    """A matrix of the wrong shape, of no numbers, or with a wrong column sum is refused with the
    reason."""
    with pytest.raises(TopologyError, match=reason):
        gossip.from_matrices(matrices)  # type: ignore[arg-type]


def test_matrices_for_another_number_of_clients_are_refused() -> None:
    """A 3 x 3 schedule for 2 present clients is an error that names both."""
    with pytest.raises(TopologyError, match="for 3 clients, but 2 are present in round 4"):
        gossip.from_matrices(np.eye(3))(4, 2)


def test_make_finds_names_files_and_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topology can be a registered name, a .json or .npy file, or the user's own function."""
    assert gossip.make("exponential", self_weight=0.5)(1, 4) == gossip.exponential(0.5)(1, 4)
    assert gossip.make("random", degree=2, seed=5)(1, 6) == gossip.random_out(2, 5)(1, 6)
    P = np.array([[0.5, 1.0], [0.5, 0.0]])
    np.save(tmp_path / "p.npy", P)
    (tmp_path / "p.json").write_text(json.dumps([P.tolist()]))
    for name in ("p.npy", "p.json"):
        assert (dense(gossip.make(str(tmp_path / name)), 0, 2) == P).all()
    module = types.ModuleType("someones_graph")
    module.star = lambda _round, n: [{0: 1.0}, *({0: 0.5, j: 0.5} for j in range(1, n))]  # type: ignore[attr-defined]
    module.leaky = lambda _round, n: [{0: 0.5}] * n  # type: ignore[attr-defined]
    module.odd = lambda _round, _n: 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "someones_graph", module)
    assert gossip.make("someones_graph:star")(0, 3) == (
        {0: 1.0},
        {0: 0.5, 1: 0.5},
        {0: 0.5, 2: 0.5},
    )
    with pytest.raises(TopologyError, match=r"Column 0 .* sums to 0\.5"):
        gossip.make("someones_graph:leaky")(0, 3)
    with pytest.raises(
        TopologyError, match="returned 3 for round 0 and 4 clients; expected 4 dicts"
    ):
        gossip.make("someones_graph:odd")(0, 4)


@pytest.mark.parametrize(
    ("name", "settings_", "reason"),
    [
        (
            "exponentail",
            {},
            "Unknown topology 'exponentail'. Did you mean 'exponential'. Known: exponential, ring",
        ),
        ("no_such_module:f", {}, "no module 'no_such_module'"),
        ("math:nothing", {}, "has no 'nothing'"),
        ("math:pi", {}, "expected a function"),
        (":f", {}, "Expected package.module"),
        ("absent.npy", {}, "Cannot read the topology file absent.npy"),
        ("ring", {"degree": 2}, "'ring' takes no degree. .* random"),
        ("cycle", {"self_weight": 0.5}, "'cycle' takes no self_weight. .* exponential, ring"),
        ("random", {"degree": 0}, "degree >= 1"),
    ],
)
def test_make_refuses_what_it_cannot_use(
    name: str, settings_: dict[str, float], reason: str
) -> None:
    """Unknown names, missing files, and settings that a topology does not take are errors that say
    what to do."""
    with pytest.raises(TopologyError, match=reason):
        gossip.make(name, **settings_)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content", [b"", b"[[1, 0]", b"[" * 5000, b"\x93NUMPY\x01\x00", b"\xff\xfe", b"{}", b"null"]
)
@pytest.mark.parametrize("suffix", ["json", "npy"])
def test_corrupt_files_are_refused(tmp_path: Path, content: bytes, suffix: str) -> None:
    """A file that holds no matrices is a TopologyError that names it, whatever its bytes."""
    path = tmp_path / f"p.{suffix}"
    path.write_bytes(content)
    with pytest.raises(TopologyError, match=f"p.{suffix}"):
        gossip.make(str(path))


def test_npy_files_are_never_unpickled(tmp_path: Path) -> None:
    """An .npy file with pickled objects is refused, not loaded."""
    path = tmp_path / "p.npy"
    np.save(path, np.array([[{"a": 1}]], dtype=object), allow_pickle=True)
    with pytest.raises(TopologyError, match="not readable as npy"):
        gossip.make(str(path))


def test_routes_speak_of_client_ids() -> None:
    """Positions are ranks among the present ids, whatever order they are given in."""
    plan = routing.routes(gossip.exponential(0.25), 0, [9, 2, 5])
    assert plan.present == (2, 5, 9)
    assert plan.shares(9) == {9: 0.25, 2: 0.75}
    assert plan.senders(9) == (5,)
    assert plan.matrix()[:, 0].tolist() == [0.25, 0.75, 0.0]
    assert plan == routing.routes(gossip.exponential(0.25), 0, [2, 5, 9])


def test_routes_list_senders_sorted() -> None:
    """Senders come sorted and without the client itself, so that sums have one order everywhere."""
    plan = routing.routes(gossip.complete(), 0, [4, 1, 7, 3])
    assert plan.senders(4) == (1, 3, 7)
    assert sorted(plan.shares(4)) == [1, 3, 4, 7]


@pytest.mark.parametrize(
    ("present", "leaving", "reason"),
    [
        ([], set(), "one or more distinct"),
        ([1, 1], set(), "distinct"),
        ([1, 2], {3}, r"\[3\] cannot leave"),
        ([1, 2], {1, 2}, "All clients"),
    ],
)
def test_impossible_rounds_are_refused(present: list[int], leaving: set[int], reason: str) -> None:
    """Nobody present, one client twice, an absent client leaving and everybody leaving are
    errors."""
    with pytest.raises(TopologyError, match=reason):
        routing.routes(gossip.ring(), 0, present, leaving=leaving)


def test_a_client_left_with_nothing_is_refused() -> None:
    """A matrix under which a client keeps nothing and is sent nothing is refused with the client
    and the round."""
    with pytest.raises(TopologyError, match=r"In round 3 nobody sends to clients \[6\]"):
        routing.routes(gossip.from_matrices([[1.0, 1.0], [0.0, 0.0]]), 3, [5, 6])


def test_asking_for_an_absent_client_is_refused() -> None:
    """Routes of a client that is not present are an error that names it."""
    with pytest.raises(TopologyError, match="Client 3 is not present in round 0"):
        routing.routes(gossip.ring(), 0, [1, 2]).shares(3)


def test_a_leaving_client_hands_everything_over() -> None:
    """It keeps nothing, nobody sends to it, and what it would have been sent stays with the
    sender."""
    plan = routing.routes(gossip.exponential(0.25), 0, [0, 1, 2, 3], leaving={1})
    assert plan.shares(1) == {2: 1.0}
    assert plan.shares(0) == {0: 1.0}
    assert plan.shares(2) == {2: 0.25, 3: 0.75}
    assert plan.senders(1) == ()


def test_a_leaving_client_whose_receiver_leaves_too_hands_on_to_the_next() -> None:
    """When nobody that stays is in its column, all goes to the next client that stays, around the
    end of the list."""
    plan = routing.routes(gossip.ring(0.5), 0, [0, 1, 2, 3], leaving={2, 3})
    assert plan.shares(2) == {0: 1.0}
    assert plan.shares(3) == {0: 1.0}
    assert routing.routes(gossip.from_matrices(np.eye(3)), 0, [4, 5, 6], leaving={4}).shares(4) == {
        5: 1.0
    }


@settings(max_examples=60)
@given(st.data())
def test_leaving_keeps_columns_whole(data: st.DataObject) -> None:
    """Whoever leaves, every column still sums to 1, no leaver is a receiver, and nobody who stays
    is left bare."""
    topology = EVERY[data.draw(st.sampled_from(sorted(EVERY)))]
    present = data.draw(st.lists(st.integers(0, 99), min_size=2, max_size=12, unique=True))
    leaving = data.draw(st.sets(st.sampled_from(present), max_size=len(present) - 1))
    plan = routing.routes(topology, data.draw(st.integers(0, 20)), present, leaving=leaving)
    assert np.allclose(plan.matrix().sum(axis=0), 1.0, atol=1e-12)
    for client in present:
        assert leaving.isdisjoint(plan.shares(client))
        assert client in leaving or plan.matrix()[plan.present.index(client)].sum() > 0


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("n", [1, 2, 5, 8, 9])
def test_reach_is_the_boolean_product(name: str, n: int) -> None:
    """Reach counts the positive entries in each column of P(t) ... P(0)."""
    Phi, counts = np.eye(n), spreading.reach(EVERY[name], n, 6)
    for round in range(6):
        Phi = dense(EVERY[name], round, n) @ Phi
        assert counts[round].tolist() == (Phi > 0).sum(axis=0).tolist()


@pytest.mark.parametrize("weight", [0.5, 0.1])
def test_exponential_reaches_all_in_log2_rounds(weight: float) -> None:
    """With a self weight above 0 all have heard from all after ceil(log2 K) rounds and not before,
    K = 2 to 64."""
    for clients in range(2, 65):
        assert spreading.rounds_to_all_heard(gossip.exponential(weight), clients, 20) == math.ceil(
            math.log2(clients)
        )


def test_the_permutation_never_reaches_all() -> None:
    """Passed on whole, a client's mass is with one client only, for ever: the figure's claim needs
    a self weight."""
    for clients in (2, 3, 8, 13, 64):
        assert spreading.rounds_to_all_heard(gossip.exponential(), clients, 4 * clients) is None
        assert (spreading.reach(gossip.exponential(), clients, 10) == 1).all()


def test_a_passed_on_proxy_has_been_with_one_more_client_per_round() -> None:
    """With self weight 0 and K = 2^p, a proxy has been with 1 + t clients after t rounds, 1 + log2
    K after log2 K."""
    for power in range(1, 9):
        assert spreading.visits(gossip.exponential(), 2**power, power) == [
            2 + t for t in range(power)
        ]


def test_visits_follow_the_walk_of_a_proxy() -> None:
    """Visits of a permutation equal the distinct stops of a proxy that is walked by hand, for any
    K."""
    for clients in (3, 5, 8, 12):
        stop, stops, expected = 0, {0}, []
        for round in range(30):
            (stop,) = gossip.exponential()(round, clients)[stop]
            stops.add(stop)
            expected.append(len(stops))
        assert spreading.visits(gossip.exponential(), clients, 30) == expected


def test_ring_and_complete_reach_as_they_must() -> None:
    """A ring that keeps a share needs K - 1 rounds, the mean one, a lone client none; a limit below
    gives None."""
    assert spreading.rounds_to_all_heard(gossip.ring(0.5), 9, 20) == 8
    assert spreading.rounds_to_all_heard(gossip.ring(0.5), 9, 7) is None
    assert spreading.rounds_to_all_heard(gossip.complete(), 9, 20) == 1
    assert spreading.rounds_to_all_heard(gossip.ring(), 1, 20) == 0


def test_consensus_error_measures_the_distance_from_the_mean() -> None:
    """The error is the root mean square distance over random starts: sampled, it comes out the
    same."""
    topology, n = gossip.random_out(2, seed=4), 12
    x = np.random.default_rng(0).standard_normal((n, 20_000))
    w, start = np.ones((n, 1)), np.sqrt(((x - x.mean(axis=0)) ** 2).mean())
    mean = x.mean(axis=0)
    for round, error in enumerate(spreading.consensus_error(topology, n, 4)):
        P = dense(topology, round, n)
        x, w = P @ x, P @ w
        assert np.sqrt(((x / w - mean) ** 2).mean()) / start == pytest.approx(error, rel=0.02)


def test_consensus_error_of_the_exponential_graph() -> None:
    """For K = 8, self weight 1/2 gives the exact mean after three rounds; the permutation never
    comes nearer."""
    assert spreading.consensus_error(gossip.exponential(0.5), 8, 3)[-1] == pytest.approx(
        0, abs=1e-15
    )
    assert spreading.consensus_error(gossip.exponential(0.0), 8, 3) == pytest.approx([1, 1, 1])
    assert spreading.consensus_error(gossip.exponential(0.5), 1, 2) == [0, 0]


def test_thousands_of_clients_are_no_trouble() -> None:
    """For 4096 clients the exponential graph is built, routed and followed to the end within
    seconds."""
    assert spreading.rounds_to_all_heard(gossip.exponential(0.5), 4096, 20) == 12
    assert len(routing.routes(gossip.exponential(0.5), 3, range(4096)).senders(7)) == 1
