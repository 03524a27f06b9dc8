"""A store is written once, whole, the same whoever writes it, and read row by row."""

import pickle
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file

from proxyfl.cli.main import main
from proxyfl.data.dataset import hold_out, person_number
from proxyfl.data.examples import InMemory, pixels
from proxyfl.data.holdout import seeded_key
from proxyfl.data.sources import load
from proxyfl.data.stores import writing
from proxyfl.data.stores.faults import Faults
from proxyfl.data.stores.index import Content, Entry, Head
from proxyfl.data.stores.writing import write_store
from proxyfl.errors import DataError, RunError
from proxyfl.simulation.config import load as load_config
from proxyfl.simulation.run import run

IMAGES = np.random.default_rng(0).integers(0, 256, (90, 3, 8, 8), dtype=np.uint8)
CONTENT = Content((3, 8, 8), "uint8", ("no", "yes"), {"by": "a test"})
ENTRIES = [
    Entry(
        label=("no", "yes")[i // 2 % 2],
        site=("north", "south", "west")[i % 3],
        person=f"p{i % 3}-{i // 9}",
        file=f"{i}.png",
    )
    for i in range(90)
]


def read(start: int, entries: Sequence[Entry]) -> Iterator[npt.NDArray[Any]]:
    """The images of some entries."""
    return iter(IMAGES[start : start + len(entries)])


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven images a shard, so that a small store has many."""
    monkeypatch.setattr(writing, "SHARD_BYTES", 7 * 192)


NUMBERED = [
    replace(entry, person=person_number(number))
    for entry, number in zip(
        ENTRIES, np.unique([entry.person for entry in ENTRIES], return_inverse=True)[1], strict=True
    )
]
"""The same with persons who are named by their numbers, as arrays have them."""


def write(folder: Path, entries: Sequence[Entry] = ENTRIES, **options: Any) -> Head:
    """A store of all images."""
    return write_store(folder, CONTENT, entries, read, Faults(), **options)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_store_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Pixels, labels, sites and persons come back in order; the test part is drawn by person, as
    from the same examples in memory."""
    write(tmp_path / "store", NUMBERED)
    found = load(str(tmp_path / "store"), seed=3)
    labels = torch.tensor([i // 2 % 2 for i in range(90)])
    persons = found.train.examples.groups  # type: ignore[attr-defined]
    expected = hold_out(
        "store",
        InMemory(pixels(IMAGES), labels, persons),
        ("no", "yes"),
        test_fraction=0.2,
        key=seeded_key(3),
        site=torch.arange(90) % 3,
        site_names=("north", "south", "west"),
    )
    assert found.site_names == expected.site_names
    for part in ("train_x", "train_y", "test_x", "test_y", "site", "test_site"):
        assert torch.equal(getattr(found, part), getattr(expected, part)), part
    assert not set(found.train.groups.tolist()) & set(found.test.groups.tolist())


def test_a_store_is_pickled_as_its_path(tmp_path: Path) -> None:
    """A worker that receives the examples reads the files itself."""
    write(tmp_path / "store")
    examples = load(str(tmp_path / "store")).train
    sent = pickle.dumps(examples)
    assert len(sent) < 20_000
    rows = torch.tensor([5, 1, 1, 40, 41, 42])
    assert torch.equal(pickle.loads(sent).take(rows), examples.take(rows))


@pytest.mark.parametrize("workers", [1, 4])
def test_an_interrupted_store_is_continued_to_the_same_bytes(tmp_path: Path, workers: int) -> None:
    """Whatever was finished before a stop stays; the store is equal to one that was never
    stopped, and a shard that was damaged meanwhile is written anew."""
    write(tmp_path / "whole")
    asked: list[int] = []

    def stopping(start: int, entries: Sequence[Entry]) -> Iterator[npt.NDArray[Any]]:
        if len(asked) == 6:
            raise KeyboardInterrupt
        asked.append(start)
        return read(start, entries)

    folder = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        write_store(folder, CONTENT, ENTRIES, stopping, Faults(), workers=workers)
    assert not (folder / "store.json").exists()
    with (folder / writing.JOURNAL).open("a") as journal:
        journal.write('{"number": 12, "sha')
    first = min(folder.glob("*.npy"))
    first.write_bytes(first.read_bytes()[:-1] + b"!")
    again: list[int] = []

    def noting(start: int, entries: Sequence[Entry]) -> Iterator[npt.NDArray[Any]]:
        again.append(start)
        return read(start, entries)

    write_store(folder, CONTENT, ENTRIES, noting, Faults(), workers=workers)
    assert 0 < len(again) < 13
    assert contents(folder) == contents(tmp_path / "whole")


def test_another_store_is_not_continued(tmp_path: Path) -> None:
    """A folder with a store, or with one begun from other entries, is refused."""

    def stopping(start: int, entries: Sequence[Entry]) -> Iterator[npt.NDArray[Any]]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_store(tmp_path, CONTENT, ENTRIES[1:], stopping, Faults())
    with pytest.raises(DataError, match="begun with other settings or other files"):
        write(tmp_path)
    write(tmp_path / "whole")
    with pytest.raises(DataError, match="a finished store already"):
        write(tmp_path / "whole")


def test_a_garbled_list_of_shards_is_named(tmp_path: Path) -> None:
    """What an interrupted store noted is checked before it is believed."""
    for text in ("not JSON\n", "[]\n", '{"plan": "a"}\n{"number": 3}\n'):
        (tmp_path / writing.JOURNAL).write_text(text)
        with pytest.raises(DataError, match="not the list of a store's shards"):
            write(tmp_path)


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    """A folder in which a store is being written is refused, and the store is whole."""
    refused = []

    def reading(start: int, entries: Sequence[Entry]) -> Iterator[npt.NDArray[Any]]:
        if not refused:
            refused.append(start)
            with pytest.raises(RunError, match="another process is writing"):
                write(tmp_path / "store")
        return read(start, entries)

    write_store(tmp_path / "store", CONTENT, ENTRIES, reading, Faults())
    write(tmp_path / "whole")
    assert refused
    assert contents(tmp_path / "store") == contents(tmp_path / "whole")


def test_a_stop_at_the_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop while the sheet is drawn, or after the head was written, is continued too."""
    write(tmp_path / "whole")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "drawing", draw=stop)
    assert not (tmp_path / "drawing" / "store.json").exists()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", stop)
        with pytest.raises(KeyboardInterrupt):
            write_text_only(tmp_path / "last", patch)
    assert (tmp_path / "last" / "store.json").exists()
    for name in ("drawing", "last"):
        write(tmp_path / name)
        assert contents(tmp_path / name) == contents(tmp_path / "whole")


def write_text_only(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """A store whose scratch files are not removed, so that the first to be is the journal."""

    @contextmanager
    def whole(path: Path, **_how: bool) -> Iterator[Path]:
        scratch = path.with_name(f".{path.name}.new")
        yield scratch
        scratch.replace(path)

    patch.setattr("proxyfl._files.whole", whole)
    write(folder)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"examples": 7', '"examples": 6', "says that its shards hold"),
        ('"examples": 7', '"examples": -7', "a shard of -7 examples"),
        ('"uint8"', '"float64"', "examples of type 'float64'"),
        ('"uint8"', '"float32"', "expected float32 of shape"),
        ("000002.npy", "../../elsewhere", "a shard outside of the store"),
    ],
)
def test_a_head_that_its_shards_contradict(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    """An edited ``store.json`` never moves examples to other labels: it is refused."""
    write(tmp_path / "store")
    head = tmp_path / "store" / "store.json"
    head.write_text(head.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=expected):
        load(str(tmp_path / "store"))


def test_two_heads_that_are_wrong_together(tmp_path: Path) -> None:
    """Two shards of wrong lengths whose sum is right are noticed."""
    write(tmp_path / "store")
    head = tmp_path / "store" / "store.json"
    text = head.read_text().replace('"examples": 7', '"examples": 6', 1)
    head.write_text(text.replace('"examples": 7', '"examples": 8', 1))
    with pytest.raises(DataError, match="expected uint8 of shape"):
        load(str(tmp_path / "store"))


def test_a_wrong_checksum_is_named(tmp_path: Path) -> None:
    """A changed byte is refused with the shard's name; by choice its examples are left out, and
    counted."""
    store = tmp_path / "store"
    write(store)
    shard = store / "000002.npy"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataError, match=r"000002\.npy: its SHA-256 is .* expected"):
        load(str(store))
    found = load(str(store), faults="skip")
    assert len(found.train) + len(found.test) == 83
    assert "skipped 7 examples of" in found.notes[0]
    assert "000002.npy" in found.notes[0]
    rest = np.delete(IMAGES, range(14, 21), axis=0)
    source = found.train.examples  # type: ignore[attr-defined]
    assert torch.equal(source.take(torch.arange(83)), pixels(rest))
    shard.unlink()
    with pytest.raises(DataError, match=r"000002\.npy: cannot be read"):
        load(str(store))


def test_a_run_says_what_was_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`proxyfl run` over a store with a damaged shard that is skipped says so."""
    write(tmp_path / "store")
    (tmp_path / "store" / "000002.npy").unlink()
    settings = [f"data.source={tmp_path / 'store'}", "data.faults=skip", "rounds=1"]
    settings += ["partition.kind=site", "learning.batch_size=8", 'methods=["alone"]']
    words = ["run", "--out", str(tmp_path / "run")]
    for setting in settings:
        words += ["--set", setting]
    assert main(words) == 0
    assert "skipped 7 examples of" in capsys.readouterr().err


def test_a_changed_index_is_named(tmp_path: Path) -> None:
    """A label that was edited by hand is noticed."""
    store = tmp_path / "store"
    write(store)
    text = (store / "index.csv").read_text()
    (store / "index.csv").write_text(text.replace("yes", "no", 1))
    with pytest.raises(DataError, match=r"index\.csv: its SHA-256"):
        load(str(store))


def test_faults_are_refused_or_counted(tmp_path: Path) -> None:
    """An entry without an example stops the store, unless its kind is skipped; then it is
    missing from the index and counted in the head."""

    def damaged(start: int, entries: Sequence[Entry]) -> Iterator[Any]:
        for i, entry in enumerate(entries, start):
            bad = i in (3, 50)
            yield ("damaged", f"{entry.file}: broken") if bad else IMAGES[i]

    with pytest.raises(DataError, match=r"3\.png: broken \(damaged: .*--skip damaged"):
        write_store(tmp_path / "a", CONTENT, ENTRIES, damaged, Faults())
    faults = Faults(["damaged"])
    head = write_store(tmp_path / "a", CONTENT, ENTRIES, damaged, faults)
    assert head.skipped == {"damaged": 2}
    assert "skipped 2 x damaged" in faults.lines()[0]
    found = load(str(tmp_path / "a"))
    source = found.train.examples  # type: ignore[attr-defined]
    kept = np.delete(IMAGES, [3, 50], axis=0)
    assert torch.equal(source.take(torch.arange(88)), pixels(kept))
    assert found.notes == ("skipped 2 x damaged",)


def test_a_run_over_a_store_equals_the_run_in_memory(tmp_path: Path) -> None:
    """Three sites train to the same bits from a store and from an archive of the same images."""
    write(tmp_path / "same", NUMBERED)
    persons = [entry.person for entry in ENTRIES]
    np.savez(
        tmp_path / "same.npz",
        x=IMAGES,
        y=np.array([entry.label for entry in ENTRIES]),
        site=np.array([entry.site for entry in ENTRIES]),
        group=np.unique(persons, return_inverse=True)[1],
    )
    found = []
    for source, site in (("same", []), ("same.npz", ["data.site=site"])):
        settings = [
            f"data.source={tmp_path / source}",
            "partition.kind=site",
            "rounds=2",
            "learning.batch_size=8",
            *site,
        ]
        folder = tmp_path / f"run-{source}"
        run(load_config(None, settings), out=folder)
        models = sorted(folder.rglob("*.safetensors"))
        assert len(models) > 3
        found.append([load_file(path) for path in models])
    for mine, other in zip(*found, strict=True):
        assert mine.keys() == other.keys()
        for name, values in mine.items():
            assert torch.equal(values, other[name]), name


def test_a_store_may_be_moved(tmp_path: Path) -> None:
    """A store holds no path of its own."""
    write(tmp_path / "here")
    before = load(str(tmp_path / "here"))
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert torch.equal(load(str(tmp_path / "there")).test_x.sum(), before_sum(before))


def before_sum(dataset: Any) -> Any:
    """The sum over the test images of the generator's own array."""
    return pixels(IMAGES)[dataset.test.rows].sum()


def test_a_store_names_every_person_or_none(tmp_path: Path) -> None:
    """Examples without a person beside others that have one are refused: they would be taken for
    one person."""
    some = [replace(ENTRIES[0], person=""), *ENTRIES[1:]]
    write_store(tmp_path / "some", CONTENT, some, read, Faults())
    with pytest.raises(DataError, match="example 0 names no person, and others do"):
        load(str(tmp_path / "some"))
    none = [replace(entry, person="") for entry in ENTRIES]
    write_store(tmp_path / "none", CONTENT, none, read, Faults())
    assert load(str(tmp_path / "none")).train.groups is None
