"""Encoded rows in memory or in a file: the same examples, and nothing left behind."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from proxyfl.data.examples import checksum, is_in_memory
from proxyfl.data.tables import scratch
from proxyfl.data.tables.loading import load_tables
from proxyfl.data.tables.scratch import Scratch
from tests.data.tables import making


def filled(values: np.ndarray) -> Scratch:
    """A scratch that was given rows in parts of three."""
    found = Scratch(values.shape[1])
    for part in np.array_split(values, len(values) // 3):
        found.add(part)
    return found


@pytest.fixture
def in_a_file(monkeypatch, tmp_path):
    """Every table is large."""
    monkeypatch.setattr(scratch, "IN_MEMORY", 100)
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_file_holds_what_memory_would(in_a_file, monkeypatch):
    """Rows that went to a file while they came are the rows that went in, each with its label."""
    values = np.random.default_rng(0).normal(size=(40, 7)).astype(np.float32)
    labels, persons = torch.arange(40) % 2, torch.arange(40) // 2
    kept = np.array([0, 5, 39, 7])
    mapped = filled(values).examples(kept, labels, persons)
    monkeypatch.setattr(scratch, "IN_MEMORY", 2**20)
    plain = filled(values).examples(kept, labels, persons)
    assert is_in_memory(plain)
    assert not is_in_memory(mapped)
    assert checksum(mapped) == checksum(plain)
    assert torch.equal(mapped.take(torch.arange(4)), torch.from_numpy(values[kept]))
    assert mapped.labels.tolist() == plain.labels.tolist() == [0, 1, 1, 1]
    assert mapped.groups.tolist() == plain.groups.tolist()


def test_a_large_table_is_the_same_dataset(tmp_path, in_a_file, monkeypatch):
    """Tables in a file and in memory have the same examples in both parts."""
    files = [
        making.write(tmp_path / "north.csv", making.rows(60)),
        making.write(tmp_path / "south.csv", making.rows(50, seed=1, first=100)),
    ]
    mapped = load_tables(files, making.SCHEMA)
    monkeypatch.setattr(scratch, "IN_MEMORY", 2**26)
    plain = load_tables(files, making.SCHEMA)
    for one, other in ((mapped.train, plain.train), (mapped.test, plain.test)):
        assert not is_in_memory(one)
        assert checksum(one) == checksum(other)
        assert torch.equal(one.groups, other.groups)
    assert torch.equal(mapped.site, plain.site)


def test_only_the_owner_reads_the_file(in_a_file):
    """The file lies in a folder that no other user may enter."""
    found = filled(np.zeros((40, 7), dtype=np.float32))
    found.examples(np.arange(40), torch.zeros(40), torch.zeros(40))
    (folder,) = (path for path in in_a_file.iterdir() if path.is_dir())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_file_is_gone_when_the_process_ends(tmp_path):
    """A process removes its file at its end; a fork of it that ends earlier does not."""
    code = """
import os, numpy
from proxyfl.data.tables import scratch
scratch.IN_MEMORY = 100
found = scratch.Scratch(7)
found.add(numpy.zeros((40, 7), dtype="float32"))
if os.fork() == 0:
    raise SystemExit
os.wait()
print(os.path.exists(found._file.name))
"""
    out = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == "True"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_million_rows_train_in_bounded_memory():
    """From a CSV file of a million rows to trained models within 300 MB beyond the program itself,
    and no more than twice what 250,000 rows need."""
    needed = {}
    for rows in (250_000, 1_000_000):
        out = subprocess.run(
            [sys.executable, "-m", "benchmarks.tables", str(2 * rows // 3), "--json"],
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=True,
        )
        needed[rows] = json.loads(out.stdout)["bytes"]
    assert needed[1_000_000] < 300e6
    assert needed[1_000_000] < 2 * needed[250_000]
