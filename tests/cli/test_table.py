"""The table command, over run folders made by hand, so that every number in it can be worked
out."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from proxyfl.cli.main import parser
from proxyfl.errors import ConfigError, RunError
from proxyfl.federation.methods import METHODS
from proxyfl.simulation.config import from_tree, to_toml
from proxyfl.sweeps.statistics import paired_test

Scores = Mapping[str, Sequence[float]]


def record(
    client: int, round: int, method: str, value: float, epsilon: float | None, kind: str
) -> dict[str, Any]:
    roles = {
        "alone": ["private"],
        "proxyfl": ["private", "proxy", "received"],
        "fedavg": ["proxy", "received"],
    }
    scores: dict[str, float] = {}
    for role in roles.get(method, ["proxy"]):
        own = value if role == METHODS[method].keeps else value / 2
        scores |= {f"{role}_accuracy": own, f"{role}_macro_accuracy": own - 0.1}
    return {
        "round": round,
        "client": client,
        **scores,
        "epsilon_rdp": epsilon,
        "delta": 1e-3,
        "epsilon_kind": kind,
        "epsilon_pld": None if epsilon is None else epsilon - 0.5,
    }


def make(
    path: Path,
    scores: Scores,
    *,
    finished: bool = True,
    epsilon: float = 3.0,
    kind: str = "end-to-end",
    **tree: Any,
) -> Path:
    """A run of two rounds, in which every score was 0.2 lower after the first."""
    path.mkdir(parents=True)
    config = from_tree({"rounds": 2, "methods": list(scores)} | tree)
    (path / "config.toml").write_text(to_toml(config))
    methods, lines = {}, []
    for method, values in scores.items():
        cost: tuple[float | None, str] = (None, "none") if method == "alone" else (epsilon, kind)
        first, last = (
            [record(c, r, method, v - shift, *cost) for c, v in enumerate(values)]
            for r, shift in ((0, 0.2), (1, 0.0))
        )
        methods[method] = {"keeps": METHODS[method].keeps, "clients": last}
        lines += [json.dumps({"method": method, **row}) + "\n" for row in first + last]
    (path / "metrics.jsonl").write_text("".join(lines))
    (path / "summary.json").write_text(json.dumps({"finished": finished, "methods": methods}))
    return path


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Three seeds of two clients under three methods, one run per method as a sweep makes them."""
    alone, ours = ([[0.5, 0.6], [0.4, 0.7], [0.5, 0.5]], [[0.6, 0.8], [0.6, 0.6], [0.9, 0.6]])
    for seed in range(3):
        make(tmp_path / "study" / f"alone,{seed}", {"alone": alone[seed]}, seed=seed)
        make(
            tmp_path / "study" / f"proxyfl,{seed}",
            {"proxyfl": ours[seed]},
            seed=seed,
            epsilon=3.0 + seed,
        )
        make(tmp_path / "study" / f"joint,{seed}", {"joint": [0.9]}, seed=seed)
    return tmp_path / "study"


def call(*line: str | Path) -> int:
    arguments = parser("table").parse_args(["table", *map(str, line)])
    code: int = arguments.run(arguments)
    return code


@pytest.fixture
def document(capsys: pytest.CaptureFixture[str]) -> Any:
    def parsed(*line: str | Path) -> Any:
        assert call(*line, "--json") == 0
        return json.loads(capsys.readouterr().out)

    return parsed


def rows_of(found: Any) -> dict[str, Any]:
    return {row["method"]: row for row in found["rows"]}


def test_means_over_clients_and_seeds(document: Any, study: Path) -> None:
    """A score is the mean over all clients of all seeds, with their number; epsilon is the largest,
    with its kind."""
    rows = rows_of(document(study))
    assert rows["alone"]["score"] == {
        "mean": pytest.approx(3.2 / 6),
        "std": pytest.approx(0.10327955589886445),
        "n": 6,
        "low": 0.4,
        "high": 0.7,
    }
    assert (rows["alone"]["clients"], rows["alone"]["seeds"], rows["alone"]["epsilon"]) == (
        2,
        3,
        None,
    )
    assert rows["proxyfl"]["score"]["mean"] == pytest.approx(4.1 / 6)
    assert (rows["proxyfl"]["epsilon"], rows["proxyfl"]["kind"], rows["proxyfl"]["delta"]) == (
        4.5,
        "end-to-end",
        1e-3,
    )
    assert (rows["joint"]["clients"], rows["joint"]["score"]["n"]) == (1, 3)


def test_paired_with_alone(document: Any, study: Path) -> None:
    """Differences are those of the same client and seed, tested over all pairs and over the seeds'
    means."""
    comparison = rows_of(document(study))["proxyfl"]["comparison"]
    pairs, means = [0.1, 0.2, 0.2, -0.1, 0.4, 0.1], [0.15, 0.05, 0.25]
    for found, expected in (
        (comparison["over_clients"], paired_test(pairs)),
        (comparison["over_seeds"], paired_test(means)),
    ):
        assert found["difference"] == pytest.approx(0.15)
        assert found["t_test"] == pytest.approx(expected.t_test)
        assert found["wilcoxon"] == pytest.approx(expected.wilcoxon)
        assert found["n"] == expected.n


def test_joint_is_paired_with_every_client(document: Any, study: Path) -> None:
    """The pooled model stands against each client of its seed."""
    comparison = rows_of(document(study))["joint"]["comparison"]["over_clients"]
    assert comparison["n"] == 6
    assert comparison["difference"] == pytest.approx(0.9 - 3.2 / 6)
    turned = rows_of(document(study, "--against", "joint"))["alone"]["comparison"]["over_clients"]
    assert turned["difference"] == pytest.approx(3.2 / 6 - 0.9)


def test_the_remarks_are_honest(document: Any, study: Path) -> None:
    """The reader is told that clients are not independent, which test to trust, and what few seeds
    cannot show."""
    said = " ".join(document(study)["remarks"])
    assert "clients of one seed are not independent" in said
    assert "With 3 seeds the signed-rank test cannot give less than 0.25" in said
    few = " ".join(document(study / "alone,0", study / "proxyfl,0")["remarks"])
    assert "There is no test over seeds: that takes 3 or more, and some row has 1." in few


def test_settings_that_differ_make_groups(document: Any, tmp_path: Path) -> None:
    """Runs with different settings get rows of their own, each compared within its group; threads
    make none."""
    for noise, gain in ((1.0, 0.1), (2.0, 0.3)):
        for seed in range(2):
            scores = {"alone": [0.5, 0.5], "proxyfl": [0.5 + gain, 0.5 + gain]}
            privacy = {"noise_multiplier": noise}
            make(
                tmp_path / "s" / f"{noise},{seed}",
                scores,
                seed=seed,
                threads=1 + seed,
                privacy=privacy,
            )
    found = document(tmp_path / "s")
    assert found["by"] == ["privacy.noise_multiplier"]
    ours = [row for row in found["rows"] if row["method"] == "proxyfl"]
    assert [row["group"] for row in ours] == [
        {"privacy.noise_multiplier": 1.0},
        {"privacy.noise_multiplier": 2.0},
    ]
    assert [row["comparison"]["over_clients"]["difference"] for row in ours] == pytest.approx(
        [0.1, 0.3]
    )


def test_grouping_by_less(document: Any, tmp_path: Path) -> None:
    """Grouped by fewer settings than differ, pairs still have equal settings, and a remark says
    what is mixed."""
    for noise, base in ((1.0, 0.5), (2.0, 0.1)):
        for seed in range(3):
            scores = {"alone": [base, base], "proxyfl": [base + 0.2, base + 0.3]}
            make(
                tmp_path / "s" / f"{noise},{seed}",
                scores,
                seed=seed,
                privacy={"noise_multiplier": noise},
            )
    found = document(tmp_path / "s", "--by", "alpha")
    row = rows_of(found)["proxyfl"]
    assert (row["clients"], row["seeds"], row["score"]["n"]) == (2, 3, 12)
    assert row["comparison"]["over_clients"]["std"] == pytest.approx(0.0522, abs=1e-4)
    assert row["comparison"]["over_seeds"]["n"] == 3
    assert "proxyfl: taken together although privacy.noise_multiplier differ." in found["remarks"]


def test_the_only_alone_serves_all_groups(document: Any, tmp_path: Path) -> None:
    """Where `alone` was run once, all are compared with it, and a remark says so; where it is
    ambiguous, none is."""
    make(
        tmp_path / "a",
        {"alone": [0.5, 0.5], "proxyfl": [0.6, 0.6]},
        privacy={"noise_multiplier": 1.0},
    )
    make(tmp_path / "b", {"proxyfl": [0.8, 0.8]}, privacy={"noise_multiplier": 2.0})
    found = document(tmp_path)
    assert [
        r["comparison"]["over_clients"]["difference"] for r in found["rows"][1:]
    ] == pytest.approx([0.1, 0.3])
    assert any(
        "compared with the only alone there is, at privacy.noise_multiplier=1.0" in r
        for r in found["remarks"]
    )
    make(tmp_path / "c", {"alone": [0.5, 0.5]}, privacy={"noise_multiplier": 3.0})
    found = document(tmp_path)
    assert [row["comparison"] is None for row in found["rows"]] == [True, False, True, True]
    assert any(
        "(privacy.noise_multiplier=2.0) is not compared" in remark for remark in found["remarks"]
    )


def test_missing_counterparts_are_told(document: Any, tmp_path: Path) -> None:
    """Clients without a counterpart are left out of the pairs, and a remark counts them."""
    make(tmp_path / "r", {"alone": [0.5, 0.5, 0.5], "proxyfl": [0.6, 0.7]})
    make(tmp_path / "q", {"proxyfl": [0.6, 0.7]}, seed=1)
    found = document(tmp_path)
    assert rows_of(found)["proxyfl"]["comparison"]["over_clients"]["n"] == 2
    assert any("2 of 4 scores have a counterpart" in remark for remark in found["remarks"])


def test_roles_and_metrics(document: Any, study: Path) -> None:
    """Another model or metric can be asked for; a method that has no such model is left out with a
    remark."""
    found = document(study, "--role", "received", "--metric", "macro_accuracy")
    assert [row["method"] for row in found["rows"]] == ["proxyfl"]
    assert found["rows"][0]["score"]["mean"] == pytest.approx(4.1 / 12 - 0.1)
    assert "Left out: alone has no received model to score." in found["remarks"]
    assert found["against"] is None


def test_a_client_that_left_keeps_its_proxy(document: Any, tmp_path: Path) -> None:
    """A client that left before the last exchange is scored by the proxy it kept."""
    run = make(tmp_path / "r", {"fedavg": [0.8, 0.6]})
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for key in ("received_accuracy", "received_macro_accuracy"):
        del rows[-1][key]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert document(run)["rows"][0]["score"]["mean"] == pytest.approx((0.8 + 0.3) / 2)


def test_after_some_rounds(document: Any, study: Path) -> None:
    """Rounds are counted as done: after 1 of 2 rounds the scores are the first record's."""
    assert rows_of(document(study, "--round", "1"))["alone"]["score"]["mean"] == pytest.approx(
        3.2 / 6 - 0.2
    )
    last, second = document(study), document(study, "--round", "2")
    assert last == second
    with pytest.raises(
        RunError, match=r"alone was not evaluated after round 7 in .*Evaluated: after 1, 2\."
    ):
        call(study, "--round", "7")


def test_unfinished_runs_are_left_out(document: Any, study: Path) -> None:
    """A run that is not finished counts only where its rounds suffice; a remark names it and how to
    continue."""
    path = make(study / "proxyfl,3", {"proxyfl": [0.0, 0.0]}, seed=3, finished=False)
    found = document(study)
    assert rows_of(found)["proxyfl"]["seeds"] == 3
    assert (
        f"Left out: {path} is not finished (`proxyfl resume {path}` continues it, "
        "`--round 2` compares what there is)." in found["remarks"]
    )
    assert rows_of(document(study, "--round", "1"))["proxyfl"]["seeds"] == 4
    with pytest.raises(RunError, match="There is nothing to compare"):
        call(path)


def test_the_weakest_guarantee_is_shown(document: Any, tmp_path: Path) -> None:
    """A row over runs with different kinds of guarantee shows the weaker kind."""
    make(tmp_path / "a", {"proxyfl": [0.5]}, seed=0, epsilon=9.0, kind="end-to-end")
    make(tmp_path / "b", {"proxyfl": [0.5]}, seed=1, epsilon=2.0, kind="conditional")
    row = document(tmp_path)["rows"][0]
    assert (row["epsilon"], row["kind"]) == (8.5, "conditional")


def test_the_same_run_twice(document: Any, study: Path) -> None:
    """A folder given twice counts once; two folders with the same run are refused by name."""
    assert document(study, study / "alone,0") == document(study)
    make(study / "copy", {"alone": [0.1, 0.1]}, seed=0)
    with pytest.raises(
        RunError, match=r"alone,0 and .*copy hold the same method \(alone\), settings and seed"
    ):
        call(study)


BAD = [
    (
        ["--against", "fedavg"],
        ConfigError,
        r"No method 'fedavg' in these runs. Known: alone, joint, proxyfl",
    ),
    (["--by", "noise"], ConfigError, r"Unknown setting 'noise' to group by. Known: seed, "),
    (
        ["--by", "learning_rate"],
        ConfigError,
        r"Known: private_optimizer.learning_rate, proxy_optimizer.learning_rate",
    ),
    (
        ["--round", "first"],
        ConfigError,
        r"Expected --round last or a number of rounds, got --round first",
    ),
    (["--round", "0"], ConfigError, r"--round >= 1"),
]


@pytest.mark.parametrize(
    ("options", "error", "message"), BAD, ids=[" ".join(options) for options, _, _ in BAD]
)
def test_bad_options(study: Path, options: list[str], error: type[Exception], message: str) -> None:
    """What cannot be answered is refused, with what there is."""
    with pytest.raises(error, match=message):
        call(study, *options)


def test_a_folder_without_runs(tmp_path: Path) -> None:
    """A folder that holds no run, or is none, is refused by name."""
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RunError, match=f"{path} holds no run"):
            call(path)


def test_a_torn_summary_is_named(study: Path) -> None:
    """A summary that breaks off is an error that names the file."""
    (study / "alone,0" / "summary.json").write_text('{"finished": true')
    with pytest.raises(RunError, match=r"alone,0/summary.json is not valid JSON"):
        call(study)


def test_csv_is_flat(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CSV has one line per row with plain numbers; remarks go to standard error, not into the
    file."""
    assert call(study, "--format", "csv") == 0
    shown = capsys.readouterr()
    rows = {row["method"]: row for row in csv.DictReader(io.StringIO(shown.out))}
    assert list(rows) == ["alone", "joint", "proxyfl"]
    assert float(rows["proxyfl"]["difference"]) == pytest.approx(0.15)
    assert rows["alone"]["p_t_test_over_clients"] == rows["alone"]["epsilon"] == ""
    assert (rows["proxyfl"]["epsilon_kind"], rows["proxyfl"]["against"]) == ("end-to-end", "alone")
    assert "not independent" in shown.err


def test_markdown(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Markdown is a table with as many cells in every line, and the remarks below it."""
    assert call(study, "--format", "markdown") == 0
    lines = capsys.readouterr().out.splitlines()
    grid = [line for line in lines if line.startswith("|")]
    assert len(grid) == 5
    assert len({line.count("|") for line in grid}) == 1
    assert any(
        line.startswith("| proxyfl | 0.683 ± 0.133 | 2 x 3 | 4.50 end-to-end | +15.0 ± 16.4 |")
        for line in grid
    )
    assert any("not independent" in line for line in lines)


def test_text(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table for people says what the numbers are; every epsilon stands beside its kind."""
    assert call(study) == 0
    shown = capsys.readouterr().out
    assert "4.50 end-to-end" in shown
    assert "no DP" in shown
    assert "at delta 1.0e-03" in shown
    assert "against alone" in shown
