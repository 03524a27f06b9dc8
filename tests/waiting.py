"""Waiting in tests: for a condition, never for a number of seconds."""

import time
from collections.abc import Callable

PATIENCE = 240.0
"""Seconds after which a test gives up on what must come. Only what hangs takes so long, even on a
machine that has much else to do."""


def wait_until(true: Callable[[], object], *, every: float = 0.02) -> None:
    """Return once ``true()`` holds; fail the test if it never does."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, f"did not come in {PATIENCE:g} s"
        time.sleep(every)
