"""A view in the output of a notebook's cell, drawn again in place.

It needs IPython, which runs every notebook. Rich by itself would need ipywidgets as well.
"""

import importlib
import io
import sys
from typing import Any

from rich.console import Console, RenderableType

WIDTH = 100
"""Columns of a view in a notebook."""

_STYLE = "white-space: pre; line-height: 1.3; font-family: monospace"


def in_notebook() -> bool:
    """True if this process is the kernel of a notebook; the terminal's IPython has no kernel."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def as_html(view: RenderableType) -> str:
    """A view as HTML with its text escaped."""
    console = Console(
        file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, force_jupyter=False
    )
    console.print(view)
    code = f'<pre style="{_STYLE}">{{code}}</pre>'
    return console.export_html(code_format=code, inline_styles=True)


class Output:
    """One place in the output of the current cell."""

    def __init__(self, view: RenderableType) -> None:
        self._ipython: Any = importlib.import_module("IPython.display")
        first = self._ipython.HTML(as_html(view))
        self._handle: Any = self._ipython.display(first, display_id=True)

    def draw(self, view: RenderableType) -> None:
        """Replace what is shown."""
        self._handle.update(self._ipython.HTML(as_html(view)))

    def clear(self) -> None:
        """Show nothing there any more."""
        self._handle.update(self._ipython.HTML(""))
