"""Run folders read back: what a notebook gets is what the run recorded."""

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

import proxyfl
from proxyfl.errors import RunError
from proxyfl.records import frames
from proxyfl.records import reading as loading
from proxyfl.simulation.config import from_tree


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[proxyfl.Run, Path]:
    """A small real run, and its folder."""
    out = tmp_path_factory.mktemp("runs") / "small"
    config = from_tree(
        {
            "rounds": 3,
            "evaluate_every": 2,
            "methods": ["alone", "joint", "proxyfl"],
            "partition": {"clients": 3},
        }
    )
    return proxyfl.run(config, out=out), out


def test_gains_are_those_of_the_result(recorded: tuple[proxyfl.Run, Path]) -> None:
    """The gain that a run reports itself is the one that its folder gives, for pooled methods
    too."""
    result, out = recorded
    run = loading.read(out)
    for method in ("joint", "proxyfl"):
        for client in range(3):
            assert run.gain(method, client) == pytest.approx(result.gain(method, client))


def test_a_finished_run_says_so(recorded: tuple[proxyfl.Run, Path]) -> None:
    """A run that went through all rounds is finished, with every round of every method counted."""
    run = loading.read(recorded[1])
    assert run.finished
    assert run.progress == {"alone": 3, "joint": 3, "proxyfl": 3}


def test_frames_hold_every_line(recorded: tuple[proxyfl.Run, Path]) -> None:
    """The metrics frame has one row per recorded line and the seed beside it."""
    runs = frames.load(recorded[1])
    lines = (recorded[1] / "metrics.jsonl").read_text().splitlines()
    assert len(runs.metrics) == len(lines)
    assert set(runs.metrics["seed"]) == {0}


def test_no_epsilon_without_its_kind(recorded: tuple[proxyfl.Run, Path]) -> None:
    """Every row with an epsilon has a kind, and where there is no DP it is infinite, not absent."""
    runs = frames.load(recorded[1])
    for frame, column in ((runs.metrics, "epsilon_pld"), (runs.gains, "epsilon")):
        assert frame["epsilon_kind"].notna().all()
        unbounded = frame[frame["epsilon_kind"] == "none"]
        assert len(unbounded) > 0
        assert unbounded[column].map(math.isinf).all()
        assert frame[frame["epsilon_kind"] != "none"][column].map(math.isfinite).all()


def test_ledger_frame_adds_up(recorded: tuple[proxyfl.Run, Path]) -> None:
    """The steps on the ledgers are the steps that the metrics say were taken with DP."""
    runs = frames.load(recorded[1])
    private = runs.metrics[runs.metrics["epsilon_kind"] != "none"]
    assert runs.ledger["steps"].sum() == private["steps"].sum() > 0


@pytest.mark.parametrize("what", ["accuracy", "gain", "epsilon"])
def test_plots_have_data(recorded: tuple[proxyfl.Run, Path], what: str) -> None:
    """Every ready plot shows a line or marks for ProxyFL, as SVG that a notebook draws."""
    figure = frames.load(recorded[1]).plot(what)
    shown = [line for line in figure.lines if line.name.startswith("proxyfl")]
    assert shown
    assert all(len(line.points) > 0 for line in shown)
    drawn = ElementTree.fromstring(figure._repr_svg_())
    assert any(node.text == shown[0].name for node in drawn.iter() if node.tag.endswith("text"))


def test_an_unknown_plot_is_named(recorded: tuple[proxyfl.Run, Path]) -> None:
    """Asking for a plot that does not exist lists those that do."""
    with pytest.raises(proxyfl.ProxyFLError, match="accuracy, gain, epsilon"):
        frames.load(recorded[1]).plot("pie")


def test_a_folder_of_runs_stands_for_all(
    recorded: tuple[proxyfl.Run, Path], tmp_path: Path
) -> None:
    """A folder that holds runs gives them in the order of their names, other folders in it left
    out."""
    for name in ("b", "a"):
        _copy(recorded[1], tmp_path / name)
    (tmp_path / "notes").mkdir()
    assert [run.name for run in frames.load(tmp_path)] == ["a", "b"]


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    """A folder that holds no run raises an error that says what makes one."""
    with pytest.raises(RunError, match="proxyfl run"):
        frames.load(tmp_path)


def test_an_interrupted_run_is_read_as_far_as_it_got(
    recorded: tuple[proxyfl.Run, Path], tmp_path: Path
) -> None:
    """Without a summary and with a torn last line, the complete lines are there and the run is not
    finished."""
    path = _copy(recorded[1], tmp_path / "cut")
    (path / "summary.json").unlink()
    text = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text(text[: len(text) - 40])
    run = loading.read(path)
    assert len(run.rows) == len(text.splitlines()) - 1
    assert not loading.read(path, run.rows[:-3]).finished


def test_a_round_written_again_counts_once(
    recorded: tuple[proxyfl.Run, Path], tmp_path: Path
) -> None:
    """If a resumed run wrote a line a second time, the later one stands."""
    path = _copy(recorded[1], tmp_path / "again")
    first = json.loads((path / "metrics.jsonl").read_text().splitlines()[0])
    with (path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(first | {"steps": 77}) + "\n")
    run = loading.read(path)
    assert len(run.rows) == len(loading.read(recorded[1]).rows)
    assert run.rows[0]["steps"] == 77


def test_settings_of_another_release_can_be_read(
    recorded: tuple[proxyfl.Run, Path], tmp_path: Path
) -> None:
    """A setting that this release does not know is no reason not to show a run."""
    path = _copy(recorded[1], tmp_path / "newer")
    config = (path / "config.toml").read_text()
    (path / "config.toml").write_text("from_the_future = 1\n" + config)
    assert loading.read(path).settings["from_the_future"] == 1


def test_damaged_json_is_named(recorded: tuple[proxyfl.Run, Path], tmp_path: Path) -> None:
    """A summary that is no JSON raises an error with the file's name instead of being passed
    over."""
    path = _copy(recorded[1], tmp_path / "damaged")
    (path / "summary.json").write_text("{")
    with pytest.raises(RunError, match=r"summary\.json"):
        loading.read(path)


def _copy(source: Path, to: Path) -> Path:
    to.mkdir(parents=True)
    for name in ("config.toml", "environment.json", "metrics.jsonl", "summary.json"):
        (to / name).write_bytes((source / name).read_bytes())
    return to
