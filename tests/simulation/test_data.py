"""A run over data that stay in their file, and who holds which examples when there are workers."""

import gc
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from proxyfl.data import Dataset
from proxyfl.data.examples import InMemory, MemoryMapped, Subset
from proxyfl.data.sources import load
from proxyfl.errors import ConfigError, DataError, TopologyError
from proxyfl.simulation import engines
from proxyfl.simulation.config import Config
from proxyfl.simulation.engines import RoundReport, Task
from proxyfl.simulation.prepare import Prepared, fingerprint, prepare
from proxyfl.simulation.run import execute, resume, run

from .engines import assert_equal_runs, small

DIGITS = load("digits")
EVERYTHING = ["alone", "joint", "fedavg", "proxyfl"]


@pytest.fixture
def sources(tmp_path: Path) -> tuple[Path, Path]:
    """The same arrays as one .npz and as a folder of .npy files."""
    arrays = {
        "x_train": (DIGITS.train_x[:300].numpy() * 16).astype(np.uint8),
        "y_train": DIGITS.train_y[:300].numpy(),
        "x_test": (DIGITS.test_x[:60].numpy() * 16).astype(np.uint8),
        "y_test": DIGITS.test_y[:60].numpy(),
        "ward": np.arange(300) % 3,
    }
    np.savez(tmp_path / "arrays.npz", **arrays)
    folder = tmp_path / "arrays"
    folder.mkdir()
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    return tmp_path / "arrays.npz", folder


def over(source: Path, **changes: object) -> Config:
    """A small run over ``source``, one client for each ward."""
    return small(
        data={"source": str(source), "site": "ward"},
        partition={"kind": "site"},
        rounds=2,
        **changes,
    )


def test_a_run_over_a_file_equals_one_in_memory(sources: tuple[Path, Path], tmp_path: Path) -> None:
    """Metrics, ledgers and models are the same to the bit, in one process and on two workers."""
    npz, folder = sources
    run(over(npz, methods=EVERYTHING), out=tmp_path / "memory")
    run(over(folder, methods=EVERYTHING), out=tmp_path / "file")
    run(over(folder, methods=EVERYTHING), out=tmp_path / "workers", workers=2)
    assert_equal_runs(tmp_path / "memory", tmp_path / "file")
    assert_equal_runs(tmp_path / "memory", tmp_path / "workers")


def test_the_file_is_read_row_by_row(sources: tuple[Path, Path]) -> None:
    """The folder's inputs are mapped, not read; the fingerprint is that of the arrays."""
    npz, folder = sources
    in_memory, in_file = prepare(over(npz)), prepare(over(folder))
    assert isinstance(in_memory.dataset.train, InMemory)
    assert isinstance(in_file.dataset.train, MemoryMapped)
    assert fingerprint(in_memory) == fingerprint(in_file)


def test_a_changed_file_is_not_resumed(sources: tuple[Path, Path], tmp_path: Path) -> None:
    """A run whose file was changed since is refused."""
    _, folder = sources
    run(over(folder, methods=["alone"]), out=tmp_path / "run")
    changed = np.load(folder / "x_train.npy")
    changed[299, 0, 7, 7] ^= 1
    np.save(folder / "x_train.npy", changed)
    with pytest.raises(Exception, match="data"):
        resume(tmp_path / "run")


def own_dataset(n: int = 600) -> Dataset:
    """Digits in memory that nobody else refers to."""
    train = InMemory(DIGITS.train_x[:n].clone(), DIGITS.train_y[:n].clone())
    test = InMemory(DIGITS.test_x[:40].clone(), DIGITS.test_y[:40].clone())
    return Dataset("own", train=train, test=test, classes=10, class_names=DIGITS.class_names)


def sizes(prepared: Prepared) -> int:
    """Bytes of training inputs that a process holds."""
    train = prepared.dataset.train
    assert isinstance(train, InMemory)
    return train.x.untyped_storage().nbytes()


@pytest.mark.parametrize("pooled", [False, True])
def test_a_worker_holds_its_own_clients_examples(pooled: bool) -> None:
    """Of five clients with 40 examples each, a process has those of its clients and no more; the
    one with client 0 has everyone's where a method pools."""
    methods = ["alone", "joint"] if pooled else ["alone"]
    whole = prepare(small(methods=methods), dataset=own_dataset())
    one = 40 * 64 * 4
    assert sizes(whole) == 600 * 64 * 4
    assert sizes(whole.only([1, 3])) == 2 * one
    assert sizes(whole.only([0, 2, 4])) == (5 if pooled else 3) * one
    for i, client in enumerate(whole.only([1, 3]).clients):
        assert len(client) == (40 if i in (1, 3) else 0)
    everything = torch.arange(40)
    for client, other in zip(whole.clients, whole.only(range(5)).clients, strict=True):
        assert torch.equal(client.examples.take(everything), other.examples.take(everything))
        assert torch.equal(client.examples.labels, other.examples.labels)


def test_the_main_process_forgets_the_examples() -> None:
    """While workers train, the process that loaded the data holds none of it."""
    dataset = own_dataset()
    assert isinstance(dataset.train, InMemory)
    seen = weakref.ref(dataset.train.x)
    alive: list[bool] = []

    def watched(
        prepared: Prepared, tasks: Sequence[Task], out: Path | None
    ) -> Iterator[RoundReport]:
        for report in engines.engine(2)(prepared, tasks, out):
            gc.collect()
            alive.append(seen() is not None)
            yield report

    prepared = prepare(small(methods=["alone"], rounds=2), dataset=dataset)
    del dataset
    execute(prepared, engine=watched)
    assert alive == [False] * 3
    with pytest.raises(DataError, match="has handed the inputs of"):
        prepared.dataset.train.take(torch.arange(2))


def test_the_input_is_checked_in_pieces(tmp_path: Path) -> None:
    """A value that is not finite is found in a mapped file, with its place."""
    values = np.zeros((3000, 4000), dtype=np.float32)
    values[2900, 7] = np.inf
    np.save(tmp_path / "x.npy", values)
    labels = torch.zeros(3000, dtype=torch.int64)
    train = MemoryMapped(tmp_path / "x.npy", labels)
    with pytest.raises(DataError, match=r"got inf in example 2900 at \(7,\)"):
        Dataset("made", train=train, test=Subset(train, ROW), classes=1, class_names=["only"])


ROW = torch.tensor([0])


def test_run_takes_a_config() -> None:
    """Anything else than a Config is refused with what to give instead."""
    with pytest.raises(ConfigError, match=r"Expected a proxyfl\.Config, got dict\. Config\(\) has"):
        run({})  # type: ignore[arg-type]  # what a new user may try


def broken_topology(round: int, n: int) -> list[dict[int, float]]:
    """An own topology with a mistake in it."""
    raise KeyError("hub")


def test_an_own_topology_that_raises_is_named() -> None:
    """The error names the topology, what it raised, and when."""
    exchange = {"topology": "tests.simulation.test_data:broken_topology", "self_weight": "none"}
    with pytest.raises(TopologyError, match=r"broken_topology' raised KeyError for round 0"):
        prepare(small(exchange=exchange), dataset=own_dataset())


def test_the_proxy_does_not_depend_on_who_has_which_labels(tmp_path: Path) -> None:
    """With ``data.classes`` data without the last class give a proxy of the same size; without it,
    the missing class shows."""
    labels = DIGITS.train_y[:400].numpy()
    x = DIGITS.train_x[:400].numpy()
    np.savez(tmp_path / "all.npz", x=x, y=labels)
    np.savez(tmp_path / "some.npz", x=x[labels < 9], y=labels[labels < 9])
    outputs = {}
    for name in ("all", "some"):
        for classes in ([], list(range(10))):
            config = small(data={"source": str(tmp_path / f"{name}.npz"), "classes": classes})
            client = prepare(config).assembly("proxyfl").client(0)
            outputs[name, len(classes)] = client.learner.shared[-1].out_features
    assert outputs == {("all", 0): 10, ("some", 0): 9, ("all", 10): 10, ("some", 10): 10}


@pytest.mark.parametrize("classes", [["ill"], ["ill", "ill"], [1, "1"]])
def test_classes_are_two_or_more_and_distinct(classes: list[object]) -> None:
    """A list that names no choice, or one class twice, is refused."""
    with pytest.raises(ConfigError, match=r"two or more distinct names in data\.classes"):
        small(data={"classes": classes})
