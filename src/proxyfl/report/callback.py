"""A run that serves its own page: `proxyfl run --live`."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from proxyfl.errors import ConfigError
from proxyfl.records.run import Run
from proxyfl.report.live import HOLD_SECONDS, LiveServer
from proxyfl.simulation.config import Config
from proxyfl.simulation.division import ClientData
from proxyfl.simulation.run import Callback


class LivePage(Callback):
    """Serves the page from within a run. At the end it waits for a page that is open to fetch the
    rest."""

    def __init__(self, *, patience: float = 3.0) -> None:
        self.patience = patience
        self.server: LiveServer | None = None

    def started(self, config: Config, out: Path | None, sites: Sequence[ClientData]) -> None:
        """Begin to serve."""
        if out is None:
            raise ConfigError(
                "The live page reads the run's folder, and this run has none. Give it one with "
                "out=..."
            )
        self.server = LiveServer(out)
        self.announce(self.server.url)

    def announce(self, url: str) -> None:
        """Say where the page is. Override to say it elsewhere."""
        print(f"Live page: {url}", file=sys.stderr, flush=True)

    def finished(self, result: Run) -> None:
        """Let a page that asked lately have the end, then stop."""
        if self.server is None:
            return
        limit = time.monotonic() + self.patience
        while not self.server.done_told:
            soonest = min(limit, self.server.asked + HOLD_SECONDS + 1)
            if time.monotonic() >= soonest:
                break
            time.sleep(0.05)
        self.server.close()
        self.server = None
