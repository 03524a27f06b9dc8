"""The one round loop: every method end to end, repeatable, independent of what is watched, and
never unpaid."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

from proxyfl import params
from proxyfl.data.examples import InMemory, Subset
from proxyfl.data.sources import load
from proxyfl.errors import PrivacyError
from proxyfl.federation import exchange, membership
from proxyfl.federation.client import Client
from proxyfl.federation.exchange import Exchange
from proxyfl.federation.learners import Losses, Mutual
from proxyfl.federation.membership import Presence
from proxyfl.federation.methods import METHODS, Method
from proxyfl.federation.metrics import Score, evaluate
from proxyfl.federation.rounds import run_rounds
from proxyfl.federation.trainers import PlainSGD
from proxyfl.gossip import topology
from proxyfl.gossip.topology import Topology
from proxyfl.models import build
from proxyfl.privacy.dpsgd import DPSGD, Batch
from proxyfl.privacy.guarantee import Kind
from proxyfl.privacy.ledger import Ledger
from proxyfl.seeds import Seeded
from proxyfl.settings import DP
from proxyfl.simulation import run as runner
from proxyfl.simulation.clients import Assembly
from proxyfl.simulation.config import from_tree
from proxyfl.simulation.division import split
from proxyfl.simulation.prepare import study_of
from proxyfl.transport.memory import MemoryTransport

ALL = load("digits")
DIGITS = dataclasses.replace(ALL, test=Subset(ALL.test, torch.arange(50)))
TIMES = ("seconds_training", "seconds_evaluation", "seconds_exchange")


def tiny(method: str, *, clients: int = 3, rounds: int = 2, **sections):
    """A few clients with 30 digits each, two steps a round."""
    tree = {
        "methods": [method],
        "rounds": rounds,
        "evaluate_every": 1,
        "partition": {"clients": clients, "examples": 30},
        "learning": {"batch_size": 15, "beta": 0.0} | sections.pop("learning", {}),
        **sections,
    }
    return from_tree(tree)


def rows(config, **options) -> list[dict]:
    """Every record of a run, without the clock."""
    found = runner.run(config, dataset=DIGITS, **options).rows
    return [{key: value for key, value in row.items() if key not in TIMES} for row in found]


WITH_DP = [name for name in METHODS if name != "score"]
"""A published score needs a schema that states it (``tests/data/tables/test_start.py``)."""

WITHOUT_DP = [name for name in WITH_DP if METHODS[name].exchange != "masked"]
"""A masked sum is refused without DP (``tests/simulation/test_proxysum.py``)."""


@pytest.mark.parametrize(
    ("name", "enabled"), [*((name, True) for name in WITH_DP), *((n, False) for n in WITHOUT_DP)]
)
def test_every_method_runs_and_repeats(name: str, enabled: bool) -> None:
    """End to end, twice, with and without DP: complete records, and every number the same to the
    last bit."""
    config = tiny(name, privacy={"enabled": enabled})
    found = rows(config)
    assert found == rows(config)
    method, private = METHODS[name], METHODS[name].dp and enabled
    assert len(found) == 2 * (1 if method.pooled else 3)
    for row in found:
        assert row["epsilon_kind"] == ("end-to-end" if private else "none")
        assert (row["epsilon_pld"] is not None) == private
        assert row["steps"] == (6 if method.pooled else 2)
        assert (row["messages_sent"] > 0) == (method.exchange != "none")
        assert (row["private_loss"] is not None) == (method.keeps == "private")
        shares = method.learner == "mutual" or method.keeps != "private"
        assert (row["proxy_loss"] is not None) == shares
        assert 0 <= row[f"{method.keeps}_accuracy"] <= 1
        assert 0 <= row[f"{method.keeps}_macro_accuracy"] <= 1
        assert row["weight"] == 1.0
    if private:
        assert found[-1]["epsilon_rdp"] > found[0]["epsilon_rdp"]


def test_records_are_complete() -> None:
    """A record names round, client, presence, steps, losses, scores, cost with its kind, traffic
    and seconds."""
    (row, *_) = runner.run(tiny("proxyfl"), dataset=DIGITS).rows
    expected = {
        "method",
        "round",
        "client",
        "name",
        "present",
        "expected",
        "steps",
        "private_loss",
        "proxy_loss",
        "epsilon_rdp",
        "epsilon_pld",
        "delta",
        "epsilon_kind",
        "weight",
        "bytes_sent",
        "bytes_received",
        "messages_sent",
        "messages_received",
        "left",
        *TIMES,
    }
    scores = {
        f"{role}_{kind}"
        for role in ("private", "proxy", "received")
        for kind in ("accuracy", "macro_accuracy")
    }
    assert set(row) >= expected | scores
    assert row["delta"] == pytest.approx(1 / 30)
    assert row["bytes_sent"] > 4 * 650
    assert all(row[name] >= 0 for name in TIMES)


@pytest.mark.parametrize("name", ["fml", "proxyfl"])
@pytest.mark.parametrize(("beta", "kind"), [(0.0, "end-to-end"), (0.3, "conditional")])
def test_a_private_teacher_makes_it_conditional(name: str, beta: float, kind: str) -> None:
    """The same numbers, another kind: what epsilon is a statement about depends on beta."""
    found = rows(tiny(name, learning={"beta": beta}, rounds=1))
    assert {row["epsilon_kind"] for row in found} == {kind}


@pytest.mark.parametrize("name", ["alone", "avgpush", "proxyfl"])
def test_watching_changes_nothing(name: str) -> None:
    """How often models are evaluated changes no loss, no score of the last round and no cost."""
    often, seldom = (
        [
            row
            for row in rows(dataclasses.replace(tiny(name, rounds=3), evaluate_every=n))
            if row["round"] == 2
        ]
        for n in (1, 3)
    )
    assert often == seldom


def _exchange(name: str, graph: Topology, clients: list[Client], transport=None) -> Exchange:
    mix = exchange.mixing(name, graph)
    shared = clients[0].learner.shared
    return exchange.over(transport or MemoryTransport(), mix, shared=shared, timeout=1.0)


def small(method: Method, config, hosted: list[int], evaluator) -> tuple[list[Client], list]:
    """The clients ``hosted`` of a run, after its rounds, and their records."""
    prepared = runner.prepare(config, dataset=DIGITS, methods={"mine": method})
    clients = [prepared.assembly("mine").client(i) for i in hosted]
    mixes = method.exchange != "none"
    loop = run_rounds(
        clients,
        rounds=config.rounds,
        exchange=_exchange(method.exchange, prepared.topology, clients) if mixes else None,
        presence=membership.everyone(config.partition.clients)
        if len(hosted) == config.partition.clients
        else lambda _round: Presence(tuple(hosted), len(hosted)),
        evaluate=evaluator,
        evaluate_now=lambda _round: True,
    )
    return clients, list(loop)


def score(model: nn.Module, client: int, **_how: object) -> Score:
    return evaluate(model, DIGITS.test)


def drawing(model: nn.Module, client: int, **_how: object) -> Score:
    """An evaluation that also moves the global generator, as a careless one might."""
    torch.rand(17)
    return score(model, client)


def weights(client: Client) -> Tensor:
    return torch.cat([params.flatten(model) for model in client.learner.models().values()])


def test_clients_do_not_touch_each_other() -> None:
    """Without an exchange a client's bits do not depend on who else is there, nor on the order they
    are hosted in."""
    config = tiny("mine", rounds=2)
    method = dataclasses.replace(METHODS["proxyfl"], exchange="none")
    together = {client.id: weights(client) for client in small(method, config, [0, 1, 2], score)[0]}
    reversed_ = {
        client.id: weights(client) for client in small(method, config, [2, 1, 0], score)[0]
    }
    (alone,) = small(method, config, [1], score)[0]
    assert all(torch.equal(together[i], reversed_[i]) for i in range(3))
    assert torch.equal(together[1], weights(alone))
    assert not torch.equal(together[0], together[1])


def test_order_does_not_matter_with_an_exchange() -> None:
    """Hosted in any order, clients that mix end with the same bits; an evaluation that draws
    numbers moves none."""
    config = tiny("mine", rounds=3)
    forward = {
        client.id: weights(client)
        for client in small(METHODS["proxyfl"], config, [0, 1, 2], score)[0]
    }
    backward = {
        client.id: weights(client)
        for client in small(METHODS["proxyfl"], config, [2, 0, 1], drawing)[0]
    }
    assert all(torch.equal(forward[i], backward[i]) for i in range(3))


@pytest.mark.parametrize("private", [["mlp", "mlp", "mlp"], ["lenet5", "mlp", "cnn1"], "tabular"])
@pytest.mark.parametrize("name", ["proxyfl", "fml"])
def test_at_beta_zero_no_private_model_reaches_any_proxy(name: str, private) -> None:
    """Over rounds and through the exchange, every proxy's bits are the same whatever the private
    models are."""
    proxies = []
    for models in ("linear", private):
        config = tiny("mine", models={"private": models, "proxy": "linear"})
        clients, _ = small(METHODS[name], config, [0, 1, 2], score)
        proxies.append(torch.cat([params.flatten(client.learner.shared) for client in clients]))
    assert torch.equal(*proxies)


def test_clients_draw_their_own_batches_and_noise() -> None:
    """Clients with the same data and the same start train differently: each stream is a client's
    own."""
    config = tiny("mine", rounds=1)
    first, *_ = split(config, DIGITS)
    study = study_of(dataclasses.replace(config, measure="accuracy"), DIGITS, 3)
    locals = config.locals(["a", "b", "c"])
    assembly = Assembly(config, study, METHODS["regular"], DIGITS, [first] * 3, locals)
    clients = [assembly.client(i) for i in range(3)]
    starts = [weights(client) for client in clients]
    for client in clients:
        client.learner.train(0, 2)
    assert torch.equal(starts[0], starts[1])
    assert len({weights(client).sum().item() for client in clients}) == 3
    trainers = [client.learner.trainer for client in clients]
    for draws in (
        [t._batches.uniform(4) for t in trainers],
        [t._noise.normal(4) for t in trainers],
    ):
        assert len({tuple(draw.tolist()) for draw in draws}) == 3


class Unpaid:
    """A learner that trains without asking the ledger."""

    def __init__(self, trainer: DPSGD) -> None:
        self.trainer, self.shared = trainer, trainer.model

    def train(self, round: int, steps: int) -> Losses:
        with torch.no_grad():
            self.shared[1].weight += 1
        return Losses()

    def adopt(self, theta: Tensor) -> None:
        raise AssertionError("an unpaid proxy was exchanged")

    def models(self) -> dict:
        return {"proxy": self.shared}


def client(i: int, learner_of=None, **options) -> Client:
    proxy = build("linear", shape=(1, 8, 8), classes=10, seed=0)
    x, y = (DIGITS.train_x[i * 20 : i * 20 + 20], DIGITS.train_y[i * 20 : i * 20 + 20])
    ledger = Ledger(f"c{i}", delta=0.01, kind=Kind.END_TO_END, simulated=True)
    trainer = DPSGD(
        proxy,
        torch.optim.SGD(proxy.parameters(), lr=0.1),
        InMemory(x, y),
        dp=DP(clip_norm=1.0, noise_multiplier=2.0),
        classes=10,
        batch_size=10,
        ledger=ledger,
        batches=Seeded(0, "batches", i),
        noise=Seeded(0, "noise", i),
    )
    private = build("linear", shape=(1, 8, 8), classes=10, seed=i + 1)
    learner = (
        learner_of(trainer)
        if learner_of
        else Mutual(
            private, torch.optim.SGD(private.parameters(), lr=0.1), trainer, classes=10, alpha=0.5
        )
    )
    return Client(
        id=i,
        name=f"c{i}",
        learner=learner,
        ledger=ledger,
        steps=2,
        global_seed=lambda r: 10 * r + i,
    )


def loop(clients: list[Client], presence, rounds: int = 1, name: str = "pushsum"):
    return run_rounds(
        clients,
        rounds=rounds,
        exchange=_exchange(name, topology.exponential(0.5), clients),
        presence=presence,
        evaluate=score,
        evaluate_now=lambda _round: False,
    )


def test_an_unpaid_proxy_does_not_leave() -> None:
    """A round that is not on the ledger is refused before any client's mass is sent, with client
    and round named."""
    transport = MemoryTransport()
    clients = [client(0), client(1, Unpaid)]
    rounds = run_rounds(
        clients,
        rounds=1,
        exchange=_exchange("pushsum", topology.exponential(), clients, transport),
        presence=membership.everyone(2),
        evaluate=score,
        evaluate_now=lambda _round: False,
    )
    with pytest.raises(PrivacyError, match="client c1 must not leave: round 0"):
        next(rounds)
    assert not transport._frames


def test_the_cost_is_on_record_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a round's first batch is drawn, all of the round's steps are on the ledger already."""
    seen = []

    draw = DPSGD.draw

    def watching(self: DPSGD) -> Batch:
        seen.append(self.ledger.steps)
        return draw(self)

    one = client(0)
    monkeypatch.setattr(DPSGD, "draw", watching)
    list(loop([one], membership.everyone(1), rounds=2))
    assert seen == [2, 2, 4, 4]


@pytest.mark.parametrize("name", ["mean", "cycle", "pushsum"])
def test_leaving_hands_on(name: str) -> None:
    """The mass of who leaves goes to the others; later rounds go on without it, and its record says
    why."""
    clients = [client(i) for i in range(3)]
    presences = [Presence((0, 1, 2), 3, leaving={1: "budget spent"}), Presence((0, 2), 2)]
    (first, second) = list(loop(clients, presences.__getitem__, rounds=2, name=name))
    assert [record.left for record in first] == [None, "budget spent", None]
    assert [record.weight for record in first][1] == 0
    assert sum(record.weight for record in first) == pytest.approx(3)
    assert [record.client for record in second] == [0, 2]
    assert sum(record.weight for record in second) == pytest.approx(3)


def test_who_is_away_keeps_everything() -> None:
    """A client that is away trains nothing, sends nothing, pays nothing, and has the same bits
    afterwards."""
    clients = [client(i) for i in range(3)]
    before = weights(clients[1])
    (records,) = list(loop(clients, lambda _round: Presence((0, 2), 3)))
    assert [record.client for record in records] == [0, 2]
    assert all((record.present, record.expected) == (2, 3) for record in records)
    assert torch.equal(weights(clients[1]), before)
    assert clients[1].ledger.steps == 0


def test_fewer_steps() -> None:
    """Who can afford fewer steps takes and pays just those."""
    clients = [client(i) for i in range(2)]
    presence = Presence((0, 1), 2, fewer_steps={1: 1})
    (records,) = list(loop(clients, lambda _round: presence))
    assert [record.steps for record in records] == [2, 1]
    assert [c.ledger.steps for c in clients] == [2, 1]


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("name", ["proxyfl", "fml", "cwt", "fedavg"])
def test_few_clients(name: str, clients: int) -> None:
    """One client and two are federations too; a single one sends nothing."""
    found = rows(tiny(name, clients=clients, rounds=2))
    assert len(found) == 2 * clients
    assert {row["messages_sent"] for row in found} == ({0} if clients == 1 else {1})


def test_private_architectures_may_differ() -> None:
    """Each client trains the private model it asks for; all share one proxy architecture."""
    config = tiny("mine", models={"private": ["mlp", "lenet5", "cnn1"], "proxy": "linear"})
    clients, records = small(METHODS["proxyfl"], config, [0, 1, 2], score)
    sizes = [params.size(c.learner.own) for c in clients]
    assert len(set(sizes)) == 3
    assert {params.fingerprint(c.learner.shared) for c in clients} == {
        params.fingerprint(clients[0].learner.shared)
    }
    assert all(record.scores["private"].accuracy >= 0 for record in records[-1])


def test_a_new_method_is_a_new_row() -> None:
    """A row that is in no table of ours runs as its columns say."""
    methods = METHODS | {
        "ring": Method("private models that travel", "mutual", "cycle", keeps="private")
    }
    found = runner.run(tiny("ring"), dataset=DIGITS, methods=methods)
    assert found.rows[0]["messages_sent"] == 1
    assert found.accuracy("ring", 2) == found.finals("ring")[2]["private_accuracy"]


def dropping(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A private model with dropout."""
    torch.manual_seed(0)
    width = math.prod(shape)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(width, 20), nn.Dropout(0.5), nn.Linear(20, classes)
    )


def test_dropout_repeats() -> None:
    """Dropout in private models draws from a stream per client and round: a run repeats to the last
    bit."""
    config = tiny("proxyfl", models={"private": f"{__name__}:dropping", "proxy": "linear"})

    def run_once(before: int) -> list[Tensor]:
        prepared = runner.prepare(config, dataset=DIGITS)
        clients = [prepared.assembly("proxyfl").client(i) for i in range(3)]
        # whatever was drawn before the run must not matter
        torch.manual_seed(before)
        list(loop(clients, membership.everyone(3), rounds=2))
        return [params.flatten(one.learner.own) for one in clients]

    first, second = run_once(1), run_once(2)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_alone_needs_no_ledger_entry() -> None:
    """``alone`` trains without DP on a ledger of kind none; what is never shared costs nothing."""
    config = tiny("mine", rounds=1)
    clients, _ = small(METHODS["alone"], config, [0, 1, 2], score)
    assert all(isinstance(c.learner.trainer, PlainSGD) for c in clients)
    assert all(c.ledger.kind is Kind.NONE and c.ledger.steps == 0 for c in clients)
