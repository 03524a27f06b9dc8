"""The report's data and file: complete, self-contained, and honest about what is missing."""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxyfl.cli.commands import report as command
from proxyfl.errors import RunError
from proxyfl.gossip import topology
from proxyfl.gossip.routes import routes
from proxyfl.records import run as loading
from proxyfl.records.run import Run
from proxyfl.report import document as report_data
from proxyfl.report import graph as report_graph
from proxyfl.report import page as report

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
    groups = report_data.grouped(runs)
    assert [group["runs"] for group in groups] == [[0, 1], [2]]
    assert [group["label"] for group in groups] == [
        "privacy.noise_multiplier=1.0",
        "privacy.noise_multiplier=2.0",
    ]


def test_groups_that_differ_in_methods_alone_are_told_apart(made: Made) -> None:
    """No two groups have one name."""
    groups = report_data.grouped([made([], methods=["alone"]), made([], methods=["alone", "cwt"])])
    assert len({group["label"] for group in groups}) == 2


def test_a_client_that_was_away_has_a_gap() -> None:
    """Columns stay in step with the rounds: absence is null, before joining and in between."""
    rows = [
        row("proxyfl", 0, 0, private_accuracy=0.5, private_macro_accuracy=0.4),
        row("proxyfl", 1, 1),
    ]
    rows += [row("proxyfl", 2, c, private_accuracy=0.7, private_macro_accuracy=0.6) for c in (0, 1)]
    found = report_data.series(rows)["proxyfl"]
    assert found["rounds"] == [0, 1, 2]
    assert found["scored"] == [0, 2]
    assert found["clients"]["0"]["pld"] == [1.0, None, 3.0]
    assert found["clients"]["1"]["pld"] == [None, 2.0, 3.0]
    assert found["clients"]["0"]["scores"]["private_accuracy"] == [0.5, 0.7]
    assert found["clients"]["1"]["scores"]["private_accuracy"] == [None, 0.7]
    assert found["clients"]["0"]["present"] == 2
    assert found["clients"]["0"]["sums"]["seconds_training"] == 1.0


@pytest.mark.parametrize("name", ["exponential", "ring", "complete", "random"])
def test_graph_is_the_one_that_was_used(made: Made, name: str) -> None:
    """Edges are those of the gossip routes for the round and for those present, self-shares left
    out."""
    present = {0: (0, 1, 2, 3), 1: (0, 2, 3), 2: (0, 1, 2, 3)}
    rows = [row("proxyfl", r, c, present=len(present[r])) for r in present for c in present[r]]
    run = made(rows, seed=3, exchange={"topology": name, "self_weight": 0.5})
    found = report_graph.graph(run, rows)
    schedule = topology.make(name, self_weight=0.5, seed=3)
    for i, (round, who) in enumerate(present.items()):
        picture = found["pictures"][found["methods"]["proxyfl"]["pictures"][i]]
        plan = routes(schedule, round, who)
        expected = {(j, k) for j in who for k in plan.receivers(j)}
        assert {(a, b) for a, b, _ in picture["edges"]} == expected
        assert picture["present"] == who


def test_mean_is_a_star_to_the_first_who_stays(made: Made) -> None:
    """Methods with a hub send to the first client that does not leave, and it sends equal shares
    back."""
    rows = [row("fedavg", 0, c, left="budget spent" if c == 0 else None) for c in range(4)]
    (picture,) = report_graph.graph(made(rows, methods=["fedavg"]), rows)["pictures"].values()
    assert {(a, b) for a, b, _ in picture["edges"]} == {(0, 1), (2, 1), (3, 1), (1, 2), (1, 3)}


def test_a_users_function_is_not_called_by_a_report(made: Made) -> None:
    """A topology that names code is shown as a note: a report may be made of somebody else's
    folder."""
    rows = [row("proxyfl", 0, c) for c in range(4)]
    found = report_graph.graph(made(rows, exchange={"topology": "os:getcwd"}), rows)
    assert "os:getcwd" in found["note"]
    assert all(not picture["edges"] for picture in found["pictures"].values())


def test_budgets_reach_the_page(made: Made) -> None:
    """One budget for all, or one per client, with the accountant that counts it."""
    assert report_data.about(made([], privacy={"budget": 2.0}))["budget"] == {
        "epsilon": 2.0,
        "accountant": "pld",
    }
    listed = made([], privacy={"budget": [1.0, 2.0], "accountant": "rdp"})
    assert report_data.about(listed)["budget"] == {"epsilon": [1.0, 2.0], "accountant": "rdp"}
    assert report_data.about(made([]))["budget"] is None


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
    assert data["runs"][0]["series"]["proxyfl"]["clients"]["0"]["name"] == evil
    assert "<title>ProxyFL report: x&lt;y&amp;z</title>" in text


def test_infinite_epsilon_is_null_and_of_kind_none(made: Made) -> None:
    """A method without DP has no number for epsilon, and says so by its kind."""
    rows = [row("alone", 0, 0, epsilon_rdp=None, epsilon_pld=None, epsilon_kind="none")]
    client = report_data.series(rows)["alone"]["clients"]["0"]
    assert (client["pld"], client["rdp"], client["kind"]) == ([None], [None], "none")


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
    (answer,) = report_data.told(made(rows))
    assert answer["gaining"] == 1
    assert answer["mean_gain"] == pytest.approx(0.0)
    assert (answer["epsilon"], answer["epsilon_kind"]) == (2.0, "conditional")


def test_an_unwritable_file_is_named_and_leaves_nothing(made: Made, tmp_path: Path) -> None:
    """A report that cannot be written raises RunError with the path."""
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"report\.html"):
        report.write([made([])], tmp_path / "file" / "report.html")


def test_additions_are_read_from_the_folder(tmp_path: Path) -> None:
    """A certificate and an audit that lie in the run's folder reach the page."""
    (tmp_path / "config.toml").write_text("rounds = 1\nmethods = []\n")
    (tmp_path / "audit.json").write_text('{"epsilon_lower_bound": 0.5}')
    assert report_data.about(loading.read(tmp_path))["additions"] == {
        "audit": {"epsilon_lower_bound": 0.5}
    }


def test_the_command_writes_the_page_and_tells_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`proxyfl report RUN --json` prints one document: the file, its size, and the answer per
    run."""
    (tmp_path / "config.toml").write_text('rounds = 1\nmethods = ["alone"]\n')
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers())
    arguments = parser.parse_args(["report", str(tmp_path), "--json"])
    assert arguments.run(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert Path(told["out"]) == tmp_path / "report.html"
    assert told["bytes"] == (tmp_path / "report.html").stat().st_size
    assert told["runs"] == [{"name": tmp_path.name, "finished": False, "methods": []}]


def page_of(runs: list[Run], out: Path) -> str:
    """The report of ``runs`` as text, written and read back."""
    size = report.write(runs, out)
    assert size == out.stat().st_size
    return out.read_text(encoding="utf-8")
