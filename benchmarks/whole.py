"""What whole commands cost, in CPU time: a run, the demo, commands that train nothing.

Every command runs in a process of its own, as a user's does; the kernel counts its CPU time, so a
busy machine changes little."""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from proxyfl.data import Dataset
from proxyfl.node import trial

ROOT = Path(__file__).parents[1]
TEST_IMAGES = 10_000
FEW, MANY = 2, 8
"""Rounds of the two runs whose difference is what a round costs."""


def mnist_like() -> Dataset:
    """Images of MNIST's shape and number: time does not depend on what they show."""
    generator = torch.Generator().manual_seed(0)
    count = 8000
    x = torch.rand(count + TEST_IMAGES, 1, 28, 28, generator=generator)
    y = torch.arange(count + TEST_IMAGES) % 10
    names = tuple("0123456789")
    return Dataset("made-up", x[:count], y[:count], x[count:], y[count:], 10, names)


SETTINGS = """
methods = ["proxyfl"]
rounds = {rounds}
evaluate_every = {rounds}
checkpoint_every = {rounds}
[data]
source = "benchmarks.whole:mnist_like"
trust = ["benchmarks"]
[partition]
kind = "iid"
clients = 8
examples = 1000
[models]
private = "lenet5"
proxy = "mlp"
residual = false
[learning]
alpha = 0.5
beta = 0.5
teacher = "current"
batch_size = 250
[privacy]
noise_multiplier = 1.0
clip_norm = 1.0
[exchange]
self_weight = 0.0
"""
"""The paper's MNIST setting: LeNet5/MLP, 8 clients with 1000 images."""


def cpu_seconds(*words: str, cwd: Path | None = None, codes: Sequence[int] = (0,)) -> float:
    """CPU seconds, the kernel's included, of ``python -m`` with these words and of all its
    descendants. RuntimeError if it ends with an exit code that is not among ``codes``."""
    _adopt_orphans()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=cwd, env=environment, stdout=log, stderr=log
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = usage.ru_utime + usage.ru_stime
        with contextlib.suppress(ChildProcessError):  # the server that forked a run's workers
            while True:
                _, _, usage = os.wait4(-1, 0)
                seconds += usage.ru_utime + usage.ru_stime
        if process.returncode not in codes:
            log.seek(0)
            raise RuntimeError(f"{words} failed: {log.read().decode()}")
    return seconds


def _adopt_orphans() -> None:
    """Makes this process the parent of descendants whose own parent ends before them, so that it
    can wait for them and learn what they took."""
    set_child_subreaper = 36  # PR_SET_CHILD_SUBREAPER in <linux/prctl.h>
    if ctypes.CDLL(None, use_errno=True).prctl(set_child_subreaper, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def paper_run() -> tuple[float, float]:
    """CPU seconds of a round of the paper's MNIST setting, and of all that is around the rounds."""
    spent = {}
    with tempfile.TemporaryDirectory() as scratch:
        for rounds in (FEW, MANY):
            config = Path(scratch) / f"{rounds}.toml"
            config.write_text(SETTINGS.format(rounds=rounds))
            out = Path(scratch) / f"run-{rounds}"
            spent[rounds] = cpu_seconds("proxyfl", "run", str(config), "--out", str(out))
    a_round = (spent[MANY] - spent[FEW]) / (MANY - FEW)
    return a_round, spent[FEW] - FEW * a_round


def demo() -> float:
    """CPU seconds of ``make demo`` once everything is installed."""
    with tempfile.TemporaryDirectory() as scratch:
        config = ROOT / "experiments" / "examples" / "demo.toml"
        return cpu_seconds("proxyfl", "run", str(config), cwd=Path(scratch))


WORTH = "worth --clients 12 --examples 184 --parameters 50 --epsilon 1 --prevalence 0.55"


def commands() -> dict[str, float]:
    """CPU seconds of commands that train nothing, the quickest of three."""
    with tempfile.TemporaryDirectory() as scratch:
        layout = trial.lay_out(Path(scratch), sites=4, rounds=3)
        lines = {
            "epsilon --help": ["epsilon", "--help"],
            "worth": WORTH.split(),
            "node status": ["node", "status", str(layout.sites[0])],
        }
        found = {}
        for name, words in lines.items():
            # 1 is an answer: joining does not pay
            times = [cpu_seconds("proxyfl", *words, codes=(0, 1)) for _ in range(3)]
            found[name] = min(times)
    return found


def main() -> None:
    """Print all of them."""
    a_round, around = paper_run()
    print(f"a round {a_round:.2f} s, around the rounds {around:.1f} s", flush=True)
    print(f"demo {demo():.1f} s", flush=True)
    print(json.dumps(commands(), indent=1))


if __name__ == "__main__":
    main()
