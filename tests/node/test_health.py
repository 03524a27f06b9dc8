"""`proxyfl node health`: one line and an exit code, quickly, whatever state the site is in."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from proxyfl.cli.main import main
from proxyfl.node.exchange import store as stores
from proxyfl.node.exchange.reasons import Reasons
from proxyfl.node.members import site as sites
from proxyfl.node.observe import health, status
from proxyfl.node.observe.status import StatusServer
from proxyfl.report import site as pages
from tests.cli.test_light import heavy_imports
from tests.node.federations import quick, running, trial
from tests.waiting import PATIENCE, wait_until


@pytest.fixture
def north(tmp_path: Path) -> Path:
    """A site that has not run yet."""
    return trial.lay_out(tmp_path, sites=2, rounds=3, template=quick()).sites[0]


def test_a_running_site_is_healthy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0, and its round in one line."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=4, template=quick(patience=60.0))
    with running(layout, hold=2) as made:
        wait_until(lambda: len(status.rows(layout.sites[0])) >= 2)
        node = made.nodes["north"]
        port = node.site.network.status_port
        with StatusServer(node.status, port=port, page=pages.page):
            assert main(["node", "health", str(layout.sites[0])]) == 0
            assert capsys.readouterr().out.startswith("north: running, round ")
        # Without a page, too: it runs, and nothing more is known.
        assert main(["node", "health", str(layout.sites[0]), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["state"] == "running"
        made.go.set()
        made.join()
    assert main(["node", "health", str(layout.sites[0])]) == 0
    assert "finished all 4 rounds" in capsys.readouterr().out


def test_a_site_that_does_not_run_is_not_healthy(
    north: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, and the command that starts it."""
    assert main(["node", "health", str(north)]) == 1
    assert capsys.readouterr().out == f"north: does not run. Run: proxyfl node run {north}\n"


@pytest.mark.parametrize(
    ("code", "must"),
    [("old-backup", "must rejoin"), ("vectors-lost", "needs its newest store and ledger")],
)
def test_a_site_that_a_peer_has_stopped_is_not_healthy(north: Path, code: str, must: str) -> None:
    """No restart helps; one of masked sums cannot even rejoin."""
    store = stores.Store(north / stores.FILE)
    Reasons(store).put("verdict", code, "x", peer="south")
    store.close()
    verdict = health.check(*sites.read(north))
    assert not verdict.healthy
    assert f"stopped by south: it {must}" in verdict.line


def test_a_site_whose_part_is_over_is_healthy(north: Path) -> None:
    """A spent budget is not a fault."""
    store = stores.Store(north / stores.FILE)
    Reasons(store).put("ended", "budget-spent", "x")
    store.close()
    assert health.check(*sites.read(north)).state == "over"
    assert health.check(*sites.read(north)).healthy


@contextmanager
def answering(port: int, document: dict[str, object] | None) -> Iterator[None]:
    """A status page that says ``document``, or with None takes the question and says nothing."""
    leave = threading.Event()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if document is None:
                leave.wait(PATIENCE)
                return
            content = json.dumps(document).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Page)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        leave.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"free_bytes": 1 << 20}, "only 1 MB of disk are free"),
        ({"certificate_ends": 1.0}, "its TLS certificate has ended"),
        ({"stopped_by": {"south": {}}}, "stopped by south"),
        ({"name": "other"}, "another program answers"),
    ],
)
def test_what_only_an_operator_can_repair_is_not_healthy(
    north: Path, changes: dict[str, object], problem: str
) -> None:
    """A full disk, an ended certificate, an old backup, somebody else's page."""
    settings, folder = sites.read(north)
    said = {"name": "north", "round": 1, "rounds": 3, **changes}
    with stores.hold_folder(folder), answering(settings.network.status_port, said):
        verdict = health.check(settings, folder)
    assert not verdict.healthy
    assert problem in verdict.line


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (
            stores.FILE,
            "The file is damaged. Bring the site back from its last backup. Run: proxyfl",
        ),
        (sites.FILE, "TOML"),
        ("manifests/0001.toml", "TOML"),
    ],
)
def test_a_site_whose_files_are_damaged_is_not_healthy(
    north: Path, name: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sentence on standard output and exit code 1: Docker and systemd know no other. The status
    of such a site is a sentence, too."""
    stores.Store(north / stores.FILE).close()
    path = north / name
    path.write_bytes(b"no such file" * 800)
    assert main(["node", "health", str(north)]) == 1
    said = capsys.readouterr().out
    assert problem in said
    assert len(said.splitlines()) == 1
    assert main(["node", "health", str(north), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["state"] == "unknown"
    assert main(["node", "status", str(north)]) in (1, 2)
    assert problem in capsys.readouterr().err


def test_a_site_that_waits_is_healthy(north: Path) -> None:
    """Nothing that a restart would help."""
    settings, folder = sites.read(north)
    said = {"name": "north", "round": 1, "rounds": 3, "waiting_for": {"code": "too-few-peers"}}
    with stores.hold_folder(folder), answering(settings.network.status_port, said):
        verdict = health.check(settings, folder)
    assert verdict.healthy
    assert verdict.line == "north: running, round 1 of 3, waits (too-few-peers)"


def test_a_site_that_hangs_is_not_healthy(north: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds its lock, takes the question, and does not answer."""
    monkeypatch.setattr(health, "ANSWER_SECONDS", 0.5)
    settings, folder = sites.read(north)
    with stores.hold_folder(folder), answering(settings.network.status_port, None):
        verdict = health.check(settings, folder)
    assert (verdict.healthy, verdict.state) == (False, "silent")


def test_health_is_quick(north: Path) -> None:
    """It loads no PyTorch: Docker asks every minute."""
    line = f"node health {north}"
    assert heavy_imports([line], north, code=1) == {line: set()}
