"""Pages over HTTP: for this machine or for those who have the token, and only to be read."""

import http.client
from collections.abc import Iterator, Mapping

import pytest

from proxyfl import _loopback
from proxyfl.errors import RunError
from proxyfl.node.observe import status
from proxyfl.report import live

from .waiting import PATIENCE

FORBIDDEN = 403


class Page(_loopback.Handler):
    """A page, a path that fails, and nothing else."""

    def answer(self, path: str, query: _loopback.Query) -> None:
        """Send "text ä" for /."""
        if path == "/":
            self.send_text("text ä", _loopback.HTML)
        elif path == "/fails":
            raise RunError("the folder is gone")
        else:
            self.send_missing("There is /")


@pytest.fixture
def server() -> Iterator[_loopback.Server]:
    """A server for this machine."""
    with _loopback.Server(Page) as server:
        yield server


def ask(
    server: _loopback.Server, path: str = "/", *, method: str = "GET", host: str = "localhost"
) -> tuple[int, bytes, Mapping[str, str]]:
    """One request over the wire: status, content and headers."""
    address, port = server.server_address[:2]
    connection = http.client.HTTPConnection(str(address), int(port), timeout=PATIENCE)
    connection.request(method, path, headers={"Host": host})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content, answer.headers


def test_a_page_is_kept_nowhere_and_framed_nowhere(server: _loopback.Server) -> None:
    """The content comes with headers that keep it out of caches and of other pages."""
    code, content, headers = ask(server)
    assert (code, content.decode()) == (200, "text ä")
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Server"].strip() == "proxyfl"


def test_head_gives_the_length_and_no_content(server: _loopback.Server) -> None:
    """HEAD answers as GET does, without the content."""
    code, content, headers = ask(server, method="HEAD")
    assert (code, content, headers["Content-Length"]) == (200, b"", "7")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_only_reading_is_possible(server: _loopback.Server, method: str) -> None:
    """There is no way to send something."""
    assert ask(server, method=method)[0] == 501


@pytest.mark.parametrize("host", ["localhost:1234", "127.0.0.1", "[::1]:80"])
def test_this_machines_names_are_answered(server: _loopback.Server, host: str) -> None:
    """Any name that means this machine and nothing else will do."""
    assert ask(server, host=host)[0] == 200


@pytest.mark.parametrize("host", ["attacker.example", "127.0.0.1.attacker.example", "", "10.0.0.1"])
def test_another_sites_name_is_refused(server: _loopback.Server, host: str) -> None:
    """A page elsewhere that points a name of its own at this machine gets nothing."""
    assert ask(server, host=host)[0] == FORBIDDEN


def test_a_token_is_needed_from_everywhere() -> None:
    """With a token, no host name replaces it, and no other token opens the page."""
    with _loopback.Server(Page, token="0123456789") as server:
        assert server.url.endswith("/?token=0123456789")
        for path in ("/", "/?token=", "/?token=012345678", "/?token=%C3%A9", "/fails"):
            assert ask(server, path)[0] == FORBIDDEN
        assert ask(server, "/?token=0123456789", host="hospital.example")[0] == 200


def test_a_failure_is_explained_and_stops_nothing(server: _loopback.Server) -> None:
    """The reader hears the reason; the next request is answered. What is not there is said."""
    code, content, _ = ask(server, "/fails")
    assert code == 503
    assert b"the folder is gone" in content
    assert ask(server, "/other")[0] == 404
    assert ask(server)[0] == 200


def test_every_page_of_ours_is_served_by_it() -> None:
    """The live page and a site's status have these checks and no others."""
    for ours in (live.LiveServer, status.StatusServer):
        assert issubclass(ours, _loopback.Server)
    for handler in (live._Handler, status._Handler):
        assert issubclass(handler, _loopback.Handler)
        assert {"do_GET", "do_HEAD", "_is_allowed", "send_text"}.isdisjoint(vars(handler))
