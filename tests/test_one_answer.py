"""The contract of ``records``: terminal, `table`, `proxyfl.load`, `report --json` and the page in
a real browser give the same answer to the same question, and it is the one in the raw records."""

import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import proxyfl
from proxyfl.cli.main import main
from proxyfl.cli.terminal.result import show_result
from proxyfl.simulation.config import from_tree
from proxyfl.sweeps.table import overview
from tests.chromium import DESKTOP, new_tab

METHODS = ("fedavg", "proxyfl")
SMALL = {
    "rounds": 9,
    "evaluate_every": 3,
    "methods": ["alone", *METHODS],
    "partition": {"clients": 3, "examples": 60},
    "learning": {"batch_size": 20},
}
KEEPS = {"alone": "private", "fedavg": "received", "proxyfl": "private"}


@dataclass(frozen=True)
class Case:
    """Runs that are asked about together; ``after``: how far the one that was cut off can be
    compared."""

    paths: list[Path]
    methods: tuple[str, ...] = METHODS
    after: int | None = None


@dataclass(frozen=True)
class Said:
    """What somebody says of a method: the mean gain, over how many clients, at which epsilon."""

    gain: float
    clients: int
    epsilon: float


class Stop(proxyfl.Callback):
    """Cuts a run off."""

    def round_ended(self, name: str, round: int, rows: Any) -> None:
        """Stop in the middle of fedavg, between two evaluations."""
        if (name, round) == ("fedavg", 4):
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """Real runs in which a client leaves, one joins late, two seeds, and one that was cut off."""
    parent = tmp_path_factory.mktemp("cases")

    def run(name: str, **changes: Any) -> Path:
        proxyfl.run(from_tree(SMALL | changes), out=parent / name)
        return parent / name

    leaves = run("leaves", privacy={"budget": [0.5, 9.0, 9.0]})
    joins = run("joins", membership={"schedule": [{"client": 1, "joins": 4}]})
    seeds = [run(f"seed-{seed}", seed=seed) for seed in (0, 1)]
    with pytest.raises(KeyboardInterrupt):
        proxyfl.run(from_tree(SMALL), out=parent / "cut", callbacks=[Stop()])
    return {
        "leaves": Case([leaves]),
        "joins": Case([joins]),
        "seeds": Case(seeds),
        "cut": Case([parent / "cut"], ("fedavg",), after=3),
    }


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The demo with a client that leaves in round 9: release 0.1 gave three gains of fedavg, +4.1,
    +8.8 and +5.0 points, to those who asked at different places."""
    path = tmp_path_factory.mktemp("demo") / "run"
    changes = {"rounds": 30, "methods": ["alone", "fedavg"]}
    budget = {"budget": [0.7, *[3.0] * 7]}
    proxyfl.run(from_tree(changes | {"privacy": budget}), out=path)
    return Case([path], ("fedavg",))


@pytest.fixture(
    params=["leaves", "joins", "seeds", "cut", pytest.param("demo", marks=pytest.mark.slow)]
)
def case(request: pytest.FixtureRequest) -> Case:
    """One of them."""
    if request.param == "demo":
        found: Case = request.getfixturevalue("demo")
    else:
        found = request.getfixturevalue("cases")[request.param]
    return found


@pytest.mark.slow
def test_the_demos_gain(demo: Case) -> None:
    """The gain over all eight clients, with the one that left: 4.1 points in release 0.1."""
    found = oracle(demo, "fedavg")
    assert found.clients == 8
    assert found.gain == pytest.approx(0.041, abs=0.005)


def test_the_cases_are_what_they_say(cases: dict[str, Case]) -> None:
    """A client left early by its budget, one joined late, and the run that was cut off is not
    finished."""
    (leaves,) = proxyfl.load(*cases["leaves"].paths)
    assert "budget" in leaves.departures("fedavg")[0]
    assert leaves.last("fedavg", 0)["round"] < 8
    (joins,) = proxyfl.load(*cases["joins"].paths)
    assert min(r["round"] for r in joins.rows if (r["method"], r["client"]) == ("fedavg", 1)) == 4
    (cut,) = proxyfl.load(*cases["cut"].paths)
    assert not cut.finished


def test_table(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    """`proxyfl table` gives the numbers of the raw records; of a run that is not finished, after
    the rounds that it can be compared at."""
    options = [] if case.after is None else ["--round", str(case.after)]
    assert main(["table", *map(str, case.paths), "--json", *options]) == 0
    rows = {row["method"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    for method in case.methods:
        over = rows[method]["comparison"]["over_clients"]
        same(Said(over["difference"], over["n"], rows[method]["epsilon"]), oracle(case, method))


def test_a_run_that_is_not_finished_is_no_row(cases: dict[str, Case]) -> None:
    """Without a number of rounds, `table` says that the run is not finished and where it can be
    compared."""
    with pytest.raises(proxyfl.ProxyFLError, match=r"not finished.*`--round 3` compares"):
        overview(cases["cut"].paths)


def test_load(case: Case) -> None:
    """So do data frames, and each run of its own."""
    gains = proxyfl.load(*case.paths).gains
    for method in case.methods:
        rows = gains[(gains["method"] == method) & gains["gain"].notna()]
        found = Said(rows["gain"].mean(), len(rows), rows["epsilon"].max())
        same(found, oracle(case, method))
        each = []
        for run in proxyfl.load(*case.paths):
            each += [run.gain(method, client) for client in run.clients]
        assert sum(each) / len(each) == pytest.approx(found.gain)


def test_the_terminal(case: Case) -> None:
    """So does the end of each run, to the digit that it shows."""
    for path in case.paths:
        out = io.StringIO()
        (run,) = proxyfl.load(path)
        show_result(run, Console(file=out, width=200))
        for method in case.methods:
            expected = oracle(Case([path], after=case.after), method)
            words = re.search(
                rf"{method}: \d+ of (\d+) .*they (gain|lose) ([\d.]+) points", out.getvalue()
            )
            assert words is not None
            assert int(words[1]) == expected.clients
            assert f"{words[2]} {words[3]}" == said(expected.gain)


def test_report_json(case: Case, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """So does `proxyfl report --json`."""
    out = ["--out", str(tmp_path / "report.html")]
    assert main(["report", *map(str, case.paths), "--json", *out]) == 0
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    for answer in group["methods"]:
        found = Said(answer["mean_gain"], answer["clients"], answer["epsilon"])
        same(found, oracle(case, answer["method"]))
        assert answer["after"] == case.after


def test_the_page(browser: Any, case: Case, tmp_path: Path) -> None:
    """So does the page, in what it shows and in what it says."""
    page = tmp_path / "report.html"
    assert main(["report", *map(str, case.paths), "--out", str(page)]) == 0
    with new_tab(browser, *DESKTOP) as tab:
        tab.open(page.as_uri())
        for method in case.methods:
            expected = oracle(case, method)
            card = tab.page.locator(f"#answer li[data-method={method}]")
            words = card.inner_text()
            gain, epsilon = (
                float(card.get_attribute(f"data-{key}")) for key in ("gain", "epsilon")
            )
            clients = re.search(r"of (\d+) clients", words)
            assert clients is not None
            same(Said(gain, int(clients[1]), epsilon), expected)
            assert said(expected.gain).replace("gain", "gains").replace("lose", "loses") in words
        assert tab.complaints == []


def same(found: Said, expected: Said) -> None:
    """Fails unless both say the same."""
    assert found.clients == expected.clients
    assert found.gain == pytest.approx(expected.gain, abs=1e-12)
    assert found.epsilon == pytest.approx(expected.epsilon, abs=1e-12)


def said(gain: float) -> str:
    """A gain as it is printed."""
    return f"{'gain' if gain > 0 else 'lose'} {abs(gain) * 100:.1f}"


def oracle(case: Case, method: str) -> Said:
    """The answer by hand, from the lines of metrics.jsonl."""
    gains: list[float] = []
    spent: list[float] = []
    for path in case.paths:
        lines = (path / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        if case.after is not None:
            rows = [row for row in rows if row["round"] < case.after]
        kept: dict[tuple[str, int], float] = {}
        last: dict[int, float] = {}
        for row in rows:
            wanted = f"{KEEPS[row['method']]}_accuracy"
            if "proxy_accuracy" in row or "private_accuracy" in row:
                kept[row["method"], row["client"]] = row.get(wanted, row.get("proxy_accuracy"))
            if row["method"] == method:
                last[row["client"]] = min(row["epsilon_rdp"], row["epsilon_pld"])
        clients = sorted({client for name, client in kept if name == method})
        gains += [kept[method, client] - kept["alone", client] for client in clients]
        spent += last.values()
    return Said(sum(gains) / len(gains), len(gains), max(spent))
