"""Methods with a learner or an exchange of the caller's own: contract, checks, records, workers."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from examples.fedprox import fedprox
from examples.trimmed_mean import trimmed_mean
from proxyfl import METHODS, Config, InMemory, Method, Run, load, run
from proxyfl.errors import ConfigError, PrivacyError
from proxyfl.federation.methods import name_of
from proxyfl.parts import (
    Input,
    Learning,
    Local,
    Losses,
    Mass,
    Mutual,
    Single,
    Study,
    assemble,
    flatten,
    mean,
    seeded,
)

CONFIG = Config(rounds=2)


def compare(mine: dict[str, Method], **given: object) -> Run:
    """Two rounds of FedAvg and of the methods ``mine`` on eight clients."""
    config = replace(CONFIG, methods=("fedavg", *mine))
    return run(config, methods=METHODS | mine, **given)  # type: ignore[arg-type]


def losses(result: Run, name: str) -> list[object]:
    return [row["proxy_loss"] for row in result.rows_of(name)]


def scores(result: Run, name: str) -> list[object]:
    return [row["received_macro_accuracy"] for row in result.finals(name)]


def averaged(learner: object) -> Method:
    return Method("mine", learner, "mean", keeps="received")  # type: ignore[arg-type]


def test_fedprox_without_its_term_is_fedavg() -> None:
    """With mu = 0 every number is FedAvg's; with mu = 5 it is another, at the same epsilon."""
    mine = {"none": averaged(partial(fedprox, mu=0.0)), "much": averaged(partial(fedprox, mu=5.0))}
    result = compare(mine)
    assert losses(result, "none") == losses(result, "fedavg")
    assert losses(result, "much") != losses(result, "fedavg")
    assert result.epsilon("much") == result.epsilon("fedavg")


def test_fedprox_stays_nearer_to_what_it_received() -> None:
    """The proximal term shortens the way that local training goes."""

    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    examples = InMemory(x, (x[:, 0] > 0).long())
    study = Study("s", input=Input((4,), ("a", "b")))
    local = Local("north", learning=Learning(batch_size=20, steps_per_round=20))
    moved = []
    for mu in (0.0, 2.0):
        row = averaged(partial(fedprox, mu=mu))
        client = assemble(study, local, examples, row, seeded(0, 0))
        before = flatten(client.learner.shared)
        client.learner.train(0, 20)
        moved.append(float((flatten(client.learner.shared) - before).norm()))
    assert moved[1] < 0.8 * moved[0]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_trimmed_mean_of_nothing_is_the_mean(workers: int) -> None:
    """With trim = 0 an exchange of the caller's own gives FedAvg's scores, also with workers."""
    own = partial(trimmed_mean, trim=0)
    mine = {"own": Method("mine", "single", own, keeps="received")}
    result = compare(mine, workers=workers)
    assert scores(result, "own") == pytest.approx(scores(result, "fedavg"), abs=0.02)
    assert [row["messages_sent"] for row in result.finals("own")] == [7] + [1] * 7


def test_workers_change_nothing() -> None:
    """FedProx and the trimmed mean give the same bits in one process and in two."""
    mine = {
        "fedprox": averaged(fedprox),
        "trimmed": Method("mine", fedprox, trimmed_mean, keeps="received"),
    }
    here, spread = compare(mine), compare(mine, workers=2)
    for name in mine:
        assert losses(here, name) == losses(spread, name)
        assert scores(here, name) == scores(spread, name)


def test_a_trimmed_mean_ignores_a_liar() -> None:
    """One client with absurd parameters moves nobody beyond what the others have."""

    class Here:
        def __init__(self) -> None:
            self.boxes: dict[tuple[int, int], Mass] = {}

        def send(self, mass: Mass, *, sender: int, receiver: int) -> None:
            self.boxes[sender, receiver] = mass

        def receive(self, *, sender: int, receiver: int, like: torch.Tensor) -> Mass:
            return self.boxes.pop((sender, receiver))

    masses = {i: Mass.of(torch.full((3,), float(i))) for i in range(4)}
    masses[3] = Mass.of(torch.full((3,), 1e9))
    mixed = trimmed_mean(masses, range(4), frozenset(), Here())  # type: ignore[arg-type]
    assert set(mixed) == {0, 1, 2, 3}
    for mass in mixed.values():
        torch.testing.assert_close(mass.theta, torch.full((3,), 1.5), check_dtype=False)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"learner": "mutal"}, "Unknown learner 'mutal'. Did you mean 'mutual'?"),
        ({"exchange": "pushsom"}, "Unknown exchange 'pushsom'. Did you mean 'pushsum'?"),
        ({"learner": 3}, "Expected a function or one of single, mutual for the learner, got 3"),
        ({"learner": lambda trainer: trainer}, "must take 2 arguments, trainer, private"),
        ({"exchange": lambda masses: masses}, "must take 4 arguments, masses, present"),
        ({"keeps": "privat"}, "Unknown kept model 'privat'. Did you mean 'private'?"),
        ({"architecture": "big"}, "Unknown architecture 'big'"),
        ({"learner": fedprox, "exchange": "masked"}, "A masked sum takes every step together"),
    ],
)
def test_a_row_checks_itself(row: dict[str, object], said: str) -> None:
    """A wrong row is refused when it is made, with what was probably meant."""
    with pytest.raises(ConfigError) as refusal:
        Method("mine", **({"learner": "single", "exchange": "mean"} | row))  # type: ignore[arg-type]
    assert said in str(refusal.value)


def elsewhere(trainer: object, private: object) -> object:
    learner = Single(trainer)  # type: ignore[arg-type]
    vars(learner)["shared"] = torch.nn.Linear(3, 3)
    return learner


def test_a_learner_must_share_the_trained_model() -> None:
    """What is released is what DP-SGD trains, or the run does not begin."""
    with pytest.raises(ConfigError, match="shares another model"):
        compare({"mine": averaged(elsewhere)})
    with pytest.raises(ConfigError, match="a str without trainer, shared"):
        compare({"mine": averaged(lambda trainer, private: "learner")})


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda masses: {}, r"for each of the clients \[0, 1, .*got \[\]"),
        (lambda masses: None, "got NoneType"),
        (lambda masses: {k: Mass.of(torch.zeros(2)) for k in masses}, "to return 650 parameters"),
        (
            lambda masses: {k: Mass(m.m * torch.nan, m.w) for k, m in masses.items()},
            "Expected numb",
        ),
        (lambda masses: {k: Mass(m.m, 0.0) for k, m in masses.items()}, "a positive weight"),
        (lambda masses: {k: Mass(-m.m, -m.w) for k, m in masses.items()}, "a positive weight"),
        (lambda masses: masses | {99: masses[0]}, "for each of the clients"),
        (lambda masses: dict.fromkeys(masses, 3), "to return 650 parameters"),
    ],
)
def test_an_exchange_must_return_every_clients_mass(result: object, said: str) -> None:
    """A result that does not fit names the exchange, the round and what was expected."""

    def exchange(masses: object, present: object, leaving: object, channel: object) -> object:
        return result(masses)  # type: ignore[operator]

    mine = {"mine": Method("mine", "single", exchange, keeps="received")}  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=said):
        compare(mine)


class Uncharged(Single):
    """Takes a step that is on no ledger."""

    def train(self, round: int, steps: int) -> Losses:
        return Losses(proxy=self.trainer.step(self.trainer.draw()))


class Twice(Single):
    """Charges for one step and takes two."""

    def train(self, round: int, steps: int) -> Losses:
        self.trainer.begin_round(round, 1)
        self.trainer.step(self.trainer.draw())
        return Losses(proxy=self.trainer.step(self.trainer.draw()))


class Again(Single):
    """Uses a batch twice, which samples it with another probability than was charged."""

    def train(self, round: int, steps: int) -> Losses:
        self.trainer.begin_round(round, 2)
        batch = self.trainer.draw()
        self.trainer.step(batch)
        return Losses(proxy=self.trainer.step(batch))


@pytest.mark.parametrize(
    ("learner", "said"),
    [
        (Uncharged, "no step left that is on its ledger"),
        (Twice, "no step left that is on its ledger"),
        (Again, "was used already"),
    ],
)
def test_a_learner_releases_nothing_that_was_not_charged(
    learner: type[Single], said: str, tmp_path: Path
) -> None:
    """Steps without a charge, more of them than were charged, and a batch used twice end the run
    before anything is sent."""
    sent = []

    def exchange(masses, present, leaving, channel):  # type: ignore[no-untyped-def]
        sent.append(sorted(masses))
        return dict(masses)

    mine = Method("mine", lambda trainer, private: learner(trainer), exchange, keeps="received")
    config = replace(CONFIG, methods=("mine",))
    with pytest.raises(PrivacyError, match=said):
        run(config, methods=METHODS | {"mine": mine}, out=tmp_path / "run")
    assert sent == []


def test_a_function_that_cannot_be_sent_to_workers_is_refused() -> None:
    """A lambda runs in one process; with workers the message says what to do."""
    mine = {"mine": averaged(lambda trainer, private: Single(trainer))}
    compare(mine)
    with pytest.raises(ConfigError, match="cannot be sent to worker processes"):
        compare(mine, workers=2)


def test_a_private_model_in_a_learner_of_ones_own() -> None:
    """With keeps="private" the learner is given the private model and what its loss needs."""

    def make(trainer, private):  # type: ignore[no-untyped-def]
        assert private is not None
        assert private.classes == 10
        return Mutual(
            private.model,
            private.optimizer,
            trainer,
            classes=private.classes,
            alpha=private.settings.alpha,
        )

    mine = {"mine": Method("mine", make, mean, keeps="private")}
    result = compare(mine)
    assert result.method("mine").mutual
    assert result.accuracy("mine", client=0) > 0


def test_functions_are_on_record_by_their_names(tmp_path: Path) -> None:
    """A run with functions is read back, shown and named; a row may also hold the names."""
    named = Method("mine", "examples.fedprox:fedprox", "examples.trimmed_mean:trimmed_mean")
    result = compare({"mine": replace(named, keeps="received")}, out=tmp_path / "run")
    (again,) = load(tmp_path / "run")
    assert again.method("mine").learner == "examples.fedprox:fedprox"
    assert scores(again, "mine") == scores(result, "mine")
    assert name_of(partial(fedprox, mu=3.0)) == "examples.fedprox:fedprox"
    mine = {"mine": Method("mine", fedprox, trimmed_mean, keeps="received")}
    called = compare(mine, out=tmp_path / "called")
    (read,) = load(tmp_path / "called")
    assert read.method("mine") == replace(named, keeps="received")
    assert scores(called, "mine") == scores(result, "mine")
