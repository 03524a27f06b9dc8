"""Real sites of tasks other than classes: from a schema to a certificate."""

import contextlib
import csv
import dataclasses
import importlib.util
import io
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from proxyfl.cli.main import main
from proxyfl.errors import DataError
from proxyfl.node import assembly
from proxyfl.node.exchange.store import FILE as STORE_FILE
from proxyfl.node.exchange.store import Store
from proxyfl.node.members import holdout
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members import site as sites
from proxyfl.node.members.site import Data, Learning, Network, Site
from proxyfl.node.observe import status
from proxyfl.node.preflight import preflight
from proxyfl.node.supervisor import Node
from proxyfl.node.trial import Layout, free_ports
from tests.waiting import PATIENCE

from .federations import change, predicted, running, total_weight
from .test_node import final_proxy

NAMES = ("north", "south", "east")
COLUMNS = "".join(
    f'[columns.{name}]\ntype = "number"\nrange = [-1, 1]\nindicator = false\n' for name in "ab"
)
LABELS = {
    "regression": 'task = "regression"\ncolumn = "value"\nrange = [-4, 4]\nunit = "mmol/l"',
    "multilabel": 'task = "multilabel"\nfindings = ["edema", "mass"]',
    "time-to-event": 'task = "time-to-event"\ncolumn = "days"\nevent = "died"\nunit = "days"\n'
    "intervals = [60, 200, 500]",
}
PROXY = {"regression": "linear", "multilabel": "linear", "time-to-event": "hazards"}
MEASURE = {"regression": "r2", "multilabel": "auroc", "time-to-event": "c_index"}
HEADER = "a,b,value,days,died,edema,mass"


def patients(count: int, seed: int) -> list[str]:
    """Lines of a table whose outcomes follow from its first two columns."""
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        a, b = draw.uniform(-1, 1), draw.uniform(-1, 1)
        score = 2 * a - b + draw.gauss(0, 0.3)
        time = 200 * 2**-score
        ended = draw.uniform(50, 900)
        numbers = f"{a:.3f},{b:.3f},{score:.3f},{min(time, ended):.1f},{int(time < ended)}"
        lines.append(f"{numbers},{int(score > 0)},{int(score > 0.8)}")
    return lines


def write(place: Path, lines: list[str]) -> None:
    """The table of a site."""
    (place / "patients.csv").write_text("\n".join([HEADER, *lines]) + "\n")


GOSSIP = ("--settle", "1")
SUMS = ("--exchange", "masked", "--colluders", "1", "--noise", "3", "--steps", "2")


def three_sites(
    folder: Path, kind: str, *, label: str = "", exchange: Sequence[str] = GOSSIP
) -> Layout:
    """Three sites made by the commands, which accept a manifest with this task."""
    schema = folder / "schema.toml"
    schema.write_text(f'name = "t"\nothers = "ignore"\n[label]\n{label or LABELS[kind]}\n{COLUMNS}')
    ports = free_ports(6)
    cards = []
    for at, name in enumerate(NAMES):
        place = folder / name
        address = f"127.0.0.1:{ports[at]}"
        assert main(["node", "init", str(place), "--address", address]) == 0
        # a key that every repetition of a test holds the same patients out by
        (place / holdout.FILE).write_text("0" * 64)
        cards.append(str(place / f"{name}.card.toml"))
        write(place, patients(90, seed=at))
        network = Network(
            listen=address, patience=PATIENCE, heartbeat=1.0, status_port=ports[3 + at]
        )
        change(place, lambda site, network=network: described(site, network))
    new = ["federation", "new", str(folder), *cards, "--schema", str(schema), "--rounds", "4"]
    assert main([*new, *exchange, "--proxy", PROXY[kind]]) == 0
    for name in NAMES:
        assert main(["node", "accept", str(folder / name), str(folder / "manifest.toml")]) == 0
    return Layout(folder, manifests.read(folder), tuple(folder / name for name in NAMES))


def described(site: Site, network: Network) -> Site:
    """Quick rounds with full batches, and the better of two estimators at home."""
    return dataclasses.replace(
        site,
        data=Data(source="patients.csv"),
        model=sites.Model("logistic|trees"),
        learning=Learning(batch_size=20, steps_per_round=2),
        privacy=sites.Privacy(budget=8.0),
        network=network,
    )


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What a command that succeeds prints."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", LABELS)
def test_sites_of_another_task(tmp_path: Path, kind: str) -> None:
    """The sites run to their end with the simulation's proxies, bit for bit, and nothing of classes
    is on record."""
    layout = three_sites(tmp_path, kind)
    first = layout.sites[0]
    lines = list(preflight(*sites.read(first)))
    assert all(line.ok for line in lines if not line.check.startswith("peer")), lines
    assert "size" not in {line.check for line in lines}  # its rule is for classes
    with running(layout) as made:
        made.join()
    assert set(made.ended.values()) == {"finished"}
    assert total_weight(layout) == 3
    expected = predicted(layout.folder)
    for place, outcome in zip(layout.sites, expected, strict=True):
        assert torch.equal(final_proxy(place), outcome.proxy), place.name
        last = status.rows(place)[-1]
        assert last[f"private_{MEASURE[kind]}"] == outcome.joined > 0.5
        assert {"private_accuracy", "confusion"}.isdisjoint(last)
        assert ("private_survival" in last) == (kind == "time-to-event")


def shared_proxy(place: Path) -> dict[str, torch.Tensor]:
    """The parameters of the proxy in a site's store."""
    with contextlib.closing(Store(place / STORE_FILE)) as store:
        (held,) = store.connection.execute("select proxy from sums").fetchone()
        state = load(bytes(store.frames.read(held)))
    return {name: value for name, value in state.items() if name.startswith("model/")}


@pytest.mark.parametrize("kind", LABELS)
def test_one_proxy_for_all_sites_by_masked_sums(tmp_path: Path, kind: str) -> None:
    """Sites that add up end with one proxy, bit for bit, and each keeps a model that has learnt."""
    layout = three_sites(tmp_path, kind, exchange=SUMS)
    with running(layout) as made:
        made.join()
    assert set(made.ended.values()) == {"finished"}
    rows = [status.rows(place)[-1] for place in layout.sites]
    for row in rows:
        assert row[f"private_{MEASURE[kind]}"] > 0.5
        assert {"private_accuracy", "confusion"}.isdisjoint(row)
        assert ("private_survival" in row) == (kind == "time-to-event")
    first, *others = (shared_proxy(place) for place in layout.sites)
    assert first
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)


def programs(out: Path) -> list[str]:
    """What predict.py is to do without, so that each exported program is run."""
    assert (out / "private.pt2").is_file()
    if importlib.util.find_spec("onnxruntime") is None:
        return ["onnxruntime"]
    assert (out / "private.onnx").is_file()
    return ["torch", "onnxruntime"]


def by_itself(out: Path, table: Path, without: str) -> str:
    """What the exported predict.py prints where neither this package nor ``without`` is there."""
    code = (
        "import runpy, sys\n"
        f"for name in ('proxyfl', {without!r}): sys.modules[name] = None\n"
        f"sys.argv = ['predict.py', {str(table)!r}]\n"
        f"runpy.run_path({str(out / 'predict.py')!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", LABELS)
def test_the_answer_of_a_real_site(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under real noise: status, report, prediction, export and certificate work as for classes, and
    each exported program predicts as the site does. Subgroups connect to nobody, and write nothing.
    """
    layout = three_sites(tmp_path, kind)
    first = layout.sites[0]
    with running(layout, only=[]) as made:
        for place in layout.sites:
            made.start(place, seed=None)
        made.join()
    assert set(made.ended.values()) == {"finished"}
    assert "round 4 of 4" in printed(capsys, "node", "status", first)
    page = tmp_path / "north.html"
    printed(capsys, "report", first, "--out", page)
    assert MEASURE[kind] in page.read_text()
    assert "alone" in printed(capsys, "table", first)

    (tmp_path / "new.csv").write_text("a,b\n0.9,-0.9\n-0.9,0.9\n")
    at_site = printed(capsys, "predict", first, tmp_path / "new.csv", "--csv")
    high, low = csv.DictReader(io.StringIO(at_site))
    if kind == "regression":
        assert float(high["value"]) > 1 > -1 > float(low["value"])
    elif kind == "multilabel":
        for finding in ("edema", "mass"):
            assert float(high[finding]) > 0.5 > float(low[finding])
    else:
        assert float(high["free at 200 days"]) < float(low["free at 200 days"])
    out = tmp_path / "export"
    printed(capsys, "node", "export", first, out)
    exported = csv.DictReader(
        io.StringIO(printed(capsys, "predict", out, tmp_path / "new.csv", "--csv"))
    )
    for ours, theirs in zip((high, low), exported, strict=True):
        assert ours == theirs
    for without in programs(out):
        by_program = csv.DictReader(io.StringIO(by_itself(out, tmp_path / "new.csv", without)))
        for ours, theirs in zip((high, low), by_program, strict=True):
            numbers = {name: float(value) for name, value in theirs.items()}
            assert numbers == pytest.approx({name: float(ours[name]) for name in numbers}, abs=2e-3)
    assert "holds" in printed(capsys, "certificate", first, "--check", out / "certificate.md")

    def refuse(*_: object) -> None:
        raise AssertionError("something was to be sent")

    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for way in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(f"socket.socket.{way}", refuse)
    shown = printed(capsys, "subgroups", first, "--by", "a", "--bands", "0")
    assert "below 0" in shown
    assert "0 and above" in shown
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


BAD = {
    "a negative time": ("time-to-event", "0,0,0,-3,1,0,0", r"row 92.*days.*'-3'"),
    "an event other than yes or no": ("time-to-event", "0,0,0,30,2,0,0", r"row 92.*died.*'2'"),
    "a time that is no number": ("time-to-event", "0,0,0,alive,1,0,0", r"row 92.*days.*'alive'"),
    "a value that is a class": ("regression", "0,0,high,30,1,0,0", r"row 92.*value.*'high'"),
    "a finding other than yes or no": ("multilabel", "0,0,0,30,1,2,0", r"row 92.*edema.*'2'"),
    "a finding that is not there": ("multilabel", "0,0,0,30,1,,0", r"row 92.*edema"),
    "a value that cannot be": ("regression", "0,0,9,30,1,0,0", r"row 92.*value.*'9'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_label_that_cannot_be_is_refused_and_costs_nothing(tmp_path: Path, case: str) -> None:
    """The start of a site names row, column and value; nothing is charged. Repaired, it starts."""
    kind, line, words = BAD[case]
    label = LABELS[kind] + ("\npossible = [-8, 8]" if kind == "regression" else "")
    place = three_sites(tmp_path, kind, label=label).sites[0]
    write(place, [*patients(90, seed=0), line])
    (failed,) = [one for one in preflight(*sites.read(place)) if one.check == "data"]
    assert not failed.ok
    with pytest.raises(DataError, match=words), Node(*sites.read(place)):
        pass
    assert not (place / assembly.LEDGER_FILE).exists()
    write(place, patients(90, seed=0))
    with Node(*sites.read(place)):
        pass


def test_what_is_unusual_is_counted(tmp_path: Path) -> None:
    """A value outside the range is clipped and counted."""
    layout = three_sites(tmp_path, "regression")
    place = layout.sites[0]
    write(place, [*patients(90, seed=0), "0,0,4.5,30,1,1,1"])
    notes = assembly.load(layout.manifest, *sites.read(place)).notes
    assert any("value: 1 of 91 values clipped" in note for note in notes), notes


def test_a_site_without_events_is_refused(tmp_path: Path) -> None:
    """No event by the horizon: nothing could be learnt or judged."""
    place = three_sites(tmp_path, "time-to-event").sites[0]
    write(place, [f"{line.rsplit(',', 3)[0]},0,0,0" for line in patients(90, seed=0)])
    with (
        pytest.raises(DataError, match="at least one event by the horizon"),
        Node(*sites.read(place)),
    ):
        pass
    assert not (place / assembly.LEDGER_FILE).exists()


def test_an_interval_without_events_trains(tmp_path: Path) -> None:
    """Nobody has the event between 60 and 200 days at a site: its models have finite outputs."""
    place = three_sites(tmp_path, "time-to-event").sites[0]
    lines = []
    for line in patients(90, seed=0):
        *first, days, died, edema, mass = line.split(",")
        if 55 < float(days) <= 205:
            days, died = ("30", "1")
        lines.append(",".join([*first, days, died, edema, mass]))
    write(place, lines)
    with Node(*sites.read(place), seed=3) as node:
        node.client.learner.train(0, 1)
        for model in node.client.learner.models().values():
            inputs = node.data.test.take(torch.arange(len(node.data.test)))
            assert torch.isfinite(model(inputs)).all()
