"""The live page's server: it reads, it never disturbs, and it lets in only whom it should."""

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxyfl.cli.main import parser
from proxyfl.errors import ConfigError, RunError
from proxyfl.records.reading import read
from proxyfl.report import live
from proxyfl.report.callback import LivePage
from proxyfl.report.document import document
from proxyfl.report.live import LiveServer, await_news, news, over, recorded
from proxyfl.simulation import run as runner
from proxyfl.simulation.config import from_tree
from tests.waiting import PATIENCE


def lines(method: str, round: int, clients: int = 2) -> str:
    """The lines of one round as a run writes them."""
    rows = [
        {
            "method": method,
            "round": round,
            "client": c,
            "name": f"client-{c}",
            "present": clients,
            "epsilon_kind": "end-to-end",
            "epsilon_pld": 1.0,
            "epsilon_rdp": 2.0,
            "delta": 1e-3,
            "private_accuracy": 0.5,
            "left": None,
        }
        for c in range(clients)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder with one round of ProxyFL on record."""
    (tmp_path / "config.toml").write_text('seed = 0\nrounds = 3\nmethods = ["proxyfl"]\n')
    (tmp_path / "metrics.jsonl").write_text(lines("proxyfl", 0))
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[LiveServer]:
    """The folder's page, served on loopback."""
    with LiveServer(folder) as server:
        yield server


def ask(
    server: LiveServer, path: str, *, method: str = "GET", host: str | None = None
) -> tuple[int, bytes]:
    """One request over the wire: status and content."""
    address, port = server.server_address[:2]
    connection = http.client.HTTPConnection(str(address), int(port), timeout=PATIENCE)
    connection.request(method, path, headers={"Host": host or f"{address}:{port}"})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def test_news_is_the_whole_document(folder: Path) -> None:
    """A page that is behind gets all of the run as a report shows it; one that is not gets
    nothing."""
    first = news(folder, "")
    assert first["document"]["runs"][0]["progress"] == {"proxyfl": 1}
    assert news(folder, first["cursor"])["document"] is None
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(lines("proxyfl", 1) + lines("proxyfl", 2))
    second = news(folder, first["cursor"])
    expected = document([read(folder)])
    assert second["document"]["live"]["pace"]["share"] == 1.0
    for one in (expected, second["document"]):
        del one["made"], one["live"]
    assert second["document"] == expected


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_half_a_round_is_left_for_later(folder: Path, cut: int) -> None:
    """A round that is still being written, in mid-line or between lines, is not told until it is
    whole."""
    known = recorded(folder)[1]
    whole = lines("proxyfl", 1)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(whole[:-cut])
        file.flush()
        early, cursor = recorded(folder)
        file.write(whole[-cut:])
    assert cursor == known
    assert len(recorded(folder)[0]) == len(early) + 2


def test_a_rewritten_end_is_news(folder: Path) -> None:
    """If a resumed run cut off the end and wrote another of the same length, the page is told."""
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(lines("proxyfl", 1))
    old = recorded(folder)[1]
    (folder / "metrics.jsonl").write_text(lines("proxyfl", 0) + lines("another", 1))
    assert news(folder, old)["document"]["runs"][0]["progress"] == {"proxyfl": 1, "another": 2}


@pytest.mark.parametrize("cursor", ["999999-00000000", "-1-x", "nonsense", "9" * 40, "5-00000000"])
def test_a_cursor_that_fits_nothing_gets_the_whole(folder: Path, cursor: str) -> None:
    """Whatever a reader claims to know, it gets the whole and no error."""
    assert news(folder, cursor)["document"]["runs"][0]["progress"] == {"proxyfl": 1}


def test_telling_leaves_the_machine_to_the_run(
    server: LiveServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After news that took long to tell, a reader who asks again soon is put off; the end is told
    all the same."""
    monkeypatch.setattr(live, "PACE", 1e6)
    assert server.news("")["document"] is not None
    assert server.news("")["document"] is None
    (folder / "summary.json").write_text('{"finished": true}')
    assert server.news("")["done"]


def test_a_run_is_over_when_its_summary_is_the_newest(folder: Path) -> None:
    """The summary is written last; metrics that are newer belong to a resumed run."""
    assert not over(folder)
    (folder / "summary.json").write_text('{"finished": true}')
    assert over(folder)
    later = time.time_ns() + 10**9
    os.utime(folder / "metrics.jsonl", ns=(later, later))
    assert not over(folder)


def test_the_end_brings_what_is_only_known_then(folder: Path) -> None:
    """Once the run is over, the news carries the classes and that it is done."""
    first = news(folder, "")
    assert not first["done"]
    (folder / "summary.json").write_text('{"finished": true, "classes": ["a", "b"]}')
    last = news(folder, first["cursor"])
    assert last["done"]
    assert last["document"]["runs"][0]["classes"] == ["a", "b"]


def test_the_end_is_told_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that is held back is answered when the run ends, not when its time is up."""
    monkeypatch.setattr(live, "HOLD_SECONDS", 2 * PATIENCE)
    threading.Timer(0.3, lambda: (folder / "summary.json").write_text("{}")).start()
    started = time.monotonic()
    await_news(folder, recorded(folder)[1], threading.Event())
    assert over(folder)
    assert time.monotonic() - started < PATIENCE


def test_page_and_data_are_served(server: LiveServer) -> None:
    """The address gives the page, and data.json what is new."""
    status, page = ask(server, "/")
    assert status == 200
    assert b"ProxyFL live" in page
    status, data = ask(server, "/data.json?since=")
    assert status == 200
    assert json.loads(data)["document"]["groups"][0]["epsilons"]["proxyfl"]["rounds"] == [1]


@pytest.mark.parametrize(
    "path", ["/config.toml", "/../config.toml", "/metrics.jsonl", "/%2e%2e/etc/passwd", "//x"]
)
def test_nothing_else_is_served(server: LiveServer, path: str) -> None:
    """No file can be asked for by name."""
    assert ask(server, path)[0] == 404


def test_loopback_is_the_default_and_needs_no_token(server: LiveServer) -> None:
    """Only this machine can reach the page."""
    assert server.server_address[0] == "127.0.0.1"
    assert server.token is None


def test_other_addresses_need_the_token(folder: Path) -> None:
    """Reachable from elsewhere, every request needs the token that is in the printed address."""
    with LiveServer(folder, host="0.0.0.0") as server:
        assert server.token is not None
        assert len(server.token) >= 32
        assert server.url.endswith(f"?token={server.token}")
        for path in (
            "/",
            "/data.json",
            "/?token=",
            "/?token=wrong",
            f"/?token={server.token[:-1]}",
        ):
            assert ask(server, path)[0] == 403
        assert ask(server, f"/data.json?token={server.token}", host="hospital.example")[0] == 200


def test_two_servers_have_two_tokens(folder: Path) -> None:
    """A token is drawn anew each time."""
    with LiveServer(folder, host="0.0.0.0") as one, LiveServer(folder, host="0.0.0.0") as other:
        assert one.token != other.token


def test_a_taken_port_is_named(server: LiveServer, folder: Path) -> None:
    """A port in use gives an error that names it and what to do."""
    port = server.server_address[1]
    with pytest.raises(ConfigError, match=str(port)):
        LiveServer(folder, port=int(port))


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    """There must be a run to watch."""
    with pytest.raises(RunError):
        LiveServer(tmp_path)


def test_a_folder_that_vanishes_does_not_stop_the_server(server: LiveServer, folder: Path) -> None:
    """While the records cannot be read the reader hears so, and afterwards all is as before."""
    (folder / "metrics.jsonl").rename(folder / "elsewhere")
    assert ask(server, "/data.json")[0] == 503
    (folder / "elsewhere").rename(folder / "metrics.jsonl")
    assert ask(server, "/data.json")[0] == 200


def test_watching_changes_no_result(tmp_path: Path) -> None:
    """A run that is watched while it runs records the same scores as one that is not."""
    config = from_tree(
        {"rounds": 3, "evaluate_every": 1, "methods": ["proxyfl"], "partition": {"clients": 2}}
    )
    watched: list[int] = []

    class Reader(LivePage):
        def announce(self, url: str) -> None:
            watched.append(1)

        def round_ended(self, *_: Any) -> None:
            assert self.server is not None
            watched.append(ask(self.server, "/data.json")[0])

    runner.run(config, out=tmp_path / "plain")
    runner.run(config, out=tmp_path / "live", callbacks=[Reader(patience=0.0)])
    plain, seen = (
        [
            {k: v for k, v in row.items() if not k.startswith("seconds")}
            for row in recorded(tmp_path / n)[0]
        ]
        for n in ("plain", "live")
    )
    assert plain == seen
    assert watched == [1, 200, 200, 200]


def test_the_command_serves_until_the_run_is_over(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`proxyfl watch RUN --until-done --json` prints the address first and returns once the run has
    ended."""
    arguments = parser("watch").parse_args(["watch", str(folder), "--until-done", "--json"])
    (folder / "summary.json").write_text("{}")
    assert arguments.run(arguments) == 0
    assert json.loads(capsys.readouterr().out)["url"].startswith("http://127.0.0.1:")


def test_a_live_page_needs_a_folder() -> None:
    """Without a run's folder there is nothing to read, and the error says how to get one."""
    config = from_tree({"rounds": 1, "methods": ["alone"], "partition": {"clients": 2}})
    with pytest.raises(ConfigError, match="out="):
        runner.run(config, callbacks=[LivePage()])


def test_a_run_without_it_imports_nothing_of_it() -> None:
    """Neither the program nor a run loads the server, unless asked to."""
    code = (
        "import proxyfl.simulation.run, proxyfl.cli.commands.run, sys; "
        "print('proxyfl.report.live' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
