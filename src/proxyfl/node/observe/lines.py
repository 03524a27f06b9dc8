"""The lines that a running site prints: time, level, site, sentence.

2026-11-18T09:30:12+01:00 info     north: round 3 of 60, private accuracy 0.812
{"time": "2026-11-18T09:30:12+01:00", "level": "info", "site": "north", "text": "round 3 ..."}
"""

import datetime
import json
import sys
from typing import Literal

Level = Literal["info", "warning", "error"]
FORMATS = ("text", "json")


class Attention(str):
    """A sentence that somebody should read: its level is ``warning``."""


class Lines:
    """Prints sentences, one a line, errors to the standard error. Use it from any thread."""

    def __init__(self, site: str, *, format: str = "text") -> None:
        self._site = site
        self._format = format

    def __call__(self, sentence: str) -> None:
        """Print a sentence; one of class ``Attention`` as a warning."""
        self.say(sentence, "warning" if isinstance(sentence, Attention) else "info")

    def say(self, sentence: str, level: Level) -> None:
        """Print a sentence at a level."""
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        stream = sys.stderr if level == "error" else sys.stdout
        # one write: threads and processes share the stream
        stream.write(self._line(now, level, " ".join(sentence.split())) + "\n")
        stream.flush()

    def _line(self, now: str, level: Level, text: str) -> str:
        if self._format == "json":
            entry = {"time": now, "level": level, "site": self._site, "text": text}
            return json.dumps(entry, ensure_ascii=False)
        return f"{now} {level:<8} {self._site}: {text}"
