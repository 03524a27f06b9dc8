"""How models mix, against the dense matrix product, with every byte counted."""

import math
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proxyfl.errors import ModelError, PeerTimeout, ProxyFLError
from proxyfl.federation import exchange
from proxyfl.federation.exchange import MassChannel
from proxyfl.gossip import topology
from proxyfl.gossip.pushsum import Mass
from proxyfl.gossip.routes import routes
from proxyfl.transport.memory import MemoryTransport
from proxyfl.transport.wire import Message, encode
from tests.waiting import PATIENCE

SIZE = 7
NAMES = ("mean", "cycle", "pushsum")
HALF = topology.exponential(0.5)


def masses(clients, seed: int = 0) -> dict[int, Mass]:
    """Unequal parameters, held with unequal weights."""
    generator = np.random.default_rng(seed)
    found = {}
    for client in clients:
        theta, w = (
            torch.from_numpy(generator.normal(size=SIZE).astype(np.float32)),
            generator.uniform(0.5, 2),
        )
        found[client] = Mass.of(theta, w)
    return found


def mix(name, held, *, round=0, leaving=frozenset(), graph=HALF, transport=None):
    channel = MassChannel(transport or MemoryTransport(), round, "f" * 16, SIZE, timeout=1.0)
    return exchange.mixing(name, graph)(held, sorted(held), leaving, channel), channel


def matrix(name: str, clients: int, round: int, graph=HALF) -> np.ndarray:
    """P, written down from the method's definition."""
    eye = np.eye(clients)
    if name == "mean":
        return np.full((clients, clients), 1 / clients)
    if name == "cycle":
        return np.roll(eye, 1, axis=0)
    return routes(graph, round, range(clients)).matrix()


def rows(held: dict[int, Mass]) -> np.ndarray:
    return np.array([[*mass.m.double().tolist(), mass.w] for _, mass in sorted(held.items())])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("clients", [1, 2, 3, 5, 8])
def test_equals_the_matrix_product(name: str, clients: int) -> None:
    """Masses and weights after three rounds are P(2) P(1) P(0) times those before."""
    held = masses(range(clients))
    expected = rows(held)
    for round in range(3):
        held, _ = mix(name, held, round=round)
        expected = matrix(name, clients, round) @ expected
        np.testing.assert_allclose(rows(held), expected, rtol=1e-5, atol=1e-6)


def test_exponential_with_half_by_hand() -> None:
    """K = 4, round 1: everyone keeps half and gets half of what the client two places behind
    had."""
    held, _ = mix("pushsum", {i: Mass(torch.full((SIZE,), float(i))) for i in range(4)}, round=1)
    assert [float(held[i].m[0]) for i in range(4)] == [1.0, 2.0, 1.0, 2.0]


@settings(max_examples=30)
@given(
    name=st.sampled_from(NAMES), clients=st.integers(1, 9), round=st.integers(0, 6), data=st.data()
)
def test_mass_is_conserved_when_clients_leave(name: str, clients: int, round: int, data) -> None:
    """Whoever leaves hands on: total mass and weight stay, and those who stay are exactly those who
    hold them."""
    leaving = data.draw(st.sets(st.integers(0, clients - 1), max_size=clients - 1))
    before = masses(range(clients), seed=clients)
    after, _ = mix(name, before, round=round, leaving=leaving)
    assert set(after) == set(range(clients)) - leaving
    np.testing.assert_allclose(rows(after).sum(0), rows(before).sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["mean", "cycle", "pushsum"])
def test_ids_with_gaps(name: str) -> None:
    """Clients are ids, not positions: 2, 5 and 11 mix as 0, 1 and 2 would."""
    plain = masses(range(3))
    gaps = dict(zip((2, 5, 11), plain.values(), strict=True))
    np.testing.assert_array_equal(rows(mix(name, gaps)[0]), rows(mix(name, plain)[0]))


@pytest.mark.parametrize("name", NAMES)
def test_consensus_is_a_fixed_point(name: str) -> None:
    """Equal parameters stay equal, whatever the weights."""
    theta = torch.sin(torch.arange(SIZE, dtype=torch.float32))
    held = {i: Mass.of(theta, w) for i, w in enumerate((1.0, 0.3, 2.0))}
    for round in range(4):
        held, _ = mix(name, held, round=round)
        for mass in held.values():
            torch.testing.assert_close(mass.theta, theta, rtol=1e-5, atol=1e-6)


def frame() -> int:
    return len(encode(Message(0, 0, 1.0, torch.zeros(SIZE), "f" * 16)))


@pytest.mark.parametrize(
    ("name", "clients", "messages"),
    [
        ("mean", 1, 0),
        ("mean", 4, 6),
        ("cycle", 1, 0),
        ("cycle", 2, 2),
        ("cycle", 4, 4),
        ("pushsum", 1, 0),
        ("pushsum", 2, 2),
        ("pushsum", 5, 5),
    ],
)
def test_every_byte_is_counted(name: str, clients: int, messages: int) -> None:
    """Messages are those that the method needs, what is sent is received, and bytes are those of
    the frames."""
    _, channel = mix(name, {i: Mass(torch.zeros(SIZE)) for i in range(clients)})
    counted = [channel.of(i) for i in range(clients)]
    assert (
        sum(t.messages_sent for t in counted)
        == sum(t.messages_received for t in counted)
        == messages
    )
    assert (
        sum(t.bytes_sent for t in counted)
        == sum(t.bytes_received for t in counted)
        == messages * frame()
    )


def test_the_hub_carries_the_traffic() -> None:
    """In the mean the first client that stays is the hub: it gets from all and sends to those who
    stay."""
    _, channel = mix("mean", masses(range(5)), leaving={0, 3})
    sent = [channel.of(i).messages_sent for i in range(5)]
    received = [channel.of(i).messages_received for i in range(5)]
    assert sent == [1, 2, 1, 1, 1]
    assert received == [0, 4, 1, 0, 1]


def test_what_is_kept_is_not_sent() -> None:
    """A share for oneself goes over no wire, and one of zero is no message."""
    _, channel = mix("pushsum", masses(range(4)), graph=topology.from_matrices(np.diag([1.0] * 4)))
    assert not channel.traffic


def test_a_hand_over_is_bit_exact() -> None:
    """The pure permutation passes parameters on bit for bit: no arithmetic, no rounding."""
    before = masses(range(4))
    after, _ = mix("cycle", before)
    for i in range(4):
        assert torch.equal(after[(i + 1) % 4].m, before[i].m)
        assert after[(i + 1) % 4].w == before[i].w


@pytest.mark.parametrize("name", ["mean", "cycle", "pushsum"])
def test_the_result_does_not_depend_on_who_hosts_whom(name: str) -> None:
    """Clients of three processes that share a transport end with the bits of one process that hosts
    all."""
    held = masses(range(6))
    together, _ = mix(name, held)
    transport, apart = MemoryTransport(), {}

    def host(mine: list[int]) -> None:
        channel = MassChannel(transport, 0, "f" * 16, SIZE, timeout=PATIENCE)
        apart.update(
            exchange.mixing(name, HALF)({i: held[i] for i in mine}, range(6), frozenset(), channel)
        )

    threads = [threading.Thread(target=host, args=(mine,)) for mine in ([5, 0], [1, 4], [3, 2])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(6):
        assert torch.equal(apart[i].m, together[i].m)
        assert apart[i].w == together[i].w


def test_a_silent_peer_is_named() -> None:
    """A client whose sender never sends ends with PeerTimeout that names it."""
    channel = MassChannel(MemoryTransport(), 0, "f" * 16, SIZE, timeout=0.05)
    with pytest.raises(PeerTimeout, match="Client 1 sent nothing to client 0"):
        exchange.mixing("cycle", HALF)({0: Mass(torch.zeros(SIZE))}, (0, 1), frozenset(), channel)


@pytest.mark.parametrize(("model", "size"), [("g" * 16, SIZE), ("f" * 16, SIZE + 1)])
def test_another_architecture_is_refused(model: str, size: int) -> None:
    """A mass of another proxy architecture is not added: the frame is refused when it is read."""
    transport = MemoryTransport()
    MassChannel(transport, 0, model, size).send(Mass(torch.zeros(size)), sender=1, receiver=0)
    with pytest.raises(ProxyFLError):
        MassChannel(transport, 0, "f" * 16, SIZE).receive(
            sender=1, receiver=0, like=torch.zeros(SIZE)
        )
    with pytest.raises(ModelError):
        exchange.add([Mass(torch.zeros(2)), Mass(torch.zeros(3))])


def test_gossip_finds_the_average() -> None:
    """With unequal weights and a P that is only column-stochastic, every client ends at sum(m) /
    sum(w)."""
    P = np.array([[0.5, 0.3, 0.0], [0.5, 0.4, 0.6], [0.0, 0.3, 0.4]])
    held = masses(range(3))
    total = rows(held).sum(0)
    for round in range(60):
        held, _ = mix("pushsum", held, round=round, graph=topology.from_matrices(P))
    for mass in held.values():
        np.testing.assert_allclose(mass.theta.numpy(), total[:-1] / total[-1], rtol=1e-4, atol=1e-5)
    assert not math.isclose(held[0].w, held[1].w)
