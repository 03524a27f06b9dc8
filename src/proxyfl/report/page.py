"""One self-contained page about one or more runs: it opens from disk, asks the network for nothing,
and prints.

The parts lie in ``page/``: a template, a style sheet and plain scripts, which are joined in the
order of ``SCRIPTS``. Charts are drawn by the page itself (``plot.js``): no library is needed."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from proxyfl._files import write_bytes
from proxyfl.records.run import Run
from proxyfl.report.document import document, study_name

SCRIPTS = (
    "store",
    "elements",
    "plot",
    "figure",
    "hero",
    "answer",
    "measures",
    "curves",
    "audit",
    "effects",
    "privacy",
    "graph",
    "peers",
    "costs",
    "classes",
    "settings",
    "live",
    "main",
)


def write(runs: Sequence[Run], out: Path) -> int:
    """Write the report of ``runs`` to ``out``, whole or not at all; return its size in bytes."""
    drawn = page(document(runs), title=title(runs))
    content = drawn.encode()
    write_bytes(out, content)
    return len(content)


def title(runs: Sequence[Run]) -> str:
    """The page's title."""
    return f"ProxyFL report: {study_name(runs)}"


def page(content: Mapping[str, Any], *, title: str) -> str:
    """The page that shows ``content``, a document of ``report_data``."""
    scripts = "\n".join(_part(f"{name}.js") for name in SCRIPTS)
    parts = {
        "title": escape(title),
        "style": _part("page.css"),
        "data": _embed(content),
        "script": scripts,
    }
    out = []
    # Split rather than replace, one after the other: what is put in is never searched for further
    # marks.
    for piece in _part("page.html").split("{{"):
        name, mark, rest = piece.partition("}}")
        out.append(parts[name] + rest if mark else piece)
    return "".join(out)


def style(name: str = "page.css") -> str:
    """A style sheet, for pages that should look like the report."""
    return _part(name)


@cache
def _part(name: str) -> str:
    return (resources.files("proxyfl.report") / "page" / name).read_text(encoding="utf-8")


def _embed(content: Mapping[str, Any]) -> str:
    """JSON that no browser takes for markup, whatever a client, class or setting is called."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    for sign in "&<>":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
