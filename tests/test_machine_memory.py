"""Freed memory: kept for the next step, and given back when a process has nothing more to load."""

import subprocess
import sys

import pytest

PROGRAM = """
from proxyfl.machine import keep_freed_memory, return_freed_memory

def resident():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmRSS"))
    return int(line.split()[1]) // 1024

keep_freed_memory()
blocks = [bytearray(2**20) for _ in range(200)]
for block in blocks:
    block[:: 4096] = b"x" * 256
held = resident()
del blocks, block
kept = resident()
return_freed_memory()
print(held, kept, resident())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_freed_memory_is_kept_and_given_back() -> None:
    """200 MB that were freed stay with the process until it gives them back."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    held, kept, left = map(int, found.stdout.split())
    assert kept > held - 20
    assert left < held - 180
