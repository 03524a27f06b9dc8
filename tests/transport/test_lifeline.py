"""Deaths and silences are noticed, once, and by the right end."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from proxyfl.transport.lifeline import Address, Lifeline, Watch


class Reports:
    """Collects what a lifeline says, and wakes who waits for it."""

    def __init__(self) -> None:
        self.said: list[tuple[int, str]] = []
        self.news = threading.Event()

    def __call__(self, rank: int, what: str, _how: str) -> None:
        self.said.append((rank, what))
        self.news.set()


FOLLOWER = """
import sys, time
from proxyfl.transport.lifeline import Address, Lifeline
address = Address(("127.0.0.1",), int(sys.argv[2]), sys.argv[3])
lifeline = Lifeline(int(sys.argv[1]), address, lambda *_: None)
lifeline.limit = 1.0
print("there", flush=True)
time.sleep(60)
"""


def follower(rank: int, address: Address) -> "subprocess.Popen[str]":
    """A process at the other end of a lifeline, which has connected."""
    arguments = [str(rank), str(address.port), address.token]
    process = subprocess.Popen(
        [sys.executable, "-c", FOLLOWER, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    return process


def test_a_killed_process_is_noticed_at_once() -> None:
    """Kill -9 of one of two processes is reported within a second, as that one's loss, and the
    other's is not."""
    reports = Reports()
    watch = Watch(3, reports, local=True)
    one, two = follower(1, watch.address), follower(2, watch.address)
    try:
        one.kill()
        assert reports.news.wait(1.0)
        time.sleep(0.2)
        assert reports.said == [(1, "was lost")]
    finally:
        watch.end()
        for process in (one, two):
            process.kill()
            process.wait()


def test_a_stopped_process_is_noticed_after_the_limit() -> None:
    """A process that is stopped, not dead, is reported as stalled once the limit has passed, and
    not before."""
    reports = Reports()
    watch = Watch(2, reports, local=True)
    process = follower(1, watch.address)
    watch.limit = 1.0
    try:
        assert not reports.news.wait(2.5), "a living process is not reported"
        os.kill(process.pid, signal.SIGSTOP)
        assert not reports.news.wait(0.5)
        assert reports.news.wait(3.0)
        assert reports.said == [(1, "stalled")]
    finally:
        watch.end()
        process.kill()
        process.wait()


@pytest.mark.parametrize(("announced", "expected"), [(True, []), (False, [(0, "was lost")])])
def test_an_announced_end_is_no_loss(announced: bool, expected: list[tuple[int, str]]) -> None:
    """When rank 0 goes, the others report it, unless it said that it would."""
    reports, listener = Reports(), socket.create_server(("127.0.0.1", 0))
    lifeline = Lifeline(1, Address(("127.0.0.1",), listener.getsockname()[1], "00" * 16), reports)
    line, _ = listener.accept()
    if announced:
        line.send(b"!")
    line.close()
    reports.news.wait(1.0)
    assert reports.said == expected
    lifeline.end()
    listener.close()


def test_strangers_are_turned_away() -> None:
    """Who does not know the job's secret is disconnected, and its leaving is nobody's death."""
    reports = Reports()
    watch = Watch(2, reports, local=True)
    with socket.create_connection(("127.0.0.1", watch.address.port), timeout=5) as stranger:
        stranger.sendall(b"x" * 20)
        assert stranger.recv(1) == b""
    assert not reports.news.wait(0.3)
    watch.end()
