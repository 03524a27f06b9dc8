"""The ends of a site's run and their exit codes: the one home of both.

Programs that start a site (systemd, Docker, a script) decide by the code what to do next. A code
is never reused for another meaning.
"""

from enum import StrEnum

from proxyfl.errors import ProxyFLError


class End(StrEnum):
    """The reason why a site's run ended without an error."""

    FINISHED = "finished"
    STOPPED = "stopped"
    LEFT = "left"
    SPENT = "budget spent"


STOPPED_BY_PEER = 13
INTERRUPTED = 130

_CODES = {End.FINISHED: 0, End.STOPPED: 10, End.LEFT: 11, End.SPENT: 12}

MEANINGS = {
    0: "finished: all rounds are done, or nobody else is left",
    1: "an error while running; the message says which",
    2: "the settings or files cannot be used; the message says which",
    10: "stopped on request (SIGTERM, `node stop`); `node run` continues",
    11: "left the federation on request",
    12: "the privacy budget is spent; the site has left the federation",
    STOPPED_BY_PEER: "stopped by a peer: the store is an old backup; the message says what to do",
    INTERRUPTED: "interrupted by Ctrl-C; `node run` continues",
}
"""Every exit code of `proxyfl node run`."""


class StopRequested(ProxyFLError):
    """Somebody asked the site to stop: by a signal, or by `proxyfl node stop`."""


def exit_code(end: End) -> int:
    """The exit code of a run that ended so."""
    return _CODES[end]


def describe() -> str:
    """The exit codes as lines of a help text."""
    lines = ["exit codes of run:"]
    for code, meaning in MEANINGS.items():
        lines.append(f"  {code:<5}{meaning}")
    return "\n".join(lines) + "\n"
