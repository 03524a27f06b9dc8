"""Clocks that are wrong, or were wrong once: certificates, preflight, the end on a date."""

import dataclasses
import datetime
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509

from proxyfl.cli.main import main
from proxyfl.node import preflight
from proxyfl.node.exchange import auditlog
from proxyfl.node.members import identity as identities
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members import roster
from proxyfl.node.members import site as sites
from proxyfl.node.members.identity import IDENTITY_FILE, TLS_FILE, Identity
from proxyfl.node.observe import status
from proxyfl.node.supervisor import Node
from tests.node.federations import Running, quick, running, trial
from tests.node.test_commands import answering
from tests.waiting import wait_until

DAY = datetime.timedelta(days=1)

Clock = Callable[[datetime.timedelta], None]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Sets the clock by which certificates are made: this far from the true time."""

    def set_clock(ahead: datetime.timedelta) -> None:
        now = datetime.datetime.now(datetime.UTC)
        monkeypatch.setattr(identities, "_now", lambda: now + ahead)

    return set_clock


def dates(path: Path) -> tuple[datetime.datetime, datetime.datetime]:
    """A certificate's first and last moment."""
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


AHEAD_AND_BEHIND = pytest.mark.parametrize(
    "error", [730 * DAY, 20 * DAY, -20 * DAY, -10000 * DAY], ids=str
)


@AHEAD_AND_BEHIND
def test_a_certificate_that_a_wrong_clock_dated_is_renewed(
    tmp_path: Path, clock: Clock, error: datetime.timedelta
) -> None:
    """Made by a wrong clock, at `init` or at a renewal, it is replaced as soon as the clock is
    right."""
    clock(error)
    site = Identity.create(tmp_path, "north")
    clock(0 * DAY)
    site.tls_certificate()
    begin, end = dates(tmp_path / TLS_FILE)
    now = datetime.datetime.now(datetime.UTC)
    assert begin < now
    assert 30 * DAY < end - now < 91 * DAY
    site.check_dates()


@AHEAD_AND_BEHIND
def test_an_identity_certificate_does_not_depend_on_the_clock(
    tmp_path: Path, clock: Clock, error: datetime.timedelta
) -> None:
    """It is on cards and in manifests, where nobody can renew it."""
    clock(error)
    Identity.create(tmp_path, "north")
    begin, end = dates(tmp_path / IDENTITY_FILE)
    assert (begin.year, end.year) == (2000, 9999)


def test_a_certificate_that_is_in_order_is_left_alone(tmp_path: Path) -> None:
    """Reading it does not renew it."""
    site = Identity.create(tmp_path, "north")
    assert site.tls_certificate() == site.tls_certificate()


def test_peers_meet_after_a_clock_was_wrong(tmp_path: Path, clock: Clock) -> None:
    """A site whose certificate is from the future finishes its rounds with its peers, over real
    TLS, once its clock is right."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=2, template=quick())
    clock(400 * DAY)
    Identity(layout.sites[0], "north").renew()
    clock(0 * DAY)
    with running(layout) as made:
        made.join()
    assert set(made.ended.values()) == {"finished"}
    heard = [entry["event"] for entry in auditlog.read(layout.sites[1] / auditlog.FILE)]
    assert "stored" in heard


def checks(place: Path) -> dict[str, preflight.Line]:
    """The lines of a site's preflight."""
    settings, folder = sites.read(place)
    return {line.check: line for line in preflight.preflight(settings, folder)}


def test_preflight_renews_and_checks_dates(tmp_path: Path, clock: Clock) -> None:
    """A certificate from the future is renewed; one that an authority signed cannot be, and is
    refused with what to do."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=2, template=quick())
    north = layout.sites[0]
    clock(400 * DAY)
    Identity(north, "north").renew()
    clock(0 * DAY)
    line = checks(north)["certificate"]
    assert line.ok
    assert dates(north / TLS_FILE)[0] < datetime.datetime.now(datetime.UTC)
    clock(400 * DAY)
    own = Identity(north, "north")
    own.renew()
    authority = Identity.create(tmp_path / "authority", "authority")
    (north / IDENTITY_FILE).write_bytes((authority.folder / IDENTITY_FILE).read_bytes())
    clock(0 * DAY)
    line = checks(north)["certificate"]
    assert not line.ok
    assert "valid from" in line.text
    assert f"proxyfl node certificate {north} --request" in line.text


def test_preflight_names_a_peer_whose_certificate_is_from_the_future(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer runs an earlier release that does not renew it: the line says which clock was
    wrong, and what to type there."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=2, template=quick())
    north, south = layout.sites
    clock(400 * DAY)
    Identity(south, "south").renew()
    monkeypatch.setattr(Identity, "_is_due", lambda self: False)
    with answering(south):  # by its clock all is well
        clock(0 * DAY)
        own = Identity(north, "north")
        with pytest.raises(identities.IdentityError, match="a clock was wrong when it was made"):
            preflight._check_key(layout.manifest.members[1], own)


def test_preflight_names_a_member_whose_card_is_not_valid(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An identity certificate of an earlier release, made by a wrong clock, is in the manifest."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=2, template=quick())
    north, south = layout.sites
    tomorrow = datetime.datetime.now(datetime.UTC) + DAY
    monkeypatch.setattr(identities, "IDENTITY_FROM", tomorrow)
    bad = Identity(south, "south")
    bad._certify_itself()
    card = bad.card(layout.manifest.members[1].address)
    without = manifests.successor(layout.manifest, remove=["south"])
    roster.accept(north, Identity(north, "north"), without)
    roster.accept(north, Identity(north, "north"), manifests.successor(without, add=[card]))
    line = checks(north)["members' certificates"]
    assert not line.ok
    assert "The certificate of south in the manifest is valid from" in line.text
    monkeypatch.setattr(
        identities, "IDENTITY_FROM", datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
    )
    assert not checks(south)["certificate"].ok


def test_node_certificate_signs_a_bad_identity_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It writes a new card then, and says that the others need it."""
    place = str(tmp_path / "north")
    monkeypatch.setattr(
        identities, "IDENTITY_UNTIL", datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)
    )
    assert main(["node", "init", place]) == 0
    monkeypatch.undo()
    before = (tmp_path / "north" / "north.card.toml").read_text()
    assert main(["node", "certificate", place]) == 0
    assert "Send the new card" in capsys.readouterr().out
    assert (tmp_path / "north" / "north.card.toml").read_text() != before
    assert main(["node", "certificate", place]) == 0
    assert "The card is the same" in capsys.readouterr().out


def test_preflight_warns_when_this_sites_records_are_from_the_future(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A clock that was ahead, or is behind: the line warns, and the site is still ready."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=2, template=quick())
    north = layout.sites[0]
    later = datetime.datetime.now().timestamp() + 86400
    (north / auditlog.FILE).write_text(json.dumps({"event": "started", "time": later}) + "\n")
    line = checks(north)["clock"]
    assert (line.ok, line.warn) == (True, True)
    assert "in the future" in line.text
    main(["preflight", str(north)])
    assert "warn  clock: the last entry" in capsys.readouterr().out


def test_a_wrong_clock_does_not_end_a_site(tmp_path: Path) -> None:
    """By its own clock the last day has passed, by its peers' clocks not: it trains nothing, says
    why, and ends once they agree."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=3, template=quick())
    yesterday = datetime.datetime.now(datetime.UTC) - DAY
    agreed = dataclasses.replace(
        manifests.successor(layout.manifest), ends=yesterday.isoformat(timespec="seconds")
    )
    north = layout.sites[0]
    roster.accept(north, Identity(north, "north"), agreed)
    made = Running()
    made.start(north)
    node = made.nodes["north"]
    skew = -5 * 86400.0
    node.service.skew = lambda peer: skew  # type: ignore[method-assign]  # what hellos would show
    try:
        wait_until(lambda: node.reasons.of("waiting") or "north" in made.ended)
        reason = node.reasons.of("waiting")
        assert reason is not None
        assert reason.code == "clock"
        assert "Set the clock" in reason.text
        assert "north" not in made.ended
        skew = 0.0
        made.join()
    finally:
        node.stopping.set()
    assert made.ended["north"] == "finished"
    assert status.rows(north) == []


def test_the_time_of_the_federation_is_that_of_most_clocks(tmp_path: Path) -> None:
    """One clock that is wrong, this site's or a peer's, does not move it; of two, the earlier
    counts."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=1, template=quick())
    settings, folder = sites.read(layout.sites[0])
    with Node(settings, folder, seed=0) as node:
        skews: dict[str, float | None] = {}
        node.service.skew = skews.get  # type: ignore[method-assign]  # what hellos would show
        for known, expected in (
            ({}, 0.0),
            ({"south": 900.0, "east": 1.0}, 1.0),
            ({"south": -900.0, "east": -901.0}, -900.0),
            ({"south": 900.0}, 0.0),
            ({"south": -900.0}, -900.0),
        ):
            skews.clear()
            skews.update(known)
            assert abs(node.service.federation_time() - time.time() - expected) < 0.5


@pytest.mark.skipif(shutil.which("faketime") is None, reason="no faketime here")
def test_a_process_under_a_wrong_clock_leaves_nothing_that_outlasts_it(tmp_path: Path) -> None:
    """`node init` and `preflight` run two years ahead; afterwards both certificates are valid."""
    place = tmp_path / "north"
    command = ["faketime", "-f", "+730d", sys.executable, "-m", "proxyfl", "node", "init"]
    subprocess.run([*command, str(place)], check=True, capture_output=True)
    now = datetime.datetime.now(datetime.UTC)
    assert dates(place / TLS_FILE)[0] > now + 700 * DAY
    site = Identity(place, "north")
    site.tls_certificate()
    site.check_dates()
    assert dates(place / TLS_FILE)[0] < now
