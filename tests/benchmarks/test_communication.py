"""What communication costs: measured points, the model that extends them, and rounds to
consensus."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from benchmarks.communication import link, measure, mixing, wiremodel
from benchmarks.communication.command import parser
from benchmarks.communication.link import Link, Paced
from benchmarks.communication.measure import Case, Point
from benchmarks.communication.mixing import Setting, exact_error, exact_rounds, rounds_to, simulate
from benchmarks.communication.wiremodel import Processor, Wire
from proxyfl.errors import ConfigError, TopologyError
from proxyfl.gossip import reach, topology
from proxyfl.transport.memory import MemoryTransport
from tests.waiting import PATIENCE

from .. import ranks

pytestmark = pytest.mark.slow  # a study of its own: `make test-all` runs it


def point(
    method: str, clients: int, size: float, seconds: float, link: Link | None = None
) -> Point:
    """A measured point of messages of ``size`` bytes."""
    sent = size if wiremodel.pattern(method) == "gossip" else size * 2 * (clients - 1) / clients
    latency, bandwidth = (None, None) if link is None else (link.latency, link.bandwidth)
    return Point(
        method,
        "m",
        int(size / 4),
        clients,
        5,
        latency,
        bandwidth,
        seconds,
        seconds,
        seconds,
        seconds,
        sent,
        0,
    )


def test_the_exchange_is_measured_between_real_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gossip sends one message per client, the hub carries one per other client; emulated links
    take their time."""
    ranks.needs_mpi()
    for name, value in ranks.environment().items():
        monkeypatch.setenv(name, value)
    todo = [
        *(Case(method, "small", 1000, 3, 4) for method in ("proxyfl", "fml")),
        *(Case(method, "small", 1000, 3, 4, Link(0.05, 1e6)) for method in ("proxyfl", "fml")),
    ]
    gossip, hub, slow_gossip, slow_hub = measure.measure(todo, timeout=PATIENCE)
    size = gossip.bytes_sent
    assert 4000 < size < 4400
    assert gossip.bytes_busiest == size
    assert hub.bytes_sent == pytest.approx(4 / 3 * size, rel=0.01)
    assert hub.bytes_busiest == pytest.approx(2 * size, rel=0.01)
    assert 0 < gossip.seconds <= gossip.slowest
    assert slow_gossip.seconds >= 0.05 + size / 1e6
    assert slow_hub.slowest > 0.1 + 3 * size / 1e6


class Clock:
    """Time that passes only for those who sleep."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """The seconds slept so far."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of emulated links."""
    made = Clock()
    monkeypatch.setattr(link, "time", made)
    return made


def test_an_emulated_link_carries_one_frame_at_a_time(clock: Clock) -> None:
    """Three frames from one sender to one receiver arrive one after the other; sending does not
    wait for that."""
    below = MemoryTransport()
    slow = Link(latency=0.05, bandwidth=2e4)
    sender, receiver = Paced(below, slow), Paced(below, slow)
    for round in range(3):
        sender.send(bytes(2000), sender=0, receiver=1, round=round)
    assert clock.now == 0
    for round in range(3):
        assert receiver.receive(sender=0, receiver=1, round=round, timeout=1) == bytes(2000)
        assert clock.now == pytest.approx(0.05 + 0.1 * (round + 1))


def test_two_senders_share_the_receivers_link(clock: Clock) -> None:
    """Frames of two senders that leave together reach one receiver one after the other."""
    below, slow = MemoryTransport(), Link(latency=0.0, bandwidth=2e4)
    for k in range(2):
        Paced(below, slow).send(bytes(2000), sender=k, receiver=2, round=0)
    receiver = Paced(below, slow)
    for k in range(2):
        receiver.receive(sender=k, receiver=2, round=0, timeout=1)
    assert clock.now == pytest.approx(0.2)


def test_the_fit_finds_the_constants() -> None:
    """From points that the model itself made, the fit returns the constants they were made with."""
    wire = Wire(Processor(2e-4, 1e-9), Processor(5e-4, 3e-9), cores=2)
    sizes = {size: [2, 4, 8] for size in (1e4, 1e6)}
    points = [
        point(method, n, size, wiremodel.seconds(wire, wiremodel.pattern(method), n, size))
        for method in ("cwt", "fedavg")
        for size, counts in sizes.items()
        for n in counts
    ]
    found = wiremodel.fit(points, cores=2)
    for one, other in ((found.gossip, wire.gossip), (found.hub, wire.hub)):
        assert (one.a, one.b) == pytest.approx((other.a, other.b), rel=1e-6)
    assert max(map(abs, wiremodel.errors(found, points))) < 1e-6
    with pytest.raises(ConfigError, match="two or more model sizes"):
        wiremodel.fit([p for p in points if p.parameters == 2500], cores=2)


def test_gossip_is_flat_and_the_hub_linear() -> None:
    """With a machine each, gossip takes as long for 10,000 clients as for two; the hub's time grows
    with n."""
    wire = Wire(Processor(1e-4, 1e-9), Processor(1e-4, 1e-9), link=Link(0.01, 12.5e6))
    size = 8e5
    assert wiremodel.seconds(wire, "gossip", 10_000, size) == wiremodel.seconds(
        wire, "gossip", 2, size
    )
    assert wiremodel.seconds(wire, "gossip", 2, size) == pytest.approx(
        0.01 + 0.064 + 9e-4, rel=1e-6
    )
    ratio = wiremodel.seconds(wire, "hub", 10_001, size) / wiremodel.seconds(
        wire, "hub", 1001, size
    )
    assert ratio == pytest.approx(10, rel=0.01)
    fast = replace(wire, hub_link=Link(0.01, 1.25e9))
    assert wiremodel.seconds(fast, "hub", 1000, size) < 0.05 * wiremodel.seconds(
        wire, "hub", 1000, size
    )
    assert wiremodel.bytes_busiest("hub", 1000, size) == 999 * size
    assert wiremodel.bytes_busiest("gossip", 1000, size) == size


@pytest.mark.parametrize("graph", ["exponential", "ring"])
@pytest.mark.parametrize("clients", [2, 5, 8, 13])
def test_the_exact_error_is_the_dense_matrix_products(graph: str, clients: int) -> None:
    """What the Fourier basis gives is what multiplying the mixing matrices gives."""
    made = topology.TOPOLOGIES[graph](0.5)
    dense = reach.consensus_error(made, clients, 7)
    assert [exact_error(graph, clients, t + 1) for t in range(7)] == pytest.approx(dense, abs=1e-9)


def test_the_simulation_agrees_with_the_exact_error() -> None:
    """Simulated errors of the exponential graph are the exact ones, up to the chance of the
    starting values."""
    readings = list(islice(simulate(Setting("exponential", 200), np.random.default_rng(0)), 12))
    exact = [exact_error("exponential", 200, t + 1) for t in range(12)]
    assert [reading.error for reading in readings] == pytest.approx(exact, rel=0.25)


@hypothesis_settings(max_examples=30)
@given(
    graph=st.sampled_from(mixing.GRAPHS),
    clients=st.integers(2, 40),
    self_weight=st.floats(0.1, 0.9),
    loss=st.floats(0, 0.9),
    absence=st.floats(0, 0.8),
)
def test_kept_shares_conserve_mass(
    graph: str, clients: int, self_weight: float, loss: float, absence: float
) -> None:
    """If senders keep what is lost, no weight ever vanishes and error equals spread, on every
    graph."""
    setting = Setting(graph, clients, self_weight, loss, keep=True, absence=absence)
    for reading in islice(simulate(setting, np.random.default_rng(1)), 6):
        assert reading.weight == pytest.approx(1.0, abs=1e-9)
        assert reading.error == pytest.approx(reading.spread, abs=1e-9)
        assert reading.bare == 0


def test_lost_messages_take_weight_and_leave_a_bias() -> None:
    """Without acknowledgement the weight decays as predicted; clients agree, but not on the mean of
    all."""
    setting = Setting("exponential", 1000, loss=0.1)
    last = list(islice(simulate(setting, np.random.default_rng(0)), 60))[-1]
    assert last.weight == pytest.approx(mixing.weight_left(60, 0.1, 0.5), rel=0.1)
    assert last.spread < 1e-5
    assert last.error > 1e-3
    kept = list(islice(simulate(replace(setting, keep=True), np.random.default_rng(0)), 60))[-1]
    assert kept.error < 1e-5


def test_a_lost_proxy_that_was_passed_on_whole_leaves_nothing() -> None:
    """With self weight 0 every lost message leaves a client without any model, and averages nothing
    meanwhile."""
    setting = Setting("exponential", 500, self_weight=0.0, loss=0.05)
    readings = list(islice(simulate(setting, np.random.default_rng(0)), 10))
    assert 0 < readings[0].bare < 60
    assert readings[9].bare > 100
    assert exact_rounds("exponential", 500, 1e-3, 0.0) is None


def test_powers_of_two_are_averaged_exactly() -> None:
    """After log2(n) rounds of the exponential graph with self weight 1/2 all hold the mean; the
    ring needs n^2."""
    assert exact_rounds("exponential", 1024, 1e-3) == 10
    assert exact_error("exponential", 1024, 10) < 1e-12
    ring = [exact_rounds("ring", n, 1e-3) or 0 for n in (50, 100)]
    assert ring[1] / ring[0] == pytest.approx(4, rel=0.1)
    found = rounds_to(Setting("complete", 30), 1e-3, limit=5, generator=np.random.default_rng(0))
    assert found is not None
    assert (found[0], found[1].messages) == (1, 29)


def test_what_cannot_be_simulated_is_refused() -> None:
    """An unknown graph names the known ones; a loss that would need n^2 draws says how many clients
    are possible."""
    with pytest.raises(TopologyError, match="exponential, ring, random, complete"):
        Setting("star", 4)
    with pytest.raises(TopologyError, match="at most 3000"):
        Setting("complete", 10_000, loss=0.1)
    with pytest.raises(ConfigError, match="Known: mlp, cnn1, resnet18"):
        measure.cases(["proxyfl"], ["vit"], [2], 1)
    with pytest.raises(ConfigError, match="Unknown method 'alone'"):
        Case("alone", "mlp", 1, 2, 1)


def command_line(*arguments: str) -> int:
    """Run ``python -m benchmarks.communication`` with these arguments, errors and all."""
    args = parser().parse_args(arguments)
    code: int = args.execute(args)
    return code


def test_the_model_command_reads_points_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a file of points come the fit, its errors on points it has not seen, predictions, and a
    figure."""
    pytest.importorskip("matplotlib")
    wire, link = (Wire(Processor(1e-4, 1e-9), Processor(1e-4, 1e-9), cores=2), Link(0.01, 12.5e6))
    points = [
        point(
            method,
            n,
            size,
            wiremodel.seconds(replace(wire, link=given), wiremodel.pattern(method), n, size),
            given,
        )
        for method in ("proxyfl", "fml")
        for n in (2, 8, 32)
        for size in (1e4, 1e6)
        for given in (None, link)
    ]
    (tmp_path / "points.json").write_text(json.dumps({"points": [vars(p) for p in points]}))
    figure = tmp_path / "figures" / "model"
    assert (
        command_line(
            "model",
            str(tmp_path / "points.json"),
            "--cores",
            "2",
            "--json",
            "--figure",
            str(figure),
        )
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert {check["points"].split(",")[0] for check in document["checks"]} == {
        "fitted",
        "predicted",
    }
    assert all(check["median_error"] < 1e-6 for check in document["checks"])
    last = document["rows"][-1]
    assert last["clients"] == 10_000
    assert last["hub_seconds"] > 1000 * last["gossip_seconds"]
    assert figure.with_suffix(".png").stat().st_size > 10_000
    assert figure.with_name("model-measured.png").stat().st_size > 10_000
    assert len(list(figure.parent.iterdir())) == 2
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"broken\.json"):
        command_line("model", str(tmp_path / "broken.json"))


def test_the_mix_command_writes_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rounds and bytes per graph go to JSON and CSV; a graph that never averages has no rounds."""
    out = tmp_path / "mixing.json"
    assert (
        command_line(
            "mix", "--clients", "8,64", "--failures", "50", "--rounds", "20", "--out", str(out)
        )
        == 0
    )
    assert "never" in capsys.readouterr().out
    rows = json.loads(out.read_text())["consensus"]
    by = {(row["graph"], row["self_weight"], row["clients"]): row for row in rows}
    assert by["exponential", 0.5, 64]["rounds"] == 6
    assert by["exponential", 0.0, 64]["rounds"] is None
    assert by["complete", 1 / 64, 64]["messages"] == 63
    assert by["exponential", 0.5, 64]["megabytes"] == pytest.approx(6 * 4 * 199_210 / 1e6)
    assert len(out.with_suffix(".csv").read_text().splitlines()) == 1 + len(rows)
    with pytest.raises(ConfigError, match="2,4,8"):
        command_line("mix", "--clients", "many")
