"""What Prometheus reads is valid, says what the runbook needs, and is what alerts and board use."""

import json
import math
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from proxyfl.node.exchange import auditlog, messages, reasons
from proxyfl.node.exchange.auditlog import FILE, read
from proxyfl.node.members import site as sites
from proxyfl.node.observe import status
from proxyfl.node.observe.prometheus import METRICS, exposition
from tests.node.federations import quick, running, trial
from tests.node.test_service import Corner, asked, corners
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|Inf)|NaN"

__all__ = ["corners"]


class Family(NamedTuple):
    """A metric as the text has it."""

    kind: str
    help: str
    samples: dict[tuple[tuple[str, str], ...], float]


def parse(text: str) -> dict[str, Family]:
    """The metrics of a text, which must follow the format to the letter: HELP, TYPE and samples of
    a metric together and in this order, each name and each set of labels once."""
    assert text.endswith("\n")
    found: dict[str, Family] = {}
    now = ""
    meaning = ""
    for line in text[:-1].split("\n"):
        if match := re.fullmatch(rf"# HELP ({NAME}) ((?:[^\\\n]|\\[\\n])*)", line):
            assert match[1] not in found
            now, meaning = match[1], match[2]
        elif match := re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge)", line):
            assert match[1] == now
            assert (match[2] == "counter") == now.endswith("_total")
            found[now] = Family(match[2], meaning, {})
        else:
            match = re.fullmatch(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? ({NUMBER})", line)
            assert match, line
            assert match[1] == now
            labels = []
            for pair in re.findall(LABEL, match[2] or ""):
                key, _, value = pair.partition("=")
                labels.append((key, value[1:-1]))
            assert len(dict(labels)) == len(labels)
            assert tuple(labels) not in found[now].samples
            found[now].samples[tuple(labels)] = float(match[3])
    return found


def plain(**changes: Any) -> dict[str, Any]:
    """A status with little in it."""
    about: dict[str, Any] = dict.fromkeys(
        ("started", "ends", "certificate_ends", "free_bytes", "oldest_share", "waiting_for")
    )
    about |= {"name": "north", "federation": "heart", "release": "1", "protocol": "1", "hash": "a"}
    about |= {"round": 3, "rounds": 9, "version": 1, "weight": 1.0, "in_flight": 0.0}
    about |= {"waiting": 0.0, "owed": {}, "time": 100.0, "stopped_by": {}, "peers": []}
    about |= {"privacy": {"epsilon": None, "budget": 5.0}}
    about |= {"events": {}, "traffic": {}, "history": []}
    return about | changes


def peers_of(families: dict[str, Family], name: str) -> dict[str, float]:
    """A metric's values by peer."""
    return {dict(labels)["peer"]: value for labels, value in families[name].samples.items()}


def test_odd_values_and_labels_are_valid() -> None:
    """Infinite values, and labels with quotes, backslashes and line breaks, keep the format."""
    odd = 'a"b\\c\nd'
    text = exposition(
        plain(privacy={"epsilon": math.inf, "budget": math.nan}, events={odd: 3}, weight=1e-300)
    )
    families = parse(text)
    assert families["proxyfl_epsilon"].samples == {(): math.inf}
    assert math.isnan(families["proxyfl_budget"].samples[()])
    assert families["proxyfl_weight"].samples == {(): 1e-300}
    assert families["proxyfl_events_total"].samples == {(("event", r"a\"b\\c\nd"),): 3.0}


def test_what_is_not_known_has_no_line() -> None:
    """No epsilon before the first round, no end without a date."""
    families = parse(exposition(plain()))
    assert "proxyfl_epsilon" not in families
    assert "proxyfl_manifest_end_timestamp_seconds" not in families
    assert families["proxyfl_outbox_age_seconds"].samples == {(): 0.0}


def test_reasons_and_the_outboxs_age_are_said() -> None:
    """Why a site waits and since when, who stopped it, and how old its oldest share is."""
    waiting = {"code": "too-few-peers", "text": "x", "since": 40.0}
    families = parse(
        exposition(
            plain(waiting_for=waiting, stopped_by={"south": {}}, oldest_share=30.0, owed={"a": 2})
        )
    )
    reason = (("reason", "too-few-peers"),)
    assert families["proxyfl_waiting"].samples == {reason: 1.0}
    assert families["proxyfl_waiting_since_timestamp_seconds"].samples == {reason: 40.0}
    assert peers_of(families, "proxyfl_stopped_by_peer") == {"south": 1.0}
    assert families["proxyfl_outbox_age_seconds"].samples == {(): 70.0}
    assert families["proxyfl_outbox_shares"].samples == {(): 2.0}


def test_a_running_site_says_all_that_operations_need(tmp_path: Path) -> None:
    """Per peer: reachability, round, version of the manifest, release, clock. Of itself: round,
    last round, certificate, disk, outbox."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=6, template=quick(patience=60.0))
    with running(layout, hold=2) as made:
        wait_until(lambda: len(status.rows(layout.sites[0])) >= 2)
        node = made.nodes["north"]
        wait_until(lambda: node.service.skew("south") is not None)
        document = node.status()
        json.dumps(document)
        families = parse(exposition(document))
        made.go.set()
        made.join()
    now = time.time()
    assert peers_of(families, "proxyfl_peer_reachable") == {"south": 1.0}
    assert peers_of(families, "proxyfl_peer_round")["south"] >= 1
    assert peers_of(families, "proxyfl_peer_manifest_version") == {"south": 1.0}
    assert abs(peers_of(families, "proxyfl_peer_clock_skew_seconds")["south"]) < 30
    (labels,) = families["proxyfl_peer_info"].samples
    assert dict(labels)["release"] == document["release"]
    assert 0 < now - families["proxyfl_last_round_timestamp_seconds"].samples[()] < 600
    assert families["proxyfl_certificate_end_timestamp_seconds"].samples[()] > now + 80 * 86400
    assert families["proxyfl_disk_free_bytes"].samples[()] > 0
    assert set(families) <= set(METRICS)


def test_a_stopped_site_has_a_status_too(tmp_path: Path) -> None:
    """What only a running site knows is left out."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=1, template=quick())
    families = parse(exposition(status.of_folder(*sites.read(layout.sites[0]))))
    assert "proxyfl_peer_reachable" not in families
    assert families["proxyfl_rounds"].samples == {(): 1.0}


def hello_at(a: Corner, b: Corner, ahead: float) -> bytes:
    """A signed hello of a site whose clock is ahead."""
    header = a.exchange.hello(b.identity.name, time=int(time.time() + ahead))
    return messages.pack(header, a.identity)


def test_a_clock_that_differs_is_measured_and_logged_once(
    corners: tuple[Corner, Corner, Corner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hello after hello, the skew is known, and the log has it once until it changes. A change
    while the log is quiet is put on record afterwards."""
    a, b, _ = corners
    assert b.service.skew("a") is None
    for _ in range(5):
        asked(b, a, hello_at(a, b, 300))
    skew = b.service.skew("a")
    assert skew is not None
    assert abs(skew - 300) < 30
    entries = [entry for entry in read(b.folder / FILE) if entry["event"] == "clock differs"]
    assert [entry["peer"] for entry in entries] == ["a"]
    for _ in range(3):
        asked(b, a, hello_at(a, b, 0))
    monkeypatch.setattr(auditlog, "QUIET_SECONDS", 0.0)
    asked(b, a, hello_at(a, b, 0))
    entries = [entry for entry in read(b.folder / FILE) if entry["event"] == "clock differs"]
    assert [entry["seconds"] > 200 for entry in entries] == [True, False]


def test_one_late_message_is_no_wrong_clock(corners: tuple[Corner, Corner, Corner]) -> None:
    """A hello that was under way for long makes a clock look late; the next one shows better."""
    a, b, _ = corners
    asked(b, a, hello_at(a, b, 0))
    asked(b, a, hello_at(a, b, -200))
    skew = b.service.skew("a")
    assert skew is not None
    assert abs(skew) < 30


def used_names(expression: str) -> set[str]:
    """The metrics that an expression names."""
    return set(re.findall(r"\bproxyfl_[a-z_]+", expression))


def expressions() -> list[str]:
    """Every expression of the alerts and the board."""
    rules = (DEPLOY / "prometheus-alerts.yaml").read_text()
    found = re.findall(r"^ +expr: (.*)$", rules, re.MULTILINE)
    assert len(found) == rules.count("- alert: ") >= 12
    board = json.loads((DEPLOY / "grafana-board.json").read_text())
    for panel in board["panels"]:
        found += [target["expr"] for target in panel["targets"]]
    return found


def test_alerts_and_board_use_metrics_that_exist() -> None:
    """No expression names a metric that no site has, and brackets are closed."""
    for expression in expressions():
        names = used_names(expression) or {"up"}
        assert names <= {*METRICS, "up"}, expression
        for opened, closed in ("()", "[]", "{}"):
            assert expression.count(opened) == expression.count(closed), expression


def test_alerts_use_reasons_and_events_that_exist() -> None:
    """Codes and events in alerts are those that the code has."""
    source = "".join(path.read_text() for path in (ROOT / "src/proxyfl/node").rglob("*.py"))
    for expression in expressions():
        for codes in re.findall(r'reason!?=~?"([^"]*)"', expression):
            assert set(codes.split("|")) <= set(reasons.CODES), expression
        for event in re.findall(r'event="([^"]*)"', expression):
            assert f'log.add("{event}"' in source or f'self.add("{event}"' in source, event


def test_the_boards_panels_do_not_overlap() -> None:
    """Each has a place of its own and an id of its own."""
    panels = json.loads((DEPLOY / "grafana-board.json").read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken
                taken.add((x, y))
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_the_alerts_file_is_indented_as_prometheus_reads_it() -> None:
    """Every rule has a name, an expression, a severity and a summary, and no tab is in it."""
    text = (DEPLOY / "prometheus-alerts.yaml").read_text()
    assert "\t" not in text
    for rule in text.split("      - alert: ")[1:]:
        name, *lines = rule.strip("\n").split("\n")
        assert re.fullmatch(r"ProxyFL[A-Za-z]+", name)
        keys = [line.split(":")[0] for line in lines]
        assert [key for key in keys if key != "        for"] == [
            "        expr",
            "        labels",
            "        annotations",
        ], name
        assert re.search(r"labels: \{severity: (critical|warning|info)\}", rule)
        assert re.search(r'annotations: \{summary: "[^"]+"\}', rule)


def test_notices_say_what_somebody_should_look_at() -> None:
    """Nothing for a site that is in order; a sentence for each thing that is not."""
    peer = {"name": "south", "clock_skew": 3.0}
    calm = plain(
        peers=[peer], ended_because=None, certificate_ends=90 * 86400.0, free_bytes=50 << 30
    )
    assert status.notices(calm) == []
    waiting = {"code": "too-few-peers", "text": "Round 3 waits.", "since": 0.0}
    odd = {
        "peers": [{"name": "south", "clock_skew": -95.0}],
        "waiting_for": waiting,
        "stopped_by": {"east": {"code": "old-backup", "text": "Rejoin."}},
        "certificate_ends": 2 * 86400.0,
        "free_bytes": 3 << 20,
    }
    assert status.notices(calm | odd) == [
        "Stopped by east (old-backup): Rejoin. Run: proxyfl node rejoin SITE",
        "Waits (too-few-peers): Round 3 waits. Run: proxyfl preflight SITE",
        "The clock of south is 95 s behind this site's. Set both by NTP. Run: timedatectl set-ntp "
        "true",
        "The TLS certificate ends in 2 days and was not renewed. Run: proxyfl node certificate "
        "SITE",
        "Only 3 MB are free on the site's disk. Make room: a site whose disk is full stops before "
        "its next round. Run: df -h SITE",
    ]
