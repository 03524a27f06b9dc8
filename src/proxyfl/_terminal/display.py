"""A view on standard error, or in a notebook's cell, that is drawn again as things change; plain
lines where there is neither a terminal nor a notebook."""

import time
from abc import ABC, abstractmethod
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live

from proxyfl._terminal.notebook import Output, in_notebook
from proxyfl._terminal.spinner import stderr_console

_PER_SECOND = 4


class Display(ABC):
    """Draws ``view`` at most four times a second while its block lasts; nothing of it stays.

    A terminal is drawn by a thread. In a notebook ``refresh`` draws, so call it where something
    changes."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self.console = console or stderr_console()
        self.quiet = quiet
        self._live: Live | None = None
        self._output: Output | None = None
        self._drawn = 0.0

    @abstractmethod
    def view(self) -> RenderableType:
        """The picture of the moment."""

    @property
    def is_drawn(self) -> bool:
        """The view is on the screen, not in lines."""
        return self._live is not None or self._output is not None

    def refresh(self) -> None:
        """Draw the view of a notebook again if the last drawing is not too recent."""
        now = time.monotonic()
        if self._output is not None and now - self._drawn >= 1 / _PER_SECOND:
            self._drawn = now
            self._output.draw(self.view())

    def say(self, line: str) -> None:
        """A line that stays: above the view and as wide as the screen, or by itself and uncut."""
        if not self.quiet:
            by_itself = not self.is_drawn
            self.console.print(line, highlight=False, markup=False, soft_wrap=by_itself)

    def __enter__(self) -> Self:
        if self.quiet:
            return self
        if in_notebook():
            self._output = Output(self.view())
        elif self.console.is_interactive:
            live = Live(
                get_renderable=self.view,
                console=self.console,
                refresh_per_second=_PER_SECOND,
                transient=True,
            )
            live.start()
            self._live = live
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        if self._output is not None:
            self._output.clear()
