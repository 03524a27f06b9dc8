"""Streams of randomness: independent by name, repeatable by seed, or neither seeded nor
repeatable."""

import math
import os
import platform
import shutil
import ssl
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from proxyfl.seeds import Seeded, System, derive, fresh_bytes, numpy_stream, stream

NAMES = [
    (0, "noise"),
    (1, "noise"),
    (0, "noise", 0),
    (0, "noise", 1),
    (0, "batches", 1),
    (0, "noise", 1, 0),
    (0, ""),
]


SET_BACK = """
import ctypes, os, signal, ssl, sys
from proxyfl.seeds import System, fresh_bytes

def plain():
    return ssl.RAND_bytes(32)

def real():
    return System().bits(4).tobytes()

draw = {"plain": plain, "real": real}[sys.argv[1]]
draw()
read, write = os.pipe()
# A copy of this process's memory of which no library is told.
if not ctypes.CDLL(None).syscall(int(sys.argv[2]), int(signal.SIGCHLD), 0, 0, 0, 0):
    os.write(write, draw())
    os._exit(0)
os.wait()
print("repeats" if os.read(read, 32) == draw() else "differs")
"""
CLONE = {"x86_64": 56, "aarch64": 220}
"""The number of the system call."""


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in CLONE or shutil.which("cc") is None,
    reason="needs Linux and a C compiler",
)
def test_a_machine_that_is_set_back_with_its_memory_repeats_no_draw(tmp_path: Path) -> None:
    """OpenSSL's generator goes on from the same state in both copies, and draws the same; with the
    same batch and noise, two releases would differ by what no noise hides. ``System`` does not."""
    # Copies of a machine have the same process number, by which OpenSSL tells a fork.
    same = tmp_path / "same.so"
    source = "int getpid(void) { return 4242; }"
    words = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(same)]
    subprocess.run(words, input=source, text=True, check=True)

    def compare(what: str) -> str:
        words = [sys.executable, "-c", SET_BACK, what, str(CLONE[platform.machine()])]
        environment = {**os.environ, "LD_PRELOAD": str(same)}
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
        return done.stdout.strip()

    if compare("plain") != "repeats":
        pytest.skip("this library's generator notices the copy by itself")
    assert compare("real") == "differs"


def test_each_real_draw_begins_with_fresh_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are mixed into the generator before it draws, other ones for each draw."""
    calls: list[tuple[str, object]] = []
    draw = ssl.RAND_bytes
    monkeypatch.setattr(ssl, "RAND_add", lambda some, entropy: calls.append(("add", some)))
    monkeypatch.setattr(ssl, "RAND_bytes", lambda n: calls.append(("draw", n)) or draw(n))
    for _ in range(3):
        System().bits(2)
    System().uniform(2)
    assert [what for what, _ in calls] == ["add", "draw"] * 4
    assert len({value for what, value in calls if what == "add"}) == 4


def test_fresh_bytes_differ_where_the_operating_systems_generator_repeats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clocks tell two copies of a machine apart; its secret bytes keep both unguessable."""
    monkeypatch.setattr(os, "urandom", bytes)
    assert len({fresh_bytes(16) for _ in range(1000)}) == 1000
    monkeypatch.undo()
    for clock in ("time_ns", "monotonic_ns", "perf_counter_ns"):
        monkeypatch.setattr(time, clock, lambda: 0)
    assert len({fresh_bytes(16) for _ in range(1000)}) == 1000


def test_streams_differ_by_seed_name_and_index() -> None:
    """Every seed, name and index gives another 63-bit number."""
    found = {derive(*name) for name in NAMES}
    assert len(found) == len(NAMES)
    assert all(0 <= n < 2**63 for n in found)


def test_indices_are_not_glued() -> None:
    """(1, 11) and (11, 1) are different streams."""
    assert derive(0, "a", 1, 11) != derive(0, "a", 11, 1)


def test_golden() -> None:
    """A seed means the same tomorrow: the first 8 bytes of SHA-256("(0, 'noise', 3)"),
    little-endian, halved."""
    assert (
        derive(0, "noise", 3)
        == derive(np.int64(0), "noise", np.int64(3))
        == 4_204_803_787_491_696_027
    )


def test_streams_do_not_move_each_other() -> None:
    """Drawing from one stream, or from the global generator, leaves another as it was."""
    expected = Seeded(7, "noise", 0).normal(5)
    noise, batches = Seeded(7, "noise", 0), Seeded(7, "batches", 0)
    batches.uniform(1000)
    torch.rand(10)
    assert torch.equal(noise.normal(5), expected)


def test_drawing_leaves_global_state_alone() -> None:
    """Neither torch's nor NumPy's global generator is touched."""
    torch.manual_seed(1)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    Seeded(0, "a").normal(3)
    System().uniform(3)
    torch.rand(3, generator=stream(0, "b"))
    numpy_stream(0, "c").random(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == numpy_before).all()


@pytest.mark.parametrize("clients", [(0, 1), (3, 4)])
def test_clients_streams_are_uncorrelated(clients: tuple[int, int]) -> None:
    """Two clients' noise has a correlation within four standard errors of zero."""
    a, b = (Seeded(0, "noise", client).normal(20_000).double() for client in clients)
    assert abs(float((a * b).mean())) < 4 / math.sqrt(20_000)


def test_state_and_restore() -> None:
    """A restored stream repeats what followed the state; a system source has none to restore."""
    source = Seeded(0, "noise")
    source.normal(3)
    state = source.state()
    first = source.normal(4)
    source.restore(state)
    assert torch.equal(source.normal(4), first)
    assert System().state() is None
    System().restore(None)


@pytest.mark.parametrize("source", [Seeded(2, "noise"), System()], ids=["seeded", "system"])
def test_distributions(source) -> None:
    """Uniform on [0, 1) in float64."""
    uniform = source.uniform(20_000)
    assert uniform.dtype == torch.float64
    assert 0 <= float(uniform.min()) <= float(uniform.max()) < 1
    assert stats.kstest(uniform.numpy(), "uniform").pvalue > 1e-6


def test_seeded_normal_numbers() -> None:
    """Standard normal in float32; Kolmogorov-Smirnov rejects a deviation of 1.1."""
    normal = Seeded(2, "noise").normal(20_001)
    assert normal.dtype == torch.float32
    assert len(normal) == 20_001
    assert stats.kstest(normal.numpy(), "norm").pvalue > 1e-6
    assert stats.kstest(normal.numpy(), "norm", args=(0, 1.1)).pvalue < 1e-6


def test_who_can_be_repeated() -> None:
    """Seeded says that it is a simulation and repeats; System says that it is not and does not."""
    assert Seeded(0, "a").simulated
    assert not System().simulated
    assert torch.equal(Seeded(0, "a").normal(9), Seeded(0, "a").normal(9))
    assert not torch.equal(System().uniform(9), System().uniform(9))


def test_nothing_drawn() -> None:
    """Zero values are an empty vector from either source."""
    for source in (Seeded(0, "a"), System()):
        assert len(source.uniform(0)) == len(source.bits(0)) == 0


FORKING = """
import os
from proxyfl.seeds import System

source = System()
source.bits(1000)
for child in range(8):
    if os.fork() == 0:
        print(*source.bits(4), flush=True)
        os._exit(0)
    os.wait()
print(*source.bits(4))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_processes_share_no_bits() -> None:
    """Children that are forked from a source in use draw other bits than it and each other."""
    command = [sys.executable, "-c", FORKING]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert len(printed) == len(set(printed)) == 9 * 4
