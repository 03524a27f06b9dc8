"""A site's folder is a run's folder: what reads a run reads a real site."""

import json
import shutil
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import proxyfl
from proxyfl.cli.main import main
from proxyfl.federation.metrics import Judge, Score
from proxyfl.node import assembly, recording, trial
from proxyfl.node.members import site
from proxyfl.node.members.trust import code_of
from proxyfl.node.observe import status
from proxyfl.node.trial import Layout
from proxyfl.report.document import document
from proxyfl.report.live import LiveServer, over
from proxyfl.simulation.config import of_run
from tests.node.federations import SEED, change, quick, running
from tests.waiting import PATIENCE

ROUNDS = 6


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Two sites that have gone to their end."""
    folder = tmp_path_factory.mktemp("federation")
    layout = trial.lay_out(folder, sites=2, rounds=ROUNDS, template=quick())
    with running(layout) as made:
        made.join()
    assert {str(end) for end in made.ended.values()} == {"finished"}
    return layout


def test_a_site_is_loaded_as_a_run(layout: Layout) -> None:
    """`proxyfl.load` gives a site's rounds, its gain over its own `alone`, and its ledger."""
    place = layout.sites[0]
    (run,) = proxyfl.load(place)
    assert run.finished
    assert run.methods == ("alone", "proxyfl")
    assert run.clients == {0: "north"}
    assert run.environment["simulation"] is False
    rows = status.rows(place)
    assert [row["round"] for row in rows] == list(range(ROUNDS))
    joined, alone = run.kept("proxyfl", 0), run.kept("alone", 0)
    assert joined is not None
    assert alone is not None
    assert run.gain("proxyfl", 0) == pytest.approx(joined - alone)
    assert run.spent("proxyfl", 0) == recording.status.row.epsilon(rows[-1])
    ((method, client, _, charges),) = run.ledgers()
    assert (method, client, len(charges)) == ("proxyfl", 0, ROUNDS)


def test_a_certificate_has_the_sites_record(
    layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    """Release, commit and beginning are those of the site's record, as they are for a run."""
    place = layout.sites[0]
    (run,) = proxyfl.load(place)
    assert main(["certificate", str(place), "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["certificates"]
    assert document["method"] == "proxyfl"
    assert document["version"] == run.environment["packages"]["proxyfl"]
    assert document["commit"] == run.environment["commit"]
    assert document["started"] == run.environment["started"]


def test_a_later_start_keeps_the_beginning(layout: Layout, tmp_path: Path) -> None:
    """A site that goes on after a stop began when it first ran."""
    place = shutil.copytree(layout.sites[0], tmp_path / "north")
    file = place / "environment.json"
    about = json.loads(file.read_text()) | {"started": "2001-01-01T00:00:00+00:00", "python": "2"}
    file.write_text(json.dumps(about))
    settings, folder = site.read(place)
    data = assembly.load(layout.manifest, settings, folder)
    recording.describe(folder, layout.manifest, settings, data)
    now = json.loads(file.read_text())
    assert now["started"] == "2001-01-01T00:00:00+00:00"
    assert now["python"] != "2"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff\xfe"])
def test_a_damaged_description_stops_no_site(
    layout: Layout, tmp_path: Path, content: bytes
) -> None:
    """A site that cannot read what it wrote of itself at its last start writes it again."""
    folder = shutil.copytree(layout.sites[0], tmp_path / "north")
    (folder / "environment.json").write_bytes(content)
    settings, _ = site.read(folder)
    data = assembly.load(layout.manifest, settings, folder)
    recording.describe(folder, layout.manifest, settings, data)
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["federation"] == layout.manifest.name
    assert environment["started"]


def test_the_record_has_the_terms_that_were_agreed(layout: Layout) -> None:
    """config.toml of a site reads as a config, with the manifest's terms and the site's own."""
    config = of_run(layout.sites[1])
    assert config.rounds == layout.manifest.rounds
    assert config.models.proxy == layout.manifest.proxy.architecture
    assert config.learning.batch_size == 20
    assert config.privacy.noise_multiplier == quick().privacy.noise_multiplier


def test_the_end_says_what_was_gained(layout: Layout) -> None:
    """The verdict has both scores, the difference in points, and the epsilon with its kind."""
    verdict = recording.verdict(layout.sites[0])
    assert verdict is not None
    words = str(verdict)
    assert f"{verdict.joined:.3f}, alone {verdict.alone:.3f}" in words
    assert verdict.interval is not None
    low, high = verdict.interval
    assert low <= verdict.gain <= high
    assert f"95 % interval {100 * low:+.1f} to {100 * high:+.1f}" in words
    assert ("too small to tell whether joining paid" in words) == (low <= 0 <= high)
    assert "points" in words
    assert "end-to-end" in words


def test_a_finished_site_keeps_the_gain_that_it_stated(layout: Layout) -> None:
    """Started again after its end, a site states the recorded gain and trains nothing once more.

    With another seed, as a real site draws other batches: `alone` would give another gain."""
    place = layout.sites[0]
    stated = str(recording.verdict(place))
    lines = (place / "metrics.jsonl").read_bytes()
    models = {path: path.read_bytes() for path in (place / "models").rglob("*.safetensors")}
    with running(layout, only=[]) as made:
        made.start(place, seed=SEED + 1)
        made.join()
    assert str(made.ended["north"]) == "finished"
    assert (place / "metrics.jsonl").read_bytes() == lines
    assert {path: path.read_bytes() for path in models} == models
    assert not any("alone for comparison" in line for line in made.said["north"])
    assert any(stated in line for line in made.said["north"])


def test_readers_of_runs_read_a_site(
    layout: Layout, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`table`, `report`, `predict`, `certificate` and `ledger sum` take a site's folder."""
    place = str(layout.sites[0])
    page = tmp_path / "north.html"
    assert main(["report", place, "--out", str(page)]) == 0
    assert "north" in page.read_text(encoding="utf-8")
    assert main(["table", place, "--json"]) == 0
    assert main(["certificate", place]) == 0
    assert main(["ledger", "sum", place]) == 0
    capsys.readouterr()
    own = np.load(layout.sites[0] / "data.npz")
    inputs = next(name for name in own.files if own[name].ndim > 1)
    np.save(tmp_path / "new.npy", own[inputs][:3])
    assert main(["predict", place, str(tmp_path / "new.npy"), "--client", "north", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["predictions"]) == 3


def test_the_report_has_gain_budget_and_peers(layout: Layout) -> None:
    """What the page draws of a real site: its gain over its own `alone` with an interval, its
    epsilon against the budget, and the other members."""
    (run,) = proxyfl.load(layout.sites[0])
    content = document([run])
    (about,) = content["runs"]
    assert about["simulation"] is False
    assert [peer["name"] for peer in about["peers"]["peers"]] == ["south"]
    assert about["peers"]["peers"][0]["round"] == ROUNDS
    (group,) = content["groups"]
    assert group["budget"]["epsilon"] == {0: 5.0}
    joined = next(one for one in group["answers"]["accuracy"] if one["method"] == "proxyfl")
    assert joined["mean_gain"] == pytest.approx(run.gain("proxyfl", 0))
    assert joined["interval"] is not None
    assert 0 < joined["epsilon"] < 5


def test_watch_serves_a_site(layout: Layout) -> None:
    """`watch` has the page of a real site, and knows that the site has ended."""
    with (
        LiveServer(layout.sites[0]) as server,
        urllib.request.urlopen(server.url, timeout=PATIENCE) as answer,
    ):
        text = answer.read().decode()
    assert "peersSection" in text
    assert over(layout.sites[0])


def test_a_site_that_has_ended_is_audited(
    layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    """`audit` trains one client with the site's settings and made-up records, and compares with the
    epsilon that the site recorded. The site's ledger stays as it was."""
    place = layout.sites[0]
    ledger = (place / assembly.LEDGER_FILE).read_bytes()
    assert main(["audit", str(place), "--canaries", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (run,) = proxyfl.load(place)
    spent = run.spent("proxyfl", 0)
    assert spent is not None
    assert found["claim"] == "recorded by the run"
    assert found["epsilon"] == pytest.approx(spent.best)
    assert (found["rounds"], found["steps"]) == (ROUNDS, 2 * ROUNDS)
    assert (place / assembly.LEDGER_FILE).read_bytes() == ledger
    assert run.additions["audit"] == found


def test_a_site_that_goes_on_is_not_audited(
    tmp_path: Path, layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its epsilon still grows, so there is nothing to compare with."""
    place = tmp_path / "north"
    shutil.copytree(layout.sites[0], place)
    (place / "summary.json").unlink()
    assert main(["audit", str(place)]) == 2
    assert "has not ended yet" in " ".join(capsys.readouterr().err.split())


def test_a_damaged_line_hides_no_other(tmp_path: Path, layout: Layout) -> None:
    """Report and status read a site's rows by one reader, which leaves out what cannot be read."""
    place = tmp_path / "north"
    shutil.copytree(layout.sites[0], place)
    file = place / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([lines[0], lines[1][:40] + "\n", *lines[2:]]))
    (run,) = proxyfl.load(place)
    kept = [row["round"] for row in run.rows if row["method"] == "proxyfl"]
    assert kept == [row["round"] for row in status.rows(place)]
    assert sorted(kept) == [0, *range(2, ROUNDS)]


@pytest.mark.parametrize("words", [["resume"], ["audit", "--membership"]], ids="-".join)
def test_a_real_site_is_not_run_again(
    words: list[str], layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    """What would train again on a site's records is refused, with the command that goes on."""
    assert main([words[0], str(layout.sites[0]), *words[1:]]) in (1, 2)
    said = " ".join(capsys.readouterr().err.split())
    assert "is the folder of a real site, not of a simulation" in said
    assert "proxyfl node run" in said


def test_a_site_that_has_not_run_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before its first start a site has nothing to report."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=2, template=quick())
    assert main(["report", str(layout.sites[0])]) in (1, 2)
    assert "has no record of its rounds yet" in " ".join(capsys.readouterr().err.split())


def test_the_end_is_scored_on_a_copy_of_the_proxy(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a proxy's own Python does on test records, the model that is kept as released is the
    one that was released."""
    place = tmp_path / "north"
    shutil.copytree(layout.sites[0], place)
    own = site.read(place)[0]
    data = assembly.load(layout.manifest, own, place)
    client = assembly.client(layout.manifest, own, data.train, ledger=None)
    judged: list[torch.nn.Module] = []

    class Noting(Judge):
        def __call__(self, model: torch.nn.Module, *rest: Any, **options: Any) -> Score:
            judged.append(model)
            return super().__call__(model, *rest, **options)

    monkeypatch.setattr(recording, "Judge", Noting)
    recording.conclude(
        place,
        layout.manifest,
        own,
        data,
        client,
        code_of(own, place),
        status.metrics_log(place),
        seed=None,
        check=lambda: None,
    )
    assert len(judged) == 3
    assert all(model is not client.learner.shared for model in judged)


SPOILT = """
import math
from torch import nn

class Spoilt(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.last = nn.Linear(math.prod(shape), classes)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls > 3:
            raise ValueError("a record like no other")
        return self.last(x.flatten(1))
"""


@pytest.mark.filterwarnings("ignore:.*Training goes on:UserWarning")
def test_a_private_model_that_fails_is_seen_by_no_peer(tmp_path: Path) -> None:
    """The site trains and releases all rounds, and ends as any other: an error at its end would
    have it started again and again."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=3, template=quick())
    place = layout.sites[0]
    (place / "models").mkdir()
    (place / "models" / "spoilt_by_one.py").write_text(SPOILT)
    own = site.Model("spoilt_by_one:Spoilt")
    change(place, lambda each: replace(each, model=own, trust=site.Trust((), "models")))
    with running(layout, only=[]) as made:
        for each in layout.sites:
            made.start(each, seed=None)
        made.join()
    assert {str(end) for end in made.ended.values()} == {"finished"}
    assert [len(status.rows(each)) for each in layout.sites] == [3, 3]
