"""Why a site waits and who is held up: on record once, readable by everybody who asks."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from proxyfl.node.exchange import reasons
from proxyfl.node.exchange.reasons import Reasons
from proxyfl.node.exchange.store import FILE, Books, Store
from proxyfl.node.members import site as sites
from proxyfl.node.observe import status

from .federations import quick, trial


def test_a_reason_is_news_once_and_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another text is no news and keeps the time; another code is; what is on record survives the
    program, and what is cleared is gone."""
    store = Store(tmp_path / FILE)
    why = Reasons(store)
    monkeypatch.setattr(reasons.time, "time", lambda: 100.0)
    assert why.put("waiting", "too-few-peers", "0 of 1")
    monkeypatch.setattr(reasons.time, "time", lambda: 200.0)
    assert not why.put("waiting", "too-few-peers", "0 of 1")
    assert not why.put("waiting", "too-few-peers", "0 of 2")
    assert why.of("waiting") == reasons.Reason("too-few-peers", "0 of 2", 100.0)
    assert why.put("waiting", "shares", "south is missing")
    assert why.put("peer", "manifest-behind", "version 1", peer="south")
    store.close()
    with closing(sqlite3.connect(tmp_path / FILE)) as other:
        known = reasons.read(other)
    assert known["waiting"][""].since == 200.0
    assert known["peer"]["south"].code == "manifest-behind"
    store = Store(tmp_path / FILE)
    why = Reasons(store)
    assert why.clear("peer", peer="south")
    assert not why.clear("peer", peer="south")
    assert why.clear("waiting")
    assert why.every("peer") == {} == why.every("waiting")
    store.close()


def test_a_store_of_an_earlier_release_has_no_reasons(tmp_path: Path) -> None:
    """Reading one that lacks the table says nothing and changes nothing."""
    Store(tmp_path / FILE).close()
    with closing(sqlite3.connect(tmp_path / FILE)) as store:
        store.execute("drop table if exists reasons")
        assert reasons.read(store)["waiting"] == {}
        assert "reasons" not in [
            name for (name,) in store.execute("select name from sqlite_master")
        ]


def test_the_status_states_the_reasons(tmp_path: Path) -> None:
    """The site's own, each peer's, and who has stopped the site: as plain data, from the folder."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=3, template=quick())
    settings, folder = sites.read(layout.sites[0])
    before = status.of_folder(settings, folder)
    assert (before["waiting_for"], before["ended_because"], before["stopped_by"]) == (
        None,
        None,
        {},
    )
    store = Store(folder / FILE)
    Books(store, federation="f", me="north", version=1, rounds=3).start()
    why = Reasons(store)
    why.put("waiting", "too-few-peers", "Nobody is there.")
    why.put("peer", "manifest-behind", "south has version 1.", peer="south")
    why.put("verdict", "old-backup", "Rejoin.", peer="east")
    why.put("ended", "budget-spent", "The budget is spent.")
    store.close()
    known = status.of_folder(settings, folder)
    assert known["waiting_for"]["code"] == "too-few-peers"
    assert known["ended_because"]["text"] == "The budget is spent."
    assert known["stopped_by"]["east"]["code"] == "old-backup"
    held_up = {peer["name"]: peer["held_up"] for peer in known["peers"]}
    assert held_up["south"]["text"] == "south has version 1."
    assert held_up["east"] is None


def test_the_page_lists_every_code() -> None:
    """docs/reference/exit-codes.md has the meaning of each code, as the module states it."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md").read_text()
    listed = dict(re.findall(r"^\| `([a-z-]+)` \| [^|]* \| (.*) \|$", page, re.MULTILINE))
    assert listed == reasons.CODES
