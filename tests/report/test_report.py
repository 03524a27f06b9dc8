"""The report's data and file: complete, self-contained, and honest about what is missing."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxyfl.cli.main import parser
from proxyfl.errors import RunError
from proxyfl.gossip import topology
from proxyfl.gossip.routes import routes
from proxyfl.records import reading as loading
from proxyfl.records.groups import groups
from proxyfl.records.run import Run
from proxyfl.report import page as report
from proxyfl.report.document import about, document, study_name, told
from proxyfl.report.graph import graph
from proxyfl.report.series import costs, curves, epsilons

Made = Callable[..., Run]


def row(method: str, round: int, client: int, **values: Any) -> dict[str, Any]:
    """One line of metrics.jsonl, short of what is not asked about."""
    base = {
        "method": method,
        "round": round,
        "client": client,
        "name": f"client-{client}",
        "present": 4,
        "epsilon_kind": "end-to-end",
        "epsilon_rdp": 1.5,
        "epsilon_pld": 1.0 + round,
        "delta": 1e-3,
        "seconds_training": 0.5,
        "bytes_sent": 10,
        "left": None,
    }
    return base | values


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Makes runs from rows, without a folder."""

    def make(rows: list[dict[str, Any]], *, name: str = "run", **settings: Any) -> Run:
        tree = {"seed": 0, "rounds": 3, "methods": ["alone", "proxyfl"], **settings}
        return Run(tmp_path / name, tree, rows, environment={"simulation": True})

    return make


def test_runs_that_differ_in_the_seed_are_pooled(made: Made) -> None:
    """Equal settings but for the seed make one group; another setting makes another, named by
    it."""
    runs = [made([], seed=s, privacy={"noise_multiplier": 1.0}) for s in (0, 1)]
    runs.append(made([], seed=0, privacy={"noise_multiplier": 2.0}))
    groups = document(runs)["groups"]
    assert [group["runs"] for group in groups] == [[0, 1], [2]]
    assert [group["label"] for group in groups] == [
        "privacy.noise_multiplier=1.0",
        "privacy.noise_multiplier=2.0",
    ]


def test_a_sweep_of_one_method_a_run_is_compared(made: Made) -> None:
    """Runs that differ in their methods alone are one group, and are compared seed by seed."""
    alone = [row("alone", 2, 0, private_accuracy=0.5, epsilon_kind="none")]
    joined = [row("proxyfl", 2, 0, private_accuracy=0.7)]
    runs = [made(alone, methods=["alone"], seed=s) for s in (0, 1)]
    runs += [made(joined, methods=["proxyfl"], seed=s) for s in (0, 1)]
    (group,) = document(runs)["groups"]
    (answer,) = [one for one in group["answers"]["accuracy"] if one["method"] == "proxyfl"]
    assert answer["mean_gain"] == pytest.approx(0.2)
    assert answer["clients"] == 2


def test_a_client_that_was_away_has_a_gap(made: Made) -> None:
    """A curve has the rounds in which a client was scored; what it spent stays spent while it is
    away, and is null before it joined."""
    rows = [row("proxyfl", 0, 0, private_accuracy=0.5), row("proxyfl", 1, 1)]
    rows += [row("proxyfl", 2, c, private_accuracy=0.7 + c / 10, epsilon_rdp=9.0) for c in (0, 1)]
    (group,) = groups([made(rows)])
    curve = curves(group, "proxyfl")["private_accuracy"]
    assert curve["all"]["rounds"] == [1, 3]
    assert curve["all"]["mean"] == [0.5, 0.75]
    assert curve["all"]["n"] == [1, 2]
    assert curve["clients"][1] == {"rounds": [3], "mean": [0.8]}
    spent = epsilons(group, "proxyfl")["pld"]
    assert spent["clients"] == {0: [1.0, 1.0, 3.0], 1: [None, 2.0, 3.0]}
    assert (spent["high"], spent["low"]) == ([1.0, 2.0, 3.0], [1.0, 1.0, 3.0])
    each = costs(group, "proxyfl")
    assert each is not None
    assert each["seconds_training"] == {"each": 0.5, "in_all": 2.0}


@pytest.mark.parametrize("name", ["exponential", "ring", "complete", "random"])
def test_graph_is_the_one_that_was_used(made: Made, name: str) -> None:
    """Edges are those of the gossip routes for the round and for those present, self-shares left
    out."""
    present = {0: (0, 1, 2, 3), 1: (0, 2, 3), 2: (0, 1, 2, 3)}
    rows = [row("proxyfl", r, c, present=len(present[r])) for r in present for c in present[r]]
    run = made(rows, seed=3, exchange={"topology": name, "self_weight": 0.5})
    found = graph(run)
    schedule = topology.make(name, self_weight=0.5, seed=3)
    for i, (round, who) in enumerate(present.items()):
        picture = found["pictures"][found["methods"]["proxyfl"]["pictures"][i]]
        plan = routes(schedule, round, who)
        expected = {(j, k) for j in who for k in plan.shares(j) if k != j}
        assert {(a, b) for a, b, _ in picture["edges"]} == expected
        assert picture["present"] == who


def test_mean_is_a_star_to_the_first_who_stays(made: Made) -> None:
    """Methods with a hub send to the first client that does not leave, and it sends equal shares
    back."""
    rows = [row("fedavg", 0, c, left="budget spent" if c == 0 else None) for c in range(4)]
    (picture,) = graph(made(rows, methods=["fedavg"]))["pictures"].values()
    assert {(a, b) for a, b, _ in picture["edges"]} == {(0, 1), (2, 1), (3, 1), (1, 2), (1, 3)}


def test_a_users_function_is_not_called_by_a_report(made: Made) -> None:
    """A topology that names code is shown as a note: a report may be made of somebody else's
    folder."""
    rows = [row("proxyfl", 0, c) for c in range(4)]
    found = graph(made(rows, exchange={"topology": "os:getcwd"}))
    assert "os:getcwd" in found["note"]
    assert all(not picture["edges"] for picture in found["pictures"].values())


def test_a_real_site_has_no_graph_of_its_own(made: Made) -> None:
    """A site's folder has one client's rows: no graph says that it was alone or sent nothing."""
    run = made([row("proxyfl", r, 0, present=3) for r in range(3)])
    assert graph(run)["methods"]
    found = graph(replace(run, environment={"simulation": False}))
    assert (found["methods"], found["pictures"]) == ({}, {})
    assert "own rounds only" in found["note"]


def test_budgets_reach_the_page(made: Made) -> None:
    """One budget for all, or one per client, with the accountant that counts it."""
    rows = [row("proxyfl", 0, c) for c in (0, 1)]

    def budget(**privacy: Any) -> Any:
        return document([made(rows, privacy=privacy)])["groups"][0]["budget"]

    assert budget(budget=2.0) == {"epsilon": {0: 2.0, 1: 2.0}, "accountant": "pld"}
    listed = budget(budget=[1.0, 2.0], accountant="rdp")
    assert listed == {"epsilon": {0: 1.0, 1: 2.0}, "accountant": "rdp"}
    assert budget() is None


def test_the_page_asks_for_nothing(made: Made, tmp_path: Path) -> None:
    """The file holds its scripts and styles, refers to no other file, and forbids the browser to
    fetch any."""
    text = page_of([made([row("proxyfl", 0, 0)])], tmp_path / "report.html")
    markup = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=[\"'](?!#|data:)", markup)
    assert "default-src 'none'" in text
    assert "{{" not in markup


def test_names_cannot_break_out_of_the_data(made: Made, tmp_path: Path) -> None:
    """A client called after a closing tag stays a name: the embedded JSON has no markup and reads
    back the same."""
    evil = "</script><script>alert(1)</script>"
    text = page_of(
        [made([row("proxyfl", 0, 0, name=evil)], name="x<y&z")], tmp_path / "report.html"
    )
    embedded = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL
    )
    assert embedded is not None
    data = json.loads(embedded[1])
    assert data["runs"][0]["names"]["0"] == evil
    assert "<title>ProxyFL report: x&lt;y&amp;z</title>" in text


def test_infinite_epsilon_is_null_and_of_kind_none(made: Made) -> None:
    """A method without DP has no number for epsilon, and says so by its kind."""
    unbounded = {"epsilon_rdp": None, "epsilon_pld": None, "epsilon_kind": "none"}
    run = made([row("alone", 0, 0, private_accuracy=0.5, **unbounded)])
    (group,) = document([run])["groups"]
    assert group["epsilons"]["alone"] == {"kind": "none", "rounds": []}
    (answer,) = group["answers"]["accuracy"]
    assert (answer["epsilon"], answer["epsilon_kind"]) == (None, "none")


def test_answers_name_the_kind_and_the_largest_epsilon(made: Made) -> None:
    """Per method: gains over alone, and the worst epsilon over clients with its kind."""
    rows = [row("alone", 2, c, private_accuracy=0.5, epsilon_kind="none") for c in (0, 1)]
    rows += [
        row(
            "proxyfl",
            2,
            c,
            private_accuracy=0.4 + 0.2 * c,
            epsilon_pld=1.0 + c,
            epsilon_rdp=9.0,
            epsilon_kind="conditional",
        )
        for c in (0, 1)
    ]
    (answer,) = told(groups([made(rows)])[0])
    assert answer["gaining"] == 1
    assert answer["mean_gain"] == pytest.approx(0.0)
    assert (answer["epsilon"], answer["epsilon_kind"]) == (2.0, "conditional")


def test_the_page_is_called_like_the_study(made: Made) -> None:
    """The splits of one run have the run's name, without the time at which it began."""
    splits = [made([], name=f"20261119-033845-stroke/split-{s}", seed=s) for s in (0, 1)]
    assert study_name(splits) == "stroke"
    assert report.title(splits) == "ProxyFL report: stroke"
    assert study_name(splits[:1]) == "stroke"
    others = [made([], name="first"), made([], name="second", seed=1)]
    assert study_name(others) == "first and 1 more"


def test_a_site_without_any_change_is_marked(made: Made) -> None:
    """A gain of 0 in every sample has an interval without width, which the page does not show as
    one; a gain of 0 in the mean alone is no such thing."""
    rows = []
    for method, second in (("alone", [0.5, 0.6]), ("proxyfl", [0.6, 0.5])):
        for client, samples in enumerate(([0.5, 0.6], second)):
            rows.append(
                row(
                    method,
                    2,
                    client,
                    private_auroc=0.55,
                    private_resampled=[0.55, *samples],
                    epsilon_kind="none" if method == "alone" else "end-to-end",
                )
            )
    (group,) = document([made(rows, measure="auroc")])["groups"]
    (joined,) = (one for one in group["answers"]["auroc"] if one["method"] == "proxyfl")
    assert [one["unchanged"] for one in joined["by_client"]] == [True, False]
    assert joined["epsilon_noun"] == "record"


def test_an_unwritable_file_is_named_and_leaves_nothing(made: Made, tmp_path: Path) -> None:
    """A report that cannot be written raises RunError with the path."""
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"report\.html"):
        report.write([made([])], tmp_path / "file" / "report.html")


def test_additions_are_read_from_the_folder(tmp_path: Path) -> None:
    """A certificate and an audit that lie in the run's folder reach the page."""
    (tmp_path / "config.toml").write_text("rounds = 1\nmethods = []\n")
    (tmp_path / "audit.json").write_text('{"epsilon_lower_bound": 0.5}')
    assert about(loading.read(tmp_path))["additions"] == {"audit": {"epsilon_lower_bound": 0.5}}


def test_the_command_writes_the_page_and_tells_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`proxyfl report RUN --json` prints one document: the file, its size, and the answer per
    run."""
    (tmp_path / "config.toml").write_text('rounds = 1\nmethods = ["alone"]\n')
    arguments = parser("report").parse_args(["report", str(tmp_path), "--json"])
    assert arguments.run(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    assert Path(said["out"]) == tmp_path / "report.html"
    assert said["bytes"] == (tmp_path / "report.html").stat().st_size
    (run,) = said["runs"]
    assert run == {
        "name": tmp_path.name,
        "finished": False,
        "methods": [],
        "judged": [],
        "warnings": [],
        "notes": [],
    }


def page_of(runs: list[Run], out: Path) -> str:
    """The report of ``runs`` as text, written and read back."""
    size = report.write(runs, out)
    assert size == out.stat().st_size
    return out.read_text(encoding="utf-8")
