"""The commands around a node: what they print, what they return, what the page shows."""

import json
import threading
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from proxyfl.cli.main import main
from proxyfl.errors import TransportError
from proxyfl.node import preflight
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members import site as sites
from proxyfl.node.observe import status
from proxyfl.node.observe.status import StatusServer
from proxyfl.report import site
from tests.waiting import PATIENCE, wait_until

from .federations import change, quick, running, trial


def printed(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What a command prints, if it returns ``code``."""
    assert main(list(words)) == code
    return capsys.readouterr().out


@contextmanager
def answering(place: Path) -> Iterator[None]:
    """A site whose preflight has come to its peers, and answers theirs meanwhile."""
    settings, folder = sites.read(place)
    done: list[str] = []
    leave = threading.Event()

    def check() -> None:
        for line in preflight.preflight(settings, folder):
            done.append(line.check)
            if line.check == "own port":
                leave.wait(PATIENCE)

    thread = threading.Thread(target=check)
    thread.start()
    wait_until(lambda: "own port" in done)
    try:
        yield
    finally:
        leave.set()
        thread.join()


def test_from_init_to_an_accepted_manifest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """init, card, new, accept, show, add, remove: as the tutorial has it."""
    cards = []
    for at, name in enumerate(("north", "south", "east")):
        place = str(tmp_path / name)
        said = printed(capsys, "node", "init", place, "--address", f"127.0.0.1:{7100 + at}")
        assert "by telephone" in said
        card = tmp_path / f"{name}.card.toml"
        card.write_text(printed(capsys, "node", "card", place))
        assert tomllib.loads(card.read_text())["name"] == name
        cards.append(str(card))
    folder = str(tmp_path / "heart")
    new = ("federation", "new", folder, *cards[:2], "--shape", "13", "--classes", "well,sick")
    assert main([*new, "--until", "2030-01-01"]) == 2
    assert "State how many rounds" in capsys.readouterr().err
    new = (*new, "--rounds", "60")
    assert "2 members" in printed(capsys, *new)
    assert "accepts version 1" in printed(
        capsys, "node", "accept", str(tmp_path / "north"), f"{folder}/manifest.toml"
    )
    assert "3 members" in printed(capsys, "federation", "add", folder, cards[2])
    printed(capsys, "federation", "remove", folder, "south")
    shown = json.loads(printed(capsys, "federation", "show", folder, "--json"))
    assert [member["name"] for member in shown["members"]] == ["north", "east"]
    assert shown["version"] == 3
    assert main(list(new)) == 2
    assert "exists already" in capsys.readouterr().err


def test_records_of_the_current_folder_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file beside the site's folder is named from there; one that is nowhere is missed at once;
    one in the site's folder goes first."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "patients.csv").write_text("age,label\n" + "50,1\n" * 40)
    said = printed(capsys, "node", "init", "sites/north", "--data", "patients.csv")
    assert "The records are read from patients.csv" in said
    settings, folder = sites.read(tmp_path / "sites" / "north")
    assert settings.data.source == "../../patients.csv"
    assert (folder / settings.data.source).is_file()
    assert settings.privacy.examples is not None  # it was counted
    said = printed(capsys, "node", "init", "south", "--data", "records.csv")
    assert "There is no south/records.csv yet" in said
    (tmp_path / "east").mkdir()
    (tmp_path / "east" / "patients.csv").write_text("age,label\n" + "50,1\n" * 40)
    said = printed(capsys, "node", "init", "east", "--data", "patients.csv")
    assert "The records" not in said
    assert sites.read(tmp_path / "east")[0].data.source == "patients.csv"
    said = printed(capsys, "node", "init", "west", "--data", "digits")
    assert "There is no" not in said


def test_renewal_and_signing_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`node certificate` renews, or prints a request for the institution's own authority."""
    place = str(tmp_path / "north")
    printed(capsys, "node", "init", place)
    assert "The card is the same" in printed(capsys, "node", "certificate", place)
    request = printed(capsys, "node", "certificate", place, "--request")
    assert request.startswith("-----BEGIN CERTIFICATE REQUEST-----")


def test_preflight_says_ok_or_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alone, a site's peer is the only thing that fails; with the peer answering, nothing does."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=3, template=quick())
    north, south = layout.sites
    found = json.loads(printed(capsys, "preflight", str(north), "--json", code=1))
    failed = [check for check in found["checks"] if not check["ok"]]
    assert [check["check"] for check in failed] == ["peer south"]
    assert "Is the site or its preflight running" in failed[0]["text"]
    with answering(south):
        said = printed(capsys, "preflight", str(north))
    assert "FAIL" not in said
    assert "same manifest, clocks" in said
    assert "covers all 3 rounds" in said


@pytest.mark.parametrize(
    ("harm", "check", "said"),
    [
        (lambda place: (place / "key.pem").chmod(0o644), "private keys", "chmod 600"),
        (lambda place: place.chmod(0o770), "private keys", "chmod 700"),
        (lambda place: (place / "data.npz").unlink(), "data", "no such"),
        (
            lambda place: change(
                place, lambda site: sites.Site(site.name, privacy=sites.Privacy(budget=0.001))
            ),
            "budget",
            "covers 0 of 3 rounds (end-to-end, per record): not one. What would fit",
        ),
    ],
)
def test_preflight_finds_what_is_wrong(tmp_path: Path, harm: object, check: str, said: str) -> None:
    """Loose permissions, missing data, a budget too small: each is named."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=3, template=quick())
    assert callable(harm)
    harm(layout.sites[0])
    settings, folder = sites.read(layout.sites[0])
    lines = {line.check: line for line in preflight.preflight(settings, folder)}
    assert not lines[check].ok
    assert said in lines[check].text


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"version": 1}', b"[" * 9999, b"\xff", b"null"])
def test_preflight_says_that_a_peer_answers_nonsense(answer: bytes) -> None:
    """Whatever a peer answers becomes a line of the list, never an error of the program."""
    with pytest.raises(TransportError, match="not as a site does"):
        preflight._understood(answer)


def test_preflight_sees_another_key_in_between(tmp_path: Path) -> None:
    """Something that answers in the peer's place, with another key, is called by its name."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=3, template=quick())
    members = layout.manifest.members
    swapped = manifests.Manifest(
        "trial",
        input=layout.manifest.input,
        members=(members[0], manifests.Card(**{**vars(members[1]), "address": members[2].address})),
    )
    identity = preflight.Identity(layout.sites[0], "north")
    with (
        answering(layout.sites[2]),
        pytest.raises(TransportError, match="shows another key than the manifest's"),
    ):
        preflight._check_key(swapped.members[1], identity)


def test_status_page_json_and_prometheus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A running site answers on loopback with a page, a document, and numbers; to no other name."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=6, template=quick(patience=20.0))
    with running(layout, hold=3) as made:
        node = made.nodes["north"]
        with StatusServer(
            node.status, port=node.site.network.status_port, page=site.page
        ) as server:
            wait_until(lambda: len(status.rows(layout.sites[0])) >= 3)
            page = _fetched(server.url)
            assert "<h1><em>All is well:</em> round" in page
            assert "This site's score" in page
            assert "the peer answers" in page
            assert "<script" not in page
            assert "PushSum" not in page
            assert "PushSum" in _fetched(server.url + "details")
            numbers = _fetched(server.url + "metrics")
            assert "proxyfl_epsilon " in numbers
            assert 'proxyfl_peer_seconds_since_contact{peer="south"}' in numbers
            found = json.loads(printed(capsys, "node", "status", str(layout.sites[0]), "--json"))
            assert found["running"]
            asked = urllib.request.Request(server.url, headers={"Host": "evil.example"})
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(asked, timeout=PATIENCE)
        made.go.set()
        made.join()
    found = json.loads(printed(capsys, "node", "status", str(layout.sites[0]), "--json"))
    assert not found["running"]
    assert found["round"] == 6
    said = printed(capsys, "node", "status", str(layout.sites[0]))
    (row,) = [line for line in said.splitlines() if "south" in line and "│" in line]
    assert "finished" in row
    assert " s ago" in row
    assert "not running, finished, round 6 of 6" in said
    assert "active" not in said
    assert "never" not in said


def _fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return str(answer.read().decode())


def test_a_node_without_a_manifest_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and the next command."""
    printed(capsys, "node", "init", str(tmp_path / "north"))
    assert main(["node", "run", str(tmp_path / "north")]) == 2
    assert "proxyfl node accept" in capsys.readouterr().err
