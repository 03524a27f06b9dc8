"""Memory and time of a DP step in slices: ``python -m benchmarks.slices``.

One step of ResNet-18 with GroupNorm on a batch of images, all at a time and in slices
(``privacy.max_physical_batch_size``), on one thread. Prints a table. Time is the processor's, so
that other programs on the machine count less."""

import argparse
import gc
import time

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.bench import peak_memory
from proxyfl import models
from proxyfl.machine import keep_freed_memory
from proxyfl.privacy.perexample.validation import checked_clipper
from proxyfl.settings import DP


def main() -> None:
    """Measure each slice size in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    table = Table("at a time", "peak memory (MB)", "processor seconds", title="One DP step")
    whole: float | None = None
    for at_once in (args.batch, 8, 4, 2, 1):
        megabytes, seconds = measured(at_once, args.batch, args.pixels, args.repeats)
        whole = whole or seconds
        ratio = f"{seconds:.2f} ({seconds / whole:.2f} x)"
        table.add_row(str(at_once), f"{megabytes:.0f}", ratio)
    Console().print(table)


def measured(at_once: int, batch: int, pixels: int, repeats: int) -> tuple[float, float]:
    """Megabytes of tensors at the peak of a step, and its shortest processor time."""
    shape = (3, pixels, pixels)
    model = models.build("resnet18", shape=shape, classes=2, seed=0)
    clipper = checked_clipper(model, shape, dp=DP(max_physical_batch_size=at_once))
    x = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0))
    y = torch.arange(batch) % 2

    def step() -> None:
        clipper.clip(x, y, cross_entropy, 1.0)

    bytes_at_peak = peak_memory(step)
    seconds = []
    for _ in range(repeats):
        gc.collect()
        started = time.process_time()
        step()
        seconds.append(time.process_time() - started)
    return bytes_at_peak / 1e6, min(seconds)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """One loss per example."""
    return F.cross_entropy(logits, y, reduction="none")


if __name__ == "__main__":
    main()
