"""Slips in Python get a sentence that names the remedy, never a raw exception."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import proxyfl
from proxyfl import Config, Dataset, InMemory
from proxyfl.errors import InputError, ProxyFLError
from proxyfl.simulation.config import Partition, Privacy
from proxyfl.simulation.run import resume

X = torch.zeros(8, 3)
Y = torch.arange(8) % 2


def made(x: object = X, labels: object = Y) -> Dataset:
    """A dataset whose training part holds what is given."""
    train = InMemory(x, labels)  # type: ignore[arg-type]  # a user's slip
    return Dataset("slip", train=train, test=InMemory(X, Y), classes=2, class_names=("a", "b"))


class NoFollower:
    """Has a round_ended and is no callback."""

    def round_ended(self, name: str, round: int, rows: object) -> None:
        """Nothing."""


SLIPS: dict[str, tuple[Callable[[], object], str]] = {
    "misspelt": (lambda: Config(ronds=3), r"'ronds' of Config\. Did you mean 'rounds'\?"),
    "misplaced": (lambda: Config(clients=3), r"There is partition\.clients\."),
    "in a table": (lambda: Partition(client=3), r"Did you mean 'clients'\?"),
    "inherited": (lambda: Privacy(noise=1.0), r"Did you mean 'noise_multiplier'\?|Known: .*noise"),
    "one method": (lambda: Config(methods="proxyfl"), r"Write methods=\('proxyfl',\)"),
    "function": (lambda: proxyfl.run(Config(), callbacks=[print]), r"proxyfl\.Callback in"),
    "no callback": (lambda: proxyfl.run(Config(), callbacks=[NoFollower()]), "round_ended"),
    "out": (lambda: proxyfl.run(Config(), out=3), "Expected a path for out, got 3 of type int"),
    "resume": (lambda: resume(3), "Expected a path for path, got 3"),
    "load": (lambda: proxyfl.load(3), "Expected a path for the run's folder, got 3"),
    "float labels": (lambda: made(labels=Y.float()), r"label as one int64, got torch\.float32"),
    "array": (lambda: made(x=X.numpy()), r"inputs of type ndarray.*torch\.as_tensor"),
    "list": (lambda: made(labels=[0] * 8), r"labels of type list.*torch\.as_tensor"),
    "short": (lambda: made(labels=Y[:5]), "a label for each of 8 examples, got 5"),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_gets_its_remedy(slip: str) -> None:
    """What was given, what was expected, and what to write instead."""
    act, words = SLIPS[slip]
    with pytest.raises(InputError, match=words):
        act()


def test_a_slip_leaves_no_folder(tmp_path: Path) -> None:
    """A wrong callback is refused before the run's folder is made."""
    with pytest.raises(ProxyFLError):
        proxyfl.run(Config(), out=tmp_path / "run", callbacks=[print])  # type: ignore[list-item]
    assert not (tmp_path / "run").exists()


def test_settings_are_still_settings() -> None:
    """Positions, keywords and defaults give what they gave; the class keeps its name and text."""
    assert Config(3).seed == 3
    assert Config(rounds=4) == Config(0, rounds=4)
    assert Config.__init__.__name__ == "__init__"
    assert Privacy(noise_multiplier=2.0).noise_multiplier == 2.0
    assert Privacy().enabled
