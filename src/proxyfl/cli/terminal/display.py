"""A view on standard error that is drawn again as things change; plain lines where that is no
terminal."""

from abc import ABC, abstractmethod
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live

from proxyfl.cli.terminal.spinner import stderr_console


class Display(ABC):
    """Draws ``view`` four times a second while its block lasts; nothing of it stays."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self.console = console or stderr_console()
        self.quiet = quiet
        self._live: Live | None = None

    @abstractmethod
    def view(self) -> RenderableType:
        """The picture of the moment."""

    @property
    def is_drawn(self) -> bool:
        """The view is on the screen, not in lines."""
        return self._live is not None

    def say(self, line: str) -> None:
        """A line that stays: above the view and as wide as the screen, or by itself and uncut."""
        if not self.quiet:
            by_itself = not self.is_drawn
            self.console.print(line, highlight=False, markup=False, soft_wrap=by_itself)

    def __enter__(self) -> Self:
        if not self.quiet and self.console.is_interactive:
            self._live = Live(
                get_renderable=self.view, console=self.console, refresh_per_second=4, transient=True
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
