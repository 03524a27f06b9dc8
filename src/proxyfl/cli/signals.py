"""SIGTERM and Ctrl-C at a running site.

A signal is seen by a thread of its own, so it is seen whatever the main thread does: train, wait,
send, or sit in C code that releases Python's global lock. C code that holds that lock delays the
signal until it lets go.

Guarantees:
    * the first signal asks the site to stop; the process has ended ``LAST_SECONDS`` later, also if
      something hangs (Docker kills after 10 seconds);
    * the second ends the process at once;
    * ending so is safe: it is what ``kill -9`` does, and the store, the ledger and the logs are
      made for that.
"""

import os
import signal
import threading
from collections.abc import Callable
from types import TracebackType

from proxyfl.node.exits import INTERRUPTED, End, exit_code

LAST_SECONDS = 4.5
"""A site ends within 5 seconds of a signal; the rest is for a busy machine."""


class StopSignals:
    """Takes both signals in hand while the site runs. Use it as a context manager."""

    def __init__(self, stopping: threading.Event, say: Callable[[str], None]) -> None:
        self._stopping = stopping
        self._say = say
        self._first: int | None = None
        self._before: dict[int, object] = {}

    @property
    def exit_code(self) -> int:
        """The code of a site that was stopped: by Ctrl-C, or in any other way."""
        return INTERRUPTED if self._first == signal.SIGINT else exit_code(End.STOPPED)

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread may set handlers
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:  # as nohup has it
                self._before[number] = before
                signal.signal(number, _do_nothing)
        threading.Thread(target=self._watch, name="proxyfl-signals", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._before:
            return
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]  # what getsignal gave
        signal.set_wakeup_fd(-1)
        os.close(self._write)

    def _watch(self) -> None:
        while True:
            content = os.read(self._read, 1)
            if not content:
                os.close(self._read)
                return
            self._take(content[0])

    def _take(self, number: int) -> None:
        if self._first is not None:
            os._exit(self.exit_code)
        self._first = number
        # First of all: what follows may hang, for example on a terminal that nobody reads.
        last = threading.Timer(LAST_SECONDS, os._exit, [self.exit_code])
        last.daemon = True
        last.start()
        self._stopping.set()
        self._say(f"{signal.Signals(number).name}: stops now; once more to end at once")


def _do_nothing(number: int, frame: object) -> None:
    """The thread has seen the signal; without a handler it would end the process."""
