"""This machine's resources, and settings that make it faster without changing results."""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_PR_SET_PDEATHSIG = 1


def keep_freed_memory() -> bool:
    """Tell glibc to reuse freed memory; returns whether it took the advice. Call once, where a
    program starts.

    glibc hands large blocks back to the kernel and pays a page fault for every page when it asks
    for them again: a third of a training step on small models. Other C libraries are left alone.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # Never a separate mapping for a block, never a trim below 2 GiB of slack, and growth in steps
    # of 64 MiB.
    settings = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 2**26}
    taken = [mallopt(key, value) == 1 for key, value in settings.items()]
    return all(taken)


def return_freed_memory() -> None:
    """Give freed memory back to the kernel now, where glibc was told to keep it."""
    if not sys.platform.startswith("linux"):
        return
    # another C library: nothing was kept
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def physical_cores() -> int:
    """The cores that this process may use, two hardware threads of one core counting once."""
    allowed = set(range(os.cpu_count() or 1))
    if hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
    cores = set()
    for cpu in allowed:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            cores.add((topology / "thread_siblings_list").read_text())
        except OSError:
            return len(allowed)
    return len(cores)


def end_with_parent() -> None:
    """End this process when its parent ends, however it ends: an orphan must not keep writing to a
    run's folder."""
    parent = os.getppid()
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    # for other systems, and for a parent that ended before the call above
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
