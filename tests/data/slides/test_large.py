"""Slides of gigapixels and stores larger than memory. Each test prints what it measured."""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import openslide
import pytest

from proxyfl.data.images.listing import from_folders
from proxyfl.data.slides.extraction import extract, with_contours
from proxyfl.data.slides.planning import Patches, plan
from proxyfl.data.stores import index
from proxyfl.data.stores.faults import Faults
from proxyfl.data.stores.index import Content, Entry
from proxyfl.data.stores.writing import write_store
from tests.data.slides.generator import Disc, write_asap, write_slide

COMMAND = "import sys; from proxyfl.cli.main import main; sys.exit(main(sys.argv[1:]))"


def large_slide(root: Path, side: int) -> Path:
    """A slide of ``side`` squared pixels with a tumour, in a folder of its own."""
    path = root / str(side) / "north" / "somebody" / "large.tif"
    tumour = Disc(side * 0.45, side * 0.5, side * 0.22)
    tissue = Disc(side / 2, side / 2, side * 0.46)
    write_slide(path, (side, side), tissue, tumour, levels=8)
    write_asap(path.with_suffix(".xml"), [tumour.polygon()])
    return root / str(side)


def peak(words: list[str], limit: int | None = None) -> tuple[float, str]:
    """The largest resident memory of a command in MB, and what it printed; ``limit`` bounds the
    bytes that it may allocate."""

    def bound() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=bound,
    )
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, printed
    return usage.ru_maxrss / 1024, printed


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_memory_does_not_grow_with_the_slide(tmp_path: Path) -> None:
    """A hundred patches of a slide of 10 gigapixels, on two threads, take at most 16 MB more than
    of one of 100 megapixels: OpenSlide's lists of tiles are 2.4 MB a thread, and the map of
    tissue at most 4."""
    found = {}
    for side in (10_000, 100_000):
        root = large_slide(tmp_path, side)
        words = ["slides", "extract", str(root), "--out", str(tmp_path / f"{side}.store")]
        found[side], _ = peak([*words, "--per-site", "100", "--workers", "2"])
    print(f"MB at 100 megapixels and at 10 gigapixels: {found}")
    assert found[100_000] < found[10_000] + 16


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_extraction_costs_little_more_than_reading(tmp_path: Path) -> None:
    """An extraction, with checksums, files and a contact sheet, takes at most twice the processor
    time of plain reading of the same regions."""
    root = large_slide(tmp_path, 20_000)
    faults = Faults()
    entries = from_folders(root, "site/person", faults, suffixes=[".tif"])
    patches = Patches(size=512, per_site=300)
    sources = with_contours(root, entries, None, faults)
    planned = plan(sources, patches, faults)
    ratios = []
    for attempt in range(5):
        start = time.process_time()
        with openslide.OpenSlide(root / planned[0].file) as slide:
            for entry in planned:
                slide.read_region((int(entry.x), int(entry.y)), 0, (512, 512))
        plain = time.process_time() - start
        start = time.process_time()
        extract(root, planned, tmp_path / f"store-{attempt}", patches, faults)
        ours = time.process_time() - start
        ratios.append(plain / ours)
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    each = 1000 * plain / len(planned)
    print(f"{len(planned)} patches, {each:.1f} ms each to read; ratios {shown}")
    assert float(np.median(ratios)) > 0.5


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_over_a_store_larger_than_its_memory(tmp_path: Path) -> None:
    """A process that may allocate 1 GB trains on a store of 1.5 GB."""
    side, count = 512, 2000
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (16, 3, side, side), dtype=np.uint8)
    entries = [
        Entry(label=str(i % 2), site=("north", "south")[i // 2 % 2], person=str(i // 8))
        for i in range(count)
    ]
    content = Content((3, side, side), "uint8", ("0", "1"))

    def read(start: int, some):  # type: ignore[no-untyped-def]
        for i in range(start, start + len(some)):
            yield images[i % 16]

    write_store(tmp_path / "store", content, entries, read, Faults())
    head = index.read_head(tmp_path / "store")
    size = sum(shard.examples for shard in head.shards) * content.row_bytes
    assert size > 1.5e9
    settings = {
        "data.source": tmp_path / "store",
        "partition.kind": "site",
        "rounds": 1,
        "learning.batch_size": 8,
        "learning.steps_per_round": 2,
        "models.private": "linear",
        "methods": '["alone"]',
    }
    words = ["run", "--workers", "1", "--out", str(tmp_path / "run")]
    for key, value in settings.items():
        words += ["--set", f"{key}={value}"]
    used, _ = peak(words, limit=2**30)
    print(f"{size / 2**20:.0f} MB of store, {used:.0f} MB of memory")
