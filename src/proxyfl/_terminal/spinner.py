"""A bar or a clock for whatever takes longer than two seconds.

Guarantees:
    * what is done sooner shows nothing;
    * all of it goes to standard error; where that is no terminal, one plain line without escapes;
    * nothing of it is left on the screen afterwards.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress as bars
from rich.console import Console

PATIENCE_SECONDS = 2.0
"""Work that ends within this time needs no bar; plain lines come no more often."""


@contextmanager
def spinner(
    what: str, *, total: int | None = None, quiet: bool = False, console: Console | None = None
) -> Iterator[Callable[[int], None]]:
    """Show that ``what`` is under way, if it takes longer than two seconds; yields a function
    to tell how much is done.

    With a ``total`` there is a bar with the time remaining, otherwise a clock. Nothing within may
    show a bar itself."""
    console = console or stderr_console()
    length: bars.ProgressColumn = bars.TimeElapsedColumn()
    if total is not None:
        length = bars.TimeRemainingColumn(compact=True)
    columns = (
        bars.SpinnerColumn("line"),
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        length,
    )
    shown = bars.Progress(
        *columns, console=console, transient=True, disable=quiet or not console.is_interactive
    )
    task = shown.add_task(what, total=total)

    def begin() -> None:
        if console.is_interactive:
            shown.start()
        else:
            print(f"{what} ...", file=console.file, flush=True)

    clock = threading.Timer(PATIENCE_SECONDS, begin)
    clock.daemon = True
    if not quiet:
        clock.start()
    try:
        yield lambda count: shown.advance(task, count)
    finally:
        clock.cancel()
        if not quiet:
            clock.join()  # it may just be starting the bar, which must not outlive this
        shown.stop()


def stderr_console() -> Console:
    """Standard error. A file or a pipe is none to draw on, even where the environment asks for
    colour."""
    return Console(stderr=True, force_terminal=None if sys.stderr.isatty() else False)


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
