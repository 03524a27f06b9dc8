"""Programs that write to one ledger at the same instant, as real processes."""

import contextlib
import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from proxyfl.errors import PrivacyError
from proxyfl.privacy import journal

TRIES = 1500
HEADER = {"version": 1, "client": "north"}


def compete(folder: Path, name: str, barrier: Barrier) -> None:
    """Append one line to each file at the instant at which the other process does; note which
    attempts were told that the line is on record."""
    told = []
    for number in range(TRIES):
        path = folder / f"{number:04d}.jsonl"
        _, _, end = journal.read(path)
        barrier.wait()
        with contextlib.suppress(PrivacyError):
            journal.append(path, {"by": name}, end, durable=False)
            told.append(str(number))
    (folder / f"{name}.told").write_text(" ".join(told))


def test_what_is_told_to_be_on_record_is_on_record(tmp_path: Path) -> None:
    """Of two processes that append at once, exactly those that are told so have a line in the file,
    in each of 1500 tries."""
    for number in range(TRIES):
        journal.create(tmp_path / f"{number:04d}.jsonl", HEADER, durable=False)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    names = ("one", "two")
    processes = [context.Process(target=compete, args=(tmp_path, n, barrier)) for n in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=300)
        assert process.exitcode == 0
    told: dict[int, list[str]] = {number: [] for number in range(TRIES)}
    for name in names:
        for number in (tmp_path / f"{name}.told").read_text().split():
            told[int(number)].append(name)
    for number, writers in told.items():
        _, entries, _ = journal.read(tmp_path / f"{number:04d}.jsonl")
        assert [entry["by"] for entry in entries] == writers
        assert len(writers) == 1


def test_a_rest_of_equal_length_does_not_hide_another_writer(tmp_path: Path) -> None:
    """A program is stopped also where the other's line ends exactly where it expects the file to
    end, in place of an unfinished line."""
    path = tmp_path / "ledger.jsonl"
    journal.create(path, HEADER, durable=False)
    whole = path.read_bytes()
    _, _, end = journal.read(path)
    journal.append(path, {"by": "one"}, end, durable=False)
    line = path.read_bytes()[len(whole) :]
    path.write_bytes(whole + b"{" + b"x" * (len(line) - 1))
    _, _, one = journal.read(path)
    _, _, two = journal.read(path)
    journal.append(path, {"by": "one"}, one, durable=False)
    with pytest.raises(PrivacyError, match="something else writes"):
        journal.append(path, {"by": "two"}, two, durable=False)
    _, entries, _ = journal.read(path)
    assert entries == [{"by": "one"}]
