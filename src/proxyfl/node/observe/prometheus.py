"""A site's status in Prometheus's text format, version 0.0.4.

``METRICS`` names every metric that a site can have. A value that is not known (of a peer that was
never heard from, of a date that was not set) has no line.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

METRICS = {
    "proxyfl_info": ("gauge", "1. Labels: site, federation, release, protocol, hash of manifest"),
    "proxyfl_started_timestamp_seconds": ("gauge", "Start of the program"),
    "proxyfl_round": ("gauge", "Rounds done"),
    "proxyfl_rounds": ("gauge", "Rounds that the manifest states"),
    "proxyfl_last_round_timestamp_seconds": ("gauge", "End of the last round"),
    "proxyfl_manifest_version": ("gauge", "Version of the manifest in force at this site"),
    "proxyfl_manifest_end_timestamp_seconds": ("gauge", "Date of the end, if the manifest has one"),
    "proxyfl_certificate_end_timestamp_seconds": ("gauge", "End of the TLS certificate"),
    "proxyfl_disk_free_bytes": ("gauge", "Free space on the disk of the site's folder"),
    "proxyfl_weight": ("gauge", "PushSum weight that the site holds"),
    "proxyfl_weight_in_flight": ("gauge", "Weight in the outbox"),
    "proxyfl_weight_waiting": ("gauge", "Weight that has arrived and is not added yet"),
    "proxyfl_epsilon": ("gauge", "Epsilon spent at the end of the last round"),
    "proxyfl_budget": ("gauge", "Epsilon that may be spent in all"),
    "proxyfl_private_measure": ("gauge", "The private model's last score in the agreed measure"),
    "proxyfl_outbox_shares": ("gauge", "Shares that no peer has acknowledged yet"),
    "proxyfl_outbox_age_seconds": ("gauge", "Age of the oldest, up to a round too high; 0 if none"),
    "proxyfl_waiting": ("gauge", "1 while the site trains no round. Label reason: why"),
    "proxyfl_waiting_since_timestamp_seconds": ("gauge", "Since when. Label reason: why"),
    "proxyfl_stopped_by_peer": ("gauge", "1 if a peer found that the store is an old backup"),
    "proxyfl_peer_info": ("gauge", "1. Labels: peer, its release, protocol and state"),
    "proxyfl_peer_reachable": ("gauge", "1 if the peer answers, or was just heard from; else 0"),
    "proxyfl_peer_seconds_since_contact": ("gauge", "Seconds since the peer was heard from"),
    "proxyfl_peer_round": ("gauge", "Rounds that the peer was seen to release"),
    "proxyfl_peer_manifest_version": ("gauge", "Version of the manifest at the peer"),
    "proxyfl_peer_clock_skew_seconds": ("gauge", "The peer's clock minus this site's"),
    "proxyfl_peer_outbox_shares": ("gauge", "Shares that the peer has not acknowledged yet"),
    "proxyfl_peer_held_up": ("gauge", "1 while the peer cannot receive. Label reason: why"),
    "proxyfl_events_total": ("counter", "Entries of the audit log since the start"),
    "proxyfl_traffic_total": ("counter", "Messages and bytes since the start"),
}
"""Every metric: its type, and what it means."""

Status = Mapping[str, Any]


class Sample(NamedTuple):
    """One value of a metric; None is left out."""

    name: str
    value: float | None
    labels: Mapping[str, object] = {}


def exposition(status: Status) -> str:
    """The text for a status."""
    by_name: dict[str, list[str]] = {name: [] for name in METRICS}
    for sample in _samples(status):
        if sample.value is not None:
            by_name[sample.name].append(_line(sample, sample.value))
    blocks = []
    for name, lines in by_name.items():
        if lines:
            kind, meaning = METRICS[name]
            head = [f"# HELP {name} {_escape_help(meaning)}", f"# TYPE {name} {kind}"]
            blocks += [*head, *lines]
    return "\n".join(blocks) + "\n"


def _samples(status: Status) -> Iterator[Sample]:
    yield from _site_samples(status)
    waiting = status["waiting_for"]
    if waiting is not None:
        reason = {"reason": waiting["code"]}
        yield Sample("proxyfl_waiting", 1, reason)
        yield Sample("proxyfl_waiting_since_timestamp_seconds", waiting["since"], reason)
    for peer in status["stopped_by"]:
        yield Sample("proxyfl_stopped_by_peer", 1, {"peer": peer})
    for peer in status["peers"]:
        yield from _peer_samples(peer)
    for event, count in sorted(status["events"].items()):
        yield Sample("proxyfl_events_total", count, {"event": event})
    for kind, count in sorted(status["traffic"].items()):
        yield Sample("proxyfl_traffic_total", count, {"kind": kind})


def _site_samples(status: Status) -> Iterator[Sample]:
    last = status["history"][-1] if status["history"] else {}
    about = {key: status[key] for key in ("federation", "release", "protocol", "hash")}
    oldest = status["oldest_share"]
    yield Sample("proxyfl_info", 1, {"site": status["name"], **about})
    yield Sample("proxyfl_started_timestamp_seconds", status["started"])
    yield Sample("proxyfl_round", status["round"])
    yield Sample("proxyfl_rounds", status["rounds"])
    yield Sample("proxyfl_last_round_timestamp_seconds", last.get("time"))
    yield Sample("proxyfl_manifest_version", status["version"])
    yield Sample("proxyfl_manifest_end_timestamp_seconds", status["ends"])
    yield Sample("proxyfl_certificate_end_timestamp_seconds", status["certificate_ends"])
    yield Sample("proxyfl_disk_free_bytes", status["free_bytes"])
    yield Sample("proxyfl_weight", status["weight"])
    yield Sample("proxyfl_weight_in_flight", status["in_flight"])
    yield Sample("proxyfl_weight_waiting", status["waiting"])
    yield Sample("proxyfl_epsilon", status["privacy"]["epsilon"])
    yield Sample("proxyfl_budget", status["privacy"]["budget"])
    yield Sample("proxyfl_private_measure", last.get("private"))
    yield Sample("proxyfl_outbox_shares", sum(status["owed"].values()))
    age = 0.0 if oldest is None else max(0.0, status["time"] - oldest)
    yield Sample("proxyfl_outbox_age_seconds", age)


def _peer_samples(peer: Status) -> Iterator[Sample]:
    name = {"peer": peer["name"]}
    about = {key: peer[key] for key in ("release", "protocol", "state")}
    yield Sample("proxyfl_peer_info", 1, {**name, **about})
    yield Sample("proxyfl_peer_reachable", peer["reachable"], name)
    yield Sample("proxyfl_peer_seconds_since_contact", peer["seconds_since_contact"], name)
    yield Sample("proxyfl_peer_round", peer["round"], name)
    yield Sample("proxyfl_peer_manifest_version", peer["version"], name)
    yield Sample("proxyfl_peer_clock_skew_seconds", peer["clock_skew"], name)
    yield Sample("proxyfl_peer_outbox_shares", peer["owed"], name)
    if peer["held_up"] is not None:
        yield Sample("proxyfl_peer_held_up", 1, {**name, "reason": peer["held_up"]["code"]})


def _line(sample: Sample, value: float) -> str:
    labels = ",".join(f'{key}="{_escape(str(text))}"' for key, text in sample.labels.items())
    if labels:
        labels = f"{{{labels}}}"
    return f"{sample.name}{labels} {_number(value)}"


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value)) if isinstance(value, float) else str(int(value))


def _escape(text: str) -> str:
    return _escape_help(text).replace('"', r"\"")


def _escape_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")
