"""Ctrl-C, or a polite kill, while modules are imported: one line, and no traceback."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from proxyfl.cli.entry import stop


@contextmanager
def stopping_at_once() -> Iterator[None]:
    """End the process at such a signal, for a block in which nothing is begun.

    An exception in the middle of an import ends in a traceback, and in the middle of PyTorch's in
    an abort. Afterwards both signals raise KeyboardInterrupt, so that records are left whole. One
    that the caller ignores, as nohup does, stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    taken = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, stop):
        taken.append(signal.SIGINT)
    for number in taken:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.default_int_handler)
