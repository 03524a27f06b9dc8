"""Command lines in messages."""

import shlex


def command(*words: object) -> str:
    """The line ``proxyfl words ...`` as a shell reads it: pasted into a terminal, it runs."""
    return shlex.join(["proxyfl", *map(str, words)])
