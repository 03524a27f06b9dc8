"""Six real sites that add up, under random schedules of faults: each is a process of its own, which
is killed, stopped for a while, or restarted at once."""

import os
import random
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from .federations import forked, quick
from .test_sums import adding, check_ends, record_of

ROUNDS = 10
FAULTS = 5
SECONDS = 420.0


class Fleet:
    """The sites' processes. A site that was killed is started again; nobody is left behind."""

    def __init__(self, places: tuple[Path, ...]) -> None:
        self.places = places
        self.running: dict[Path, BaseProcess] = {}
        self.stopped: set[Path] = set()

    def start(self, place: Path) -> None:
        """Run a site."""
        self.running[place] = forked(place)

    def kill(self, place: Path) -> None:
        """End a site's process without a word."""
        process = self.running[place]
        process.kill()
        process.join()

    def send(self, place: Path, number: int) -> None:
        """Send a signal to a site that runs."""
        process = self.running[place]
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, number)

    def close(self) -> None:
        """End all processes."""
        for place, process in self.running.items():
            if process.is_alive():
                self.send(place, signal.SIGCONT)
                self.kill(place)


def disturb(fleet: Fleet, draw: random.Random) -> None:
    """One fault, and its end."""
    place = draw.choice(fleet.places)
    if not fleet.running[place].is_alive():
        return
    kind = draw.choice(["kill", "kill", "hang", "stop", "two"])
    pause = draw.uniform(0.2, 6.0)
    if kind == "hang":
        fleet.send(place, signal.SIGSTOP)
        time.sleep(pause)
        fleet.send(place, signal.SIGCONT)
        return
    victims = draw.sample(fleet.places, 2) if kind == "two" else [place]
    for victim in victims:
        if kind == "stop":
            fleet.send(victim, signal.SIGTERM)
            fleet.running[victim].join(60)
        fleet.kill(victim)
    time.sleep(pause)
    for victim in victims:
        fleet.start(victim)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_random_faults_at_six_sites(seed: int, tmp_path: Path) -> None:
    """Every site ends with the same proxy, no vector leaves twice, and every ledger covers every
    attempt that left."""
    draw = random.Random(seed)
    layout = adding(
        tmp_path, sites=6, quorum=4, rounds=ROUNDS, template=quick(patience=120.0, heartbeat=1.0)
    )
    fleet = Fleet(layout.sites)
    deadline = time.monotonic() + SECONDS
    try:
        for place in layout.sites:
            fleet.start(place)
        while not all((place / "store.sqlite").exists() for place in layout.sites):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        for _ in range(FAULTS):
            time.sleep(draw.uniform(0.5, 4.0))
            disturb(fleet, draw)
        for place, process in fleet.running.items():
            process.join(max(0.0, deadline - time.monotonic()))
            log = (place / "node.log").read_text()[-1500:]
            assert process.exitcode == 0, f"{place.name}, {record_of(place)}: {log}"
    finally:
        fleet.close()
    check_ends(layout, ROUNDS)
