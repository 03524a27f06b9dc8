"""Is all well at a site? A verdict in one sentence, and an alarm for each thing that somebody must
do, with the command to run. Terminal, page and JSON say the same, from here.

Everything follows from a status document alone. What may be missing in the document of an earlier
release is asked for with ``get``.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from proxyfl._command import command
from proxyfl.node.exchange.auditlog import CLOCK_SECONDS

SOON_DAYS = 14
"""A certificate that ends so soon was not renewed as it should be."""
LOW_BYTES = 1 << 30
SILENT_SECONDS = 60.0
"""A peer that has been away for less may only have been restarted."""

_MINDED = ("ending", "restored")
"""Reasons to wait that end by themselves."""
_BY_PLAN = ("joins-later", "finished", "left")
"""Reasons of peers that are no fault."""
_AWAY = ("unreachable", "never-heard", "restarts")
_PAST_ROUNDS = 10
"""The rounds from which the time of the next is taken."""

Status = Mapping[str, Any]


@dataclass(frozen=True)
class Alarm:
    """One thing that somebody must look at."""

    code: str
    headline: str
    """A sentence of few words."""
    text: str
    """What it means, and what to do."""
    command: str = ""
    """A line for the terminal, if one helps."""

    @property
    def line(self) -> str:
        """The alarm as one line of the terminal."""
        return f"{self.text} Run: {self.command}" if self.command else self.text


def judge(status: Status) -> dict[str, Any]:
    """The status with its verdict: what the page, the terminal and the JSON document begin with."""
    reasons = alarms(status)
    left = seconds_left(status)
    return {
        **status,
        "well": not reasons,
        "verdict": _sentence(status, reasons, left),
        "alarms": [asdict(alarm) for alarm in reasons],
        "seconds_left": left,
        "epsilon_at_end": epsilon_at_end(status),
    }


def alarms(status: Status) -> list[Alarm]:
    """Lists what needs an operator's attention, the worst first; empty if all is well."""
    folder = status.get("folder") or "SITE"
    raised = []
    for peer, verdict in status["stopped_by"].items():
        # A site of masked sums cannot rejoin: the text says what it can do.
        may_rejoin = verdict["code"] == "old-backup"
        raised.append(
            Alarm(
                "stopped",
                f"{peer} has stopped this site.",
                f"Stopped by {peer} ({verdict['code']}): {verdict['text']}",
                command("node", "rejoin", folder) if may_rejoin else "",
            )
        )
    ended = status["ended_because"]
    if ended is not None and ended["code"] == "below-quorum":
        raised.append(
            Alarm("ended", "Too few members were there.", f"Ended (below-quorum): {ended['text']}")
        )
    if not status.get("running", True) and not is_over(status) and not raised:
        raised.append(
            Alarm(
                "not-running",
                "This site does not run.",
                f"{status['name']} does not run and has rounds to do.",
                command("node", "run", folder),
            )
        )
    if status.get("running", True):
        raised += _waiting(status, folder)
        for peer in status["peers"]:
            raised += _of_peer(peer, status, folder)
    raised += _budget(status)
    raised += _machine(status, folder)
    return raised


def is_over(status: Status) -> bool:
    """True if this site's part is over, by its rounds, its budget or its leaving."""
    left = status.get("state") in ("left", "finished")
    return status["ended_because"] is not None or left or status["round"] >= status["rounds"]


def seconds_left(status: Status) -> float | None:
    """About how long the rounds that are left take, at the pace of the last ones; None if this
    cannot be said."""
    times = [each["time"] for each in status["history"] if each.get("time") is not None]
    gaps = []
    for earlier, later in itertools.pairwise(times):
        if later > earlier:
            gaps.append(later - earlier)
    idle = not status.get("running") or is_over(status)
    waits = status["waiting_for"] is not None and status["waiting_for"]["code"] not in _MINDED
    if idle or waits or not gaps:
        return None
    pace = statistics.median(gaps[-_PAST_ROUNDS:])
    return float(pace * (status["rounds"] - status["round"]))


def epsilon_at_end(status: Status) -> float | None:
    """About the epsilon after the last round that costs any, if the site goes on as it did.

    Composed rounds cost about a power of their number, whose exponent is taken from the second
    half of the rounds so far. An estimate for an operator; no charge depends on it."""
    spent = []
    for each in status["history"]:
        epsilon = each.get("epsilon")
        if epsilon is not None and 0 < epsilon < math.inf:
            spent.append((each["round"] + 1, epsilon))
    if len(spent) < 4:
        return None
    (early, less), (now, most) = spent[len(spent) // 2 - 1], spent[-1]
    last = max(now, status["rounds"] - status.get("settle", 0))
    if is_over(status) or last == now:
        return float(most)
    exponent = math.log(most / less) / math.log(now / early)
    return float(most * (last / now) ** min(1.0, exponent))


def duration(seconds: float) -> str:
    """A time span in words: 52 s, 3 min, 2 h 10 min, 4 days."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{round(hours / 24)} days"


def _sentence(status: Status, found: Sequence[Alarm], left: float | None) -> str:
    if found:
        more = f" And {len(found) - 1} more." if len(found) > 1 else ""
        return f"Needs you: {found[0].headline}{more}"
    ended = status["ended_because"]
    rounds = f"round {status['round']} of {status['rounds']}"
    if ended is not None and status["round"] < status["rounds"]:
        why = "the privacy budget is spent" if ended["code"] == "budget-spent" else "it has left"
        return f"All is well: this site's part is over after {rounds}, as {why}."
    if is_over(status):
        return f"All is well: all {status['rounds']} rounds are done."
    time = "" if left is None else f", about {duration(left)} left"
    return f"All is well: {rounds}, {_answering(status['peers'])}{time}."


def _answering(peers: Sequence[Status]) -> str:
    expected = [peer for peer in peers if _code(peer) not in _BY_PLAN]
    here = sum(1 for peer in expected if peer.get("reachable") is not False)
    if not expected:
        return "no peer is expected now"
    if here < len(expected):
        return f"{here} of {len(expected)} peers answer"
    words = {1: "the peer answers", 2: "both peers answer"}
    return words.get(here, f"all {here} peers answer")


def _waiting(status: Status, folder: str) -> list[Alarm]:
    """An alarm if the site waits for what does not end by itself. Shares are late for a while in
    many a round, so they count after a minute."""
    reason = status["waiting_for"]
    if reason is None or reason["code"] in _MINDED:
        return []
    waited = status["time"] - reason["since"]
    if reason["code"] in ("shares", "vectors", "peers-behind") and waited < SILENT_SECONDS:
        return []
    return [
        Alarm(
            "waiting",
            f"This site has waited for {duration(waited)}.",
            f"Waits ({reason['code']}): {reason['text']}",
            command("preflight", folder),
        )
    ]


def _of_peer(peer: Status, status: Status, folder: str) -> list[Alarm]:
    raised = []
    name = peer["name"]
    code = _code(peer)
    if code is not None and code not in _BY_PLAN:
        reason = peer["held_up"]
        away = status["time"] - reason["since"]
        ago = peer.get("seconds_since_contact")
        silent = away if ago is None else ago
        if code not in _AWAY:
            said = f"{name} cannot take part now ({code}): {reason['text']}"
            raised.append(Alarm("peer", f"{name} cannot take part now.", said))
        elif away >= SILENT_SECONDS:
            since = duration(silent)
            headline = f"{name} has been silent for {since}."
            if code == "restarts":
                headline = f"{name} starts again and again."
            text = (
                f"{headline} {reason['text']} Call its operator. Your records stay here, and "
                f"{name} is taken in again when it is back. To see why it cannot be reached:"
            )
            raised.append(Alarm("peer", headline, text, command("preflight", folder)))
    skew = peer["clock_skew"]
    if skew is not None and abs(skew) > CLOCK_SECONDS:
        order = "ahead of" if skew > 0 else "behind"
        text = f"The clock of {name} is {abs(skew):.0f} s {order} this site's. Set both by NTP."
        headline = f"The clocks of {name} and this site differ by {duration(abs(skew))}."
        raised.append(Alarm("clock", headline, text, "timedatectl set-ntp true"))
    return raised


def _budget(status: Status) -> list[Alarm]:
    budget = status["privacy"]["budget"]
    end = epsilon_at_end(status)
    if budget is None or end is None or end <= budget or is_over(status):
        return []
    return [
        Alarm(
            "budget",
            "The privacy budget ends before the study.",
            f"At this pace all rounds would cost about epsilon {end:.2f}, and the budget is "
            f"{budget:g}. This site will then hand its weight on, leave, and keep its model. There "
            "is nothing to repair: a budget is a promise. Longer studies need more noise or fewer "
            "rounds, which a new manifest states.",
        )
    ]


def _machine(status: Status, folder: str) -> list[Alarm]:
    raised = []
    ends = status["certificate_ends"]
    if ends is not None and ends - status["time"] < SOON_DAYS * 86400:
        left = ends - status["time"]
        when = f"ends in {left / 86400:.0f} days" if left > 0 else "has ended"
        raised.append(
            Alarm(
                "certificate",
                f"The TLS certificate {when}.",
                f"The TLS certificate {when} and was not renewed.",
                command("node", "certificate", folder),
            )
        )
    free = status["free_bytes"]
    if free is not None and free < LOW_BYTES:
        raised.append(
            Alarm(
                "disk",
                f"Only {free >> 20} MB are free on the disk.",
                f"Only {free >> 20} MB are free on the site's disk. Make room: a site whose disk "
                "is full stops before its next round.",
                f"df -h {folder}",
            )
        )
    return raised


def _code(peer: Status) -> str | None:
    reason = peer.get("held_up")
    return None if reason is None else str(reason["code"])
