"""Odds ratios of a run: the mechanism is the run's, and the command's table, files and refusals."""

import csv
import json
import random
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from proxyfl.cli.main import main
from proxyfl.data.tables.predicting import by_schema
from proxyfl.errors import ConfigError, RunError
from proxyfl.federation.effects import Fit, Mechanism, Simulator, fit
from proxyfl.simulation import effects as module
from proxyfl.simulation.config import load, of_run
from proxyfl.simulation.effects import effects
from proxyfl.simulation.prepare import prepare
from proxyfl.simulation.run import run

SETTINGS = {
    "rounds": 8,
    "evaluate_every": 8,
    "methods": '["alone", "proxyfl", "fml", "proxysum"]',
    "data.source": "heart_disease",
    "partition.kind": "site",
    "models.private": "logistic",
    "models.proxy": "linear",
    "learning.batch_size": 184,
    "learning.steps_per_round": 2,
    "learning.balance": "prior",
    "learning.prevalence": "[0.3, 0.7]",
    "proxy_optimizer.name": "sgd",
    "proxy_optimizer.momentum": 0.9,
    "proxy_optimizer.learning_rate": 0.3,
    "privacy.sampling_rate": 1.0,
    "privacy.delta": 0.0004,
    "privacy.clip_norm": 1.5,
    "exchange.settle": 2,
    "exchange.average": 0.5,
    "exchange.colluders": 1,
}


def finished(out: Path, **changes: object) -> Path:
    """A run on the four hospitals with ``changes`` (``__`` for the dot; None leaves it out)."""
    settings = SETTINGS | {key.replace("__", "."): value for key, value in changes.items()}
    given = [f"{name}={value}" for name, value in settings.items() if value is not None]
    run(load(None, given), out=out)
    return out


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with next to no noise."""
    out = tmp_path_factory.mktemp("effects") / "run"
    return finished(out, privacy__noise_multiplier=1e-3)


class Labelled(Simulator):
    """A simulator with the true labels."""

    known: list[Tensor]

    def _labels(self, truths: Tensor, generator: torch.Generator) -> list[Tensor]:
        return [each[:, None].expand(-1, len(truths)) for each in self.known]


@pytest.mark.parametrize("method", ["proxyfl", "fml", "proxysum"])
def test_the_mechanism_is_the_runs(
    quiet: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the true labels and next to no noise, the simulated mechanism releases the proxies that
    the run released: gossip, a hub and masked sums, with clipping, a mean, and settling."""
    seen: list[tuple[Mechanism, Tensor]] = []

    def look(mechanism: Mechanism, released: Tensor, **more: object) -> Fit:
        seen.append((mechanism, released))
        rank = released.shape[1]
        nothing = torch.zeros(rank, dtype=torch.float64)
        wide = torch.eye(rank, dtype=torch.float64)
        return Fit(nothing, wide, wide, False, wide)

    monkeypatch.setattr(module, "fit", look)
    clients = prepare(replace(of_run(quiet), methods=("proxysum",))).clients
    labels = [each.examples.labels.float() for each in clients]
    for client in (0, 2):
        effects(quiet, method=method, client=str(client))
        mechanism, released = seen.pop()
        simulator = Labelled(mechanism)
        simulator.known = [torch.cat(labels)] if method == "proxysum" else labels
        width = released.shape[1]
        simulated = simulator.release(torch.zeros(1, width), torch.Generator())[0]
        expected = (released[1] - released[0]).tolist()
        assert simulated.tolist() == pytest.approx(expected, abs=2e-3)


def test_noise_of_the_mechanism_is_that_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over seeds, the proxies of real runs differ by as much as the mechanism says, whether each
    adds its own noise or a share of it."""
    mechanisms: dict[str, Mechanism] = {}
    proxies: dict[str, list[Tensor]] = {"proxyfl": [], "proxysum": []}
    now = ""

    def look(mechanism: Mechanism, released: Tensor, **more: object) -> Fit:
        mechanisms[now] = mechanism
        proxies[now].append(released[1] - released[0])
        rank = released.shape[1]
        wide = torch.eye(rank, dtype=torch.float64)
        return Fit(torch.zeros(rank, dtype=torch.float64), wide, wide, False, wide)

    monkeypatch.setattr(module, "fit", look)
    for seed in range(5):
        path = finished(
            tmp_path / str(seed),
            seed=seed,
            models__proxy_seed=1,
            methods='["proxyfl", "proxysum"]',
            privacy__noise_multiplier=60.0,
        )
        for now in proxies:
            effects(path, method=now)
    for now, mechanism in mechanisms.items():
        without_data = replace(
            mechanism,
            members=[replace(each, stands_for=each.stands_for * 0) for each in mechanism.members],
        )
        simulated = Simulator(without_data).release(
            torch.zeros(400, proxies[now][0].shape[0]), torch.Generator().manual_seed(0)
        )
        ratio = torch.stack(proxies[now]).std(0).square().mean() / simulated.var(0).mean()
        assert 0.75 < float(ratio) < 1.35  # 5 runs x 25 coefficients


def test_the_command(quiet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table, the same numbers as CSV and JSON, and a plot; nothing is written that was not asked
    for, and ``--report`` keeps the table for the report."""
    before = {path: path.stat().st_mtime_ns for path in quiet.rglob("*")}
    line = ["effects", str(quiet), "--method", "proxysum", "--draws", "300"]
    table, plot = tmp_path / "e.csv", tmp_path / "e.svg"
    assert main([*line, "--csv", str(table), "--plot", str(plot), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == len(document["effects"])
    assert {row["column"] for row in rows} >= {"age", "sex", "cp", "thal"}
    (sex,) = [each for each in document["effects"] if each["column"] == "sex"]
    assert sex["change"] == "yes against no"
    for row, each in zip(rows, document["effects"], strict=True):
        assert (row["odds_ratio"] == "") == (each["odds_ratio"] is None)
        assert (row["reason"] == "") == (each["odds_ratio"] is not None)
        if each["odds_ratio"] is not None:
            assert float(row["low"]) < float(row["odds_ratio"]) < float(row["high"])
    assert plot.read_text().startswith("<svg")
    assert {path: path.stat().st_mtime_ns for path in quiet.rglob("*")} == before
    assert main([*line, "--report", "--own-inputs"]) == 0
    shown = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "odds of disease against no disease" in shown
    assert "stand for those of all sites" in shown
    kept = json.loads((quiet / "effects.json").read_text())
    assert kept["method"] == "proxysum"
    (quiet / "effects.json").unlink()


def test_inputs_of_a_table_stand_for_all(
    quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With ``--inputs`` the rows of a table without labels take the place of every client's inputs,
    as many times as the client has records; no record of the run goes in."""
    mechanisms: list[Mechanism] = []

    def look(mechanism: Mechanism, *rest: object, **more: object) -> Fit:
        mechanisms.append(mechanism)
        return fit(mechanism, *rest, **more)

    monkeypatch.setattr(module, "fit", look)
    prepared = prepare(replace(of_run(quiet), methods=("proxysum",)))
    columns = tomllib.loads(prepared.dataset.schema)["columns"]
    draw = random.Random(0)
    lines = [",".join(columns)]
    for _ in range(60):
        cells = []
        for column in columns.values():
            if column["type"] == "number":
                cells.append(f"{draw.uniform(*column['range']):.2f}")
            else:
                cells.append(draw.choice(column.get("values", ["yes", "no"])))
        lines.append(",".join(cells))
    table = tmp_path / "public.csv"
    table.write_text("\n".join(lines) + "\n")
    expected = by_schema(table, prepared.dataset.schema).x
    line = ["effects", str(quiet), "--inputs", str(table), "--draws", "200", "--json"]
    for method in ("proxyfl", "proxysum"):
        capsys.readouterr()
        assert main([*line, "--method", method]) == 0
        assert "public.csv stand for those of all sites" in capsys.readouterr().out
        mechanism = mechanisms.pop()
        rows = torch.cat([each.inputs for each in mechanism.members])
        assert torch.equal(rows, expected.repeat(4, 1))
        sizes = [len(each.examples) for each in prepared.clients]
        stands_for = torch.cat([each.stands_for for each in mechanism.members])
        assert stands_for.reshape(4, 60).sum(1).tolist() == pytest.approx(sizes)
    table.write_text("age\n50\n")
    assert main(line) == 2
    assert "does not fit the model's schema" in capsys.readouterr().err


def test_refusals(quiet: Path, tmp_path: Path) -> None:
    """Every condition under which the mechanism is not known is named."""
    with pytest.raises(RunError, match="no 'nowhere'"):
        effects(quiet, client="nowhere")
    with pytest.raises(RunError, match="alone shares no model under DP"):
        effects(quiet, method="alone")
    with pytest.raises(ConfigError, match="--records is for a real site"):
        effects(quiet, records={"south": 3})
    quick = {
        "rounds": 2,
        "exchange__settle": 0,
        "exchange__average": 0.0,
        "exchange__colluders": None,
        "methods": '["proxyfl"]',
    }
    cases = {
        "learns from its private model": {"learning__beta": 0.5, "models__private": "mlp"},
        "every gradient has the same length": {"privacy__normalize": "true"},
        "weighs its classes": {"learning__balance": "weights"},
        "this run has another one": {"models__proxy": "mlp"},
        "no noise to correct for": {"privacy__enabled": "false"},
        "A defence changes": {"exchange__rules": "sites"},
        "clients were there": {"membership__absence": 0.5},
    }
    for number, (words, changes) in enumerate(cases.items()):
        path = finished(tmp_path / str(number), **(quick | changes))
        with pytest.raises(ConfigError, match=words):
            effects(path)
