"""A federation in network namespaces, disturbed in every way that hospitals have met."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxyfl.node import assembly, trial
from proxyfl.node.members.site import Learning, Network, Site
from proxyfl.node.observe import status
from proxyfl.node.trial import Layout
from proxyfl.privacy.ledger import Ledger

from .federations import SEED, change, forked, predicted, total_weight
from .test_node import final_proxy

SITES = 8
BRIDGE = "pflbridge"
ROOT_ONLY = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and ip"
)


def ip(*words: str) -> None:
    """Run ip."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


def address(at: int) -> str:
    """A site's address in its namespace."""
    return f"10.77.0.{at + 1}"


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """A namespace per site, joined by a bridge; gone afterwards."""
    names = [f"pfl{at}" for at in range(SITES)]
    try:
        ip("link", "add", BRIDGE, "type", "bridge")
    except subprocess.CalledProcessError as refused:
        pytest.skip(f"no bridges here: {refused.stderr.decode()}")
    try:
        ip("link", "set", BRIDGE, "up")
        for at, name in enumerate(names):
            ip("netns", "add", name)
            ip("link", "add", f"{name}v", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"{name}v", "master", BRIDGE, "up")
            ip("-n", name, "addr", "add", f"{address(at)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True)


class Sites:
    """Processes in namespaces."""

    def __init__(self, layout: Layout, namespaces: list[str]) -> None:
        self.layout = layout
        self.namespaces = namespaces
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, at: int) -> None:
        """Run a site."""
        place = self.layout.sites[at]
        words = trial.command(place, "--simulated-seed", str(SEED), "--no-status-page")
        with (place / "node.log").open("ab") as log:
            self.processes[at] = subprocess.Popen(
                ["ip", "netns", "exec", self.namespaces[at], *words],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self, at: int) -> None:
        """kill -9."""
        self.processes[at].send_signal(signal.SIGKILL)
        self.processes[at].wait()

    def rounds(self, at: int) -> int:
        """The last round that a site has put on record."""
        rows = status.rows(self.layout.sites[at])
        return rows[-1]["round"] if rows else -1

    def until(self, at: int, round: int, seconds: float = 600.0) -> None:
        """Wait until a site has done ``round`` or has ended."""
        deadline = time.monotonic() + seconds
        while self.rounds(at) < round and self.processes[at].poll() is None:
            assert time.monotonic() < deadline, f"site {at} does not reach round {round}"
            time.sleep(0.05)

    def cut(self, a: int, b: int) -> None:
        """No packet passes between two sites."""
        ip("-n", self.namespaces[a], "route", "add", "blackhole", f"{address(b)}/32")
        ip("-n", self.namespaces[b], "route", "add", "blackhole", f"{address(a)}/32")

    def mend(self, a: int, b: int) -> None:
        """Packets pass again."""
        ip("-n", self.namespaces[a], "route", "del", "blackhole", f"{address(b)}/32")
        ip("-n", self.namespaces[b], "route", "del", "blackhole", f"{address(a)}/32")

    def end(self) -> None:
        """Leave nobody behind."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


def laid_out(
    folder: Path, *, sites: int, rounds: int, patience: float, steps: int = 6, **more: object
) -> Layout:
    """A federation whose sites listen in their namespaces."""
    template = Site(
        "template",
        learning=Learning(batch_size=20, steps_per_round=steps),
        network=Network(patience=patience, heartbeat=1.0, timeout=6.0),
    )
    addresses = [f"{address(at)}:7443" for at in range(sites)]
    return trial.lay_out(
        folder,
        sites=sites,
        rounds=rounds,
        template=template,
        addresses=addresses,
        **more,  # type: ignore[arg-type]  # a test's own words
    )


@ROOT_ONLY
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_four_sites_in_namespaces_equal_the_engine(tmp_path: Path, namespaces: list[str]) -> None:
    """Separate processes in separate networks: the proxies equal the in-process engine's."""
    layout = laid_out(tmp_path, sites=4, rounds=4, patience=300.0)
    sites = Sites(layout, namespaces)
    try:
        for at in range(4):
            sites.start(at)
        assert [sites.processes[at].wait(600) for at in range(4)] == [0] * 4
    finally:
        sites.end()
    expected = predicted(tmp_path)
    for place, outcome in zip(layout.sites, expected, strict=True):
        assert bool((final_proxy(place) == outcome.proxy).all()), place.name
    assert total_weight(layout) == 4


@ROOT_ONLY
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_eight_sites_twenty_rounds_whatever_happens(tmp_path: Path, namespaces: list[str]) -> None:
    """A link cut past every timeout, each site killed once, one dead from round 7, one that leaves
    on its budget, one that joins at round 10: it ends, mass balances exactly, ledgers say at least
    what was spent, and accuracy stands beside the undisturbed run."""
    layout = laid_out(tmp_path, sites=SITES, rounds=20, patience=25.0, steps=25, joins={7: 10})
    change(layout.sites[5], lambda site: assembly.with_budget(site, 0.8))
    sites = Sites(layout, namespaces)
    try:
        for at in range(7):
            sites.start(at)
        sites.until(0, 1)
        sites.cut(0, 1)
        cut_at = time.monotonic()
        for at in range(6):
            sites.until(at, at + 2)
            if sites.processes[at].poll() is None:
                sites.kill(at)
                sites.start(at)
            if time.monotonic() - cut_at > 40 and cut_at:
                sites.mend(0, 1)
                cut_at = 0.0
        sites.until(6, 7)
        sites.kill(6)
        sites.until(0, 8)
        sites.start(7)
        sites.until(7, 10)
        sites.kill(7)
        sites.start(7)
        if cut_at:
            sites.mend(0, 1)
        codes = {at: sites.processes[at].wait(900) for at in range(SITES) if at != 6}
    finally:
        sites.end()
    assert codes == dict.fromkeys(codes, 0)
    assert total_weight(layout) == SITES
    assert status.of_folder(*_read(layout.sites[5]))["state"] == "left"
    assert sites.rounds(7) == 19
    for place in layout.sites:
        ledger = Ledger.read(place / assembly.LEDGER_FILE)
        assert ledger.steps >= sum(row["steps"] for row in status.rows(place)), place.name
    undisturbed = {outcome.name: outcome.joined for outcome in predicted(tmp_path)}
    finished = [place for at, place in enumerate(layout.sites) if at not in (5, 6)]
    reached = [status.rows(place)[-1]["private_accuracy"] for place in finished]
    calm = [undisturbed[place.name] or 0.0 for place in finished]
    print(f"disturbed {sum(reached) / len(reached):.3f}, undisturbed {sum(calm) / len(calm):.3f}")
    assert sum(reached) / len(reached) > sum(calm) / len(calm) - 0.1


MANY = 64


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_sixty_four_sites_on_one_machine_hold(tmp_path: Path) -> None:
    """64 processes with mutual TLS finish their rounds; nobody is missed, mass balances exactly,
    and a site stays within 150 threads and 256 MB of its own.

    The processes are forked from one that has loaded the libraries, whose pages they share."""
    template = Site(
        "template",
        learning=Learning(batch_size=10, steps_per_round=2),
        network=Network(patience=900.0, heartbeat=120.0, timeout=300.0),
    )
    layout = trial.lay_out(tmp_path, sites=MANY, rounds=3, template=template)
    started = time.monotonic()
    running = []
    threads, memory = [0], [0.0]
    try:
        for place in layout.sites:
            running.append(forked(place))
        while any(process.is_alive() for process in running):
            time.sleep(5)
            for process in running:
                threads.append(_threads(process.pid or 0))
                memory.append(_own_megabytes(process.pid or 0))
    finally:
        for process in running:
            process.kill()
            process.join()
    seconds = time.monotonic() - started
    print(
        f"{MANY} sites, 3 rounds: {seconds:.0f} s; a site: at most {max(threads)} threads, "
        f"{max(memory):.0f} MB of its own"
    )
    assert [process.exitcode for process in running] == [0] * MANY
    assert total_weight(layout) == MANY
    for place in layout.sites:
        heard = [(row["heard"], row["asked"]) for row in status.rows(place)]
        assert heard == [(1, 1)] * 3, place.name
    assert max(threads) <= 150
    assert max(memory) <= 256


def _threads(process: int) -> int:
    try:
        return len(list(Path(f"/proc/{process}/task").iterdir()))
    except OSError:
        return 0


def _own_megabytes(process: int) -> float:
    """The memory that a process shares with nobody."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    sizes = [int(line.split()[1]) for line in lines if line.startswith("Private_")]
    return sum(sizes) / 1024


def _read(place: Path) -> tuple[Site, Path]:
    from proxyfl.node.members import site

    return site.read(place)
