"""The verdict on a site: one sentence, and an alarm with its command for each thing to be done."""

from typing import Any

import pytest

from proxyfl.measures import MEASURES
from proxyfl.node.observe import verdict
from proxyfl.privacy import coalition
from proxyfl.report import site as pages

NOW = 1_000_000.0
DAY = 86400.0


def peer(name: str, **changes: Any) -> dict[str, Any]:
    """A peer that answers."""
    about = {"name": name, "held_up": None, "reachable": True, "seconds_since_contact": 2.0}
    about |= {"clock_skew": 0.5, "round": 20, "state": "active", "owed": 0, "version": 1}
    return about | {"release": "0.2", "protocol": "1"} | changes


def history(rounds: int, epsilon: float = 0.2) -> list[dict[str, Any]]:
    """Rounds of 30 s whose cost grows as that of composed steps does."""
    rows = []
    for round in range(rounds):
        row = {"round": round, "time": NOW - 30.0 * (rounds - round), "private": 0.7}
        row |= {"epsilon": epsilon * (round + 1) ** 0.5, "weight": 1.0}
        rows.append(row | {"mass_in": 0.5, "mass_out": 0.5})
    return rows


def status(**changes: Any) -> dict[str, Any]:
    """A site in the middle of its rounds, with nothing to do."""
    about: dict[str, Any] = {"name": "north", "federation": "heart", "folder": "/sites/north"}
    about |= {"release": "0.2", "protocol": "1", "hash": "ab" * 32, "version": 1, "running": True}
    about |= {"round": 20, "rounds": 60, "settle": 3, "measure": "auroc", "chance": 0.5}
    about |= {"alone": None, "time": NOW, "certificate_ends": NOW + 90 * DAY, "state": "active"}
    about |= {"free_bytes": 50 << 30, "weight": 1.0, "in_flight": 0.0, "waiting": 0.0}
    about |= {"stopped_by": {}, "waiting_for": None, "ended_because": None, "events": {"x": 1}}
    about["peers"] = [peer("south"), peer("east")]
    spent = {"epsilon": 0.9, "budget": 3.0, "epsilon_all_others": 0.9, "delta": 1e-4}
    spent |= {"kind": "end-to-end", "unit": "record", "against": [coalition.ALL_OTHERS]}
    about["privacy"] = spent | {"sentence": "Spent: epsilon 0.9."}
    about["history"] = history(20)
    return verdict.judge(about | changes)


def silent(seconds: float) -> dict[str, Any]:
    """A peer that has not answered for so long."""
    reason = {"code": "unreachable", "text": "No answer.", "since": NOW - seconds}
    return peer("south", held_up=reason, reachable=False, seconds_since_contact=seconds)


def test_a_site_in_order_is_well() -> None:
    """One sentence: the round, the peers, and the time that is left at the pace so far."""
    calm = status()
    assert calm["verdict"] == ("All is well: round 20 of 60, both peers answer, about 20 min left.")
    assert calm["alarms"] == []
    assert calm["well"]


@pytest.mark.parametrize(
    ("changes", "headline", "line"),
    [
        ({"peers": [silent(840.0)]}, "south has been silent for 14 min.", "proxyfl preflight"),
        (
            {"peers": [peer("south", clock_skew=-95.0)]},
            "The clocks of south and this site differ by 2 min.",
            "timedatectl set-ntp true",
        ),
        (
            {"certificate_ends": NOW + 2 * DAY},
            "The TLS certificate ends in 2 days.",
            "proxyfl node certificate /sites/north",
        ),
        ({"free_bytes": 3 << 20}, "Only 3 MB are free on the disk.", "df -h /sites/north"),
        ({"running": False}, "This site does not run.", "proxyfl node run /sites/north"),
        (
            {"stopped_by": {"east": {"code": "old-backup", "text": "x"}}},
            "east has stopped this site.",
            "proxyfl node rejoin /sites/north",
        ),
        (
            {"waiting_for": {"code": "too-few-peers", "text": "x", "since": NOW - 7.0}},
            "This site has waited for 7 s.",
            "proxyfl preflight /sites/north",
        ),
    ],
)
def test_what_needs_somebody_is_named_with_its_command(
    changes: dict[str, Any], headline: str, line: str
) -> None:
    """The headline is the verdict, and the page shows the command."""
    odd = status(**changes)
    assert odd["verdict"] == f"Needs you: {headline}"
    assert not odd["well"]
    (alarm,) = odd["alarms"]
    assert alarm["command"].startswith(line)
    page = pages.page(odd)
    assert "What to do" in page
    assert f"<code>{alarm['command']}</code>" in page
    assert "<title>(!)" in page


def test_a_budget_that_ends_before_the_rounds_is_an_alarm() -> None:
    """Said long before; the forecast is that of composed rounds, without those that only mix."""
    short = status(privacy=status()["privacy"] | {"budget": 1.2})
    assert short["epsilon_at_end"] == pytest.approx(0.2 * 57**0.5)
    assert short["verdict"] == "Needs you: The privacy budget ends before the study."
    assert status()["epsilon_at_end"] == short["epsilon_at_end"] < 3.0


def test_what_ends_by_itself_is_no_alarm() -> None:
    """A peer that is away for a moment, one that joins later, a late share, a site at its end."""
    later = {"code": "joins-later", "text": "From round 30 on.", "since": 0.0}
    late = {"code": "shares", "text": "x", "since": NOW - 20.0}
    for changes in (
        {"peers": [silent(20.0), peer("east")]},
        {"peers": [peer("south", held_up=later, reachable=False)]},
        {"waiting_for": late},
        {"waiting_for": {"code": "ending", "text": "x", "since": 0.0}},
        {"round": 60, "running": False},
        {"running": False, "ended_because": {"code": "budget-spent", "text": "x", "since": 0.0}},
    ):
        assert status(**changes)["alarms"] == [], changes
    assert status(round=60)["verdict"] == "All is well: all 60 rounds are done."


def test_several_alarms_are_counted() -> None:
    """The worst first, the number of the others after it, all of them below."""
    odd = status(peers=[silent(600.0)], free_bytes=1)
    assert odd["verdict"] == "Needs you: south has been silent for 10 min. And 1 more."
    assert [alarm["code"] for alarm in odd["alarms"]] == ["peer", "disk"]


def test_the_page_compares_with_chance_and_alone() -> None:
    """Both lines are in the chart, the gain beside them; a loss is called one."""
    page = pages.page(status(alone=0.75))
    assert "chance 0.500" in page
    assert "alone 0.750" in page
    assert f"&minus;5.0 <small>points of {MEASURES['auroc'].title} over alone" in page
    assert "alone 0" not in pages.page(status())


def test_the_page_has_the_budget_its_kind_and_the_coalition() -> None:
    """Beside the number: the limit, the kind, whom it protects, against whom it holds."""
    page = pages.page(status())
    for word in ("of budget 3", "end-to-end", "one record", "Whoever colludes"):
        assert word in page
    weaker = status()["privacy"] | {"epsilon_all_others": 2.0}
    assert "If all others collude</dt><dd>2.00" in pages.page(status(privacy=weaker))


def test_the_first_screen_speaks_to_a_doctor_and_asks_nobody() -> None:
    """Weights and mass are in the details alone; no script, no address of another machine; what a
    peer is called is text."""
    hostile = peer("<script>alert(1)</script>")
    shown = status(peers=[hostile])
    page = pages.page(shown)
    for word in ("weight", "Weight", "mass", "PushSum"):
        assert word not in page.split("<main")[1], word
    details = pages.page(shown, with_details=True)
    assert "PushSum weight" in details
    for drawn in (page, details):
        assert "<script" not in drawn
        assert "http://" not in drawn
        assert "https://" not in drawn
        assert "prefers-color-scheme: dark" in drawn


def test_a_site_that_has_not_begun_has_a_page() -> None:
    """No round, no charge, no peer."""
    empty = status(round=0, history=[], peers=[], privacy=status()["privacy"] | {"epsilon": None})
    page = pages.page(empty, with_details=True)
    assert "Nothing was spent yet. The budget is epsilon 3." in page
    assert "The first round that is scored appears here." in page


def test_a_site_of_masked_sums_is_not_told_to_rejoin() -> None:
    """`node rejoin` would refuse; the peer's sentence says what to do."""
    advice = "Bring the newest store and ledger back."
    odd = status(stopped_by={"east": {"code": "vectors-lost", "text": advice}})
    (alarm,) = odd["alarms"]
    assert alarm["command"] == ""
    assert advice in alarm["text"]
    assert "rejoin" not in pages.page(odd)
