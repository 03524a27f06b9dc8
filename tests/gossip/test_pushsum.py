"""Mass: conserved by splitting and adding, and read as parameters."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from proxyfl.errors import ModelError, TopologyError
from proxyfl.gossip import routes as routing
from proxyfl.gossip import topology as gossip
from proxyfl.gossip.pushsum import Mass, add


def exchange(masses: dict[int, Mass], plan: routing.Routes) -> dict[int, Mass]:
    """One round, as the clients do it: split by the own column, then add own and received parts by
    sender."""
    parts = {client: masses[client].split(plan.shares(client)) for client in plan.present}
    arriving = {k: sorted({*plan.senders(k)} | ({k} & plan.shares(k).keys())) for k in plan.present}
    return {k: add([parts[j][k] for j in senders]) for k, senders in arriving.items() if senders}


def random_schedule(generator: np.random.Generator, n: int, rounds: int) -> gossip.Topology:
    """Column-stochastic matrices, neither doubly stochastic nor full, with a positive diagonal."""
    P = generator.random((rounds, n, n)) * (generator.random((rounds, n, n)) < 0.4) + 0.1 * np.eye(
        n
    )
    return gossip.from_matrices(P / P.sum(axis=1, keepdims=True))


def starts(n: int, size: int, dtype: torch.dtype, seed: int = 0) -> dict[int, Mass]:
    generator = torch.Generator().manual_seed(seed)
    return {k: Mass.of(torch.randn(size, generator=generator, dtype=dtype)) for k in range(n)}


def total(masses: dict[int, Mass]) -> tuple[Tensor, float]:
    return torch.stack([mass.m.double() for mass in masses.values()]).sum(0), math.fsum(
        m.w for m in masses.values()
    )


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 12))
def test_gossip_equals_the_dense_matrix_product(seed: int, n: int, rounds: int) -> None:
    """Splitting and adding between clients is m <- P m and w <- P w, for any column-stochastic
    time-varying P."""
    schedule = random_schedule(np.random.default_rng(seed), n, rounds)
    masses = starts(n, 5, torch.float64, seed)
    M, w = torch.stack([masses[k].m for k in range(n)]).numpy(), np.ones(n)
    for round in range(rounds):
        plan = routing.routes(schedule, round, range(n))
        masses = exchange(masses, plan)
        M, w = plan.matrix() @ M, plan.matrix() @ w
        for k in range(n):
            np.testing.assert_allclose(masses[k].m.numpy(), M[k], rtol=1e-11, atol=1e-12)
            assert masses[k].w == pytest.approx(w[k], rel=1e-12)
            np.testing.assert_allclose(masses[k].theta.numpy(), M[k] / w[k], rtol=1e-11, atol=1e-12)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 9))
def test_total_mass_is_conserved(seed: int, n: int) -> None:
    """The sums of m and of w over all clients stay what they were, to float32 rounding, after
    thirty rounds."""
    schedule = random_schedule(np.random.default_rng(seed), n, 30)
    masses = starts(n, 50, torch.float32, seed)
    before, weight = total(masses)
    for round in range(30):
        masses = exchange(masses, routing.routes(schedule, round, range(n)))
    after, weight_after = total(masses)
    assert (after - before).abs().max() < 30 * n * 2**-22
    assert weight_after == pytest.approx(weight, rel=1e-12)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 9))
def test_consensus_is_a_fixed_point(seed: int, n: int) -> None:
    """Equal parameters stay equal under random column-stochastic, time-varying P, bit for bit."""
    schedule = random_schedule(np.random.default_rng(seed), n, 30)
    theta = torch.randn(50, generator=torch.Generator().manual_seed(seed))
    masses = {k: Mass.of(theta) for k in range(n)}
    for round in range(30):
        masses = exchange(masses, routing.routes(schedule, round, range(n)))
    for mass in masses.values():
        # A mean of equal float32 numbers, taken in float64, rounds back to the number.
        assert torch.equal(mass.theta, theta)


def test_consensus_does_not_drift_under_shares_that_are_no_binary_fraction() -> None:
    """A thousand rounds with share 1/3 do not move a consensus."""
    theta = torch.randn(500, generator=torch.Generator().manual_seed(1))
    masses = {k: Mass.of(theta) for k in range(3)}
    for round in range(1000):
        masses = exchange(masses, routing.routes(gossip.ring(1 / 3), round, range(3)))
    assert torch.equal(masses[0].theta, theta)


def test_algorithm_1_as_printed_moves_a_consensus() -> None:
    """Sending theta / w in place of mass de-biases twice, so equal parameters drift apart; in mass
    form they stay.

    Algorithm 1, lines 9 to 11: theta <- sum P theta; w <- sum P w; theta <- theta / w, and theta is
    what the next round sends. For a doubly stochastic P, w stays 1 and nothing shows; for this one
    it does in the second round."""
    P = np.array([[0.9, 0.5], [0.1, 0.5]])
    theta, w = np.ones(2), np.ones(2)
    for _ in range(3):
        theta, w = P @ theta, P @ w
        theta = theta / w
    assert np.abs(theta - 1).max() > 0.1

    masses = {k: Mass.of(torch.ones(1, dtype=torch.float64)) for k in range(2)}
    for round in range(3):
        masses = exchange(masses, routing.routes(gossip.from_matrices(P), round, range(2)))
    assert all(mass.theta.item() == pytest.approx(1, abs=1e-15) for mass in masses.values())
    assert [masses[k].w for k in range(2)] == pytest.approx(w)


def test_exponential_graph_with_half_kept_finds_the_mean() -> None:
    """On 8 clients, self weight 1/2 gives all of them the mean of the starting parameters after
    three rounds."""
    masses = starts(8, 100, torch.float64)
    mean = torch.stack([mass.theta for mass in masses.values()]).mean(0)
    for round in range(3):
        assert (masses[0].theta - mean).abs().max() > 0.1
        masses = exchange(masses, routing.routes(gossip.exponential(0.5), round, range(8)))
    for mass in masses.values():
        torch.testing.assert_close(mass.theta, mean, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "topology", [gossip.exponential(0.5), gossip.random_out(2, seed=1), gossip.ring(0.3)]
)
def test_gossip_converges_to_the_mean(topology: gossip.Topology) -> None:
    """Any mixing topology takes every client to the mean of the starting parameters, doubly
    stochastic or not."""
    masses = starts(6, 40, torch.float64)
    mean = torch.stack([mass.theta for mass in masses.values()]).mean(0)
    for round in range(300):
        masses = exchange(masses, routing.routes(topology, round, range(6)))
    for mass in masses.values():
        torch.testing.assert_close(mass.theta, mean, rtol=0, atol=1e-10)


@pytest.mark.parametrize("topology", [gossip.exponential(), gossip.cycle()])
def test_a_permutation_moves_parameters_bit_for_bit(topology: gossip.Topology) -> None:
    """With self weight 0 parameters change hands and not a bit, subnormal numbers and negative zero
    included."""
    masses = starts(7, 20, torch.float32)
    masses[3] = Mass.of(torch.tensor([1e-45, -0.0, 3.4e38, 1 / 3] * 5))
    where = list(range(7))
    bits = {k: masses[k].theta.view(torch.int32).clone() for k in range(7)}
    for round in range(9):
        plan = routing.routes(topology, round, range(7))
        masses = exchange(masses, plan)
        where = [next(iter(plan.shares(k))) for k in where]
        for origin, k in enumerate(where):
            assert torch.equal(masses[k].theta.view(torch.int32), bits[origin])
            assert masses[k].w == 1.0


@settings(max_examples=30)
@given(st.data())
def test_joining_and_leaving_account_for_all_mass(data: st.DataObject) -> None:
    """A joiner adds exactly its own mass with weight 1, and a leaver takes nothing with it."""
    topology = data.draw(
        st.sampled_from([gossip.exponential(), gossip.exponential(0.5), gossip.random_out(2)])
    )
    masses = starts(4, 10, torch.float64)
    joiners = starts(10, 10, torch.float64, seed=1)
    expected, weight = total(masses)
    for round in range(6):
        if data.draw(st.booleans()):
            newcomer = 10 + round
            masses[newcomer] = joiners[round]
            expected, weight = expected + joiners[round].m, weight + 1.0
        leaving = data.draw(st.sets(st.sampled_from(sorted(masses)), max_size=len(masses) - 1))
        masses = exchange(masses, routing.routes(topology, round, list(masses), leaving=leaving))
        assert leaving.isdisjoint(masses)
        after, weight_after = total(masses)
        torch.testing.assert_close(after, expected, rtol=0, atol=1e-12)
        assert weight_after == pytest.approx(weight, rel=1e-12)


def test_a_leaver_parts_in_the_mean() -> None:
    """After a client left, the others agree on the mean of all who ever took part, itself
    included."""
    masses = starts(4, 30, torch.float64)
    mean = torch.stack([mass.theta for mass in masses.values()]).mean(0)
    masses = exchange(masses, routing.routes(gossip.exponential(0.5), 0, range(4), leaving={2}))
    for round in range(1, 120):
        masses = exchange(masses, routing.routes(gossip.exponential(0.5), round, [0, 1, 3]))
    for mass in masses.values():
        torch.testing.assert_close(mass.theta, mean, rtol=0, atol=1e-12)


@pytest.mark.parametrize("weights", [(1, 1), (1, 3), (0.5, 0.25), (1, 1, 1), (0.25,) * 20])
def test_means_are_rounded_once(weights: tuple[float, ...]) -> None:
    """The weighted mean of float32 parameters is the float64 mean, rounded to float32."""
    held = starts(len(weights), 1000, torch.float32)
    masses = [Mass(held[k].theta, w) for k, w in enumerate(weights)]
    w = math.fsum(weights)
    total = torch.stack([mass.m for mass in masses]).sum(0)
    assert torch.equal(add(masses).theta, (total / w).float())
    assert add(masses).w == w


def source(kept: float) -> gossip.Topology:
    """Client 0 sends to client 1 and is sent nothing; 1 and 2 mix."""
    return gossip.from_matrices([[kept, 0, 0], [1 - kept, 0.5, 0.5], [0, 0.5, 0.5]])


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9])
def test_who_is_never_sent_to_keeps_its_parameters(kept: float) -> None:
    """The weight of a client to whom nobody sends decays; its parameters stay, bit for bit, and the
    others stay finite."""
    masses = starts(3, 50, torch.float32)
    theta = masses[0].theta.clone()
    for round in range(300):
        masses = exchange(masses, routing.routes(source(kept), round, range(3)))
        assert torch.equal(masses[0].theta, theta)
    assert masses[0].w == pytest.approx(kept**300, rel=1e-9)
    assert masses[1].theta.abs().max() < 10


def test_decaying_weights_are_added_in_proportion() -> None:
    """Two clients whose weights have decayed below what float32 can hold still mix by their
    weights."""
    masses = [Mass(torch.full((2,), 1.0), 1e-60), Mass(torch.full((2,), 5.0), 3e-60)]
    assert torch.equal(add(masses).theta, torch.full((2,), 4.0))


def test_a_weight_that_cannot_be_represented_is_an_error() -> None:
    """Before a weight becomes 0, or loses digits, splitting it fails with a reason."""
    mass = Mass(torch.ones(3), 1e-306)
    assert mass.split({0: 0.1, 1: 0.9})[0].w > 0
    with pytest.raises(TopologyError, match="too small to be represented"):
        mass.split({0: 0.001, 1: 0.999})


def test_results_own_their_memory() -> None:
    """Changing what a mass was made from, or split into, changes no other mass."""
    theta = torch.ones(3)
    mass = Mass.of(theta)
    theta.zero_()
    part = mass.split({1: 1.0})[1]
    summed = add([part])
    for tensor in (part.theta, summed.theta, summed.m):
        tensor.zero_()
        assert torch.equal(mass.theta, torch.ones(3))


def test_no_weight_no_parameters() -> None:
    """A sum of masses of weight 0 is an error that says how it came about."""
    with pytest.raises(TopologyError, match=r"w=0\.0: nobody sent to this client"):
        add([Mass(torch.zeros(2), 0.0)])
    with pytest.raises(TopologyError, match="got none"):
        add([])


@pytest.mark.parametrize("shares", [{0: 0.5}, {0: 0.7, 1: 0.4}, {0: 1.5, 1: -0.5}, {}])
def test_shares_must_add_up(shares: dict[int, float]) -> None:
    """Splitting by shares that lose, make or owe mass is refused."""
    with pytest.raises(TopologyError, match="add up to 1"):
        Mass.of(torch.ones(2)).split(shares)


@pytest.mark.parametrize(
    "other", [torch.ones(1), torch.ones(3), torch.ones(2, dtype=torch.float64)]
)
def test_masses_of_other_models_are_refused(other: Tensor) -> None:
    """Masses of another size or type are refused rather than broadcast."""
    with pytest.raises(ModelError, match="one proxy architecture"):
        add([Mass(torch.ones(2)), Mass(other)])
