"""Runs of every task, from the schema to a prediction, in all engines."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest

from proxyfl.cli.main import main
from proxyfl.errors import InputError
from proxyfl.records.certainty import plain_name, weak_alone
from proxyfl.records.groups import groups
from proxyfl.simulation import config as configs
from proxyfl.simulation.run import Callback, resume, run

COLUMNS = "".join(
    f'[columns.{name}]\ntype = "number"\nrange = [-1, 1]\nindicator = false\n' for name in "abc"
)
LABELS = {
    "regression": 'task = "regression"\ncolumn = "value"\nrange = [-4, 4]',
    "multilabel": 'task = "multilabel"\nfindings = ["edema", "mass"]',
    "time-to-event": 'task = "time-to-event"\ncolumn = "days"\nevent = "died"\n'
    "intervals = [60, 200, 500]",
}
MEASURE = {"regression": "r2", "multilabel": "auroc", "time-to-event": "c_index"}


def write_sites(folder):
    """Three sites whose three outcomes follow from the first two columns."""
    rng = np.random.default_rng(0)
    for site in ("east", "north", "west"):
        lines = ["a,b,c,value,edema,mass,days,died"]
        for _ in range(120):
            a, b, c = rng.uniform(-1, 1, 3)
            score = 2 * a - b + rng.normal(scale=0.3)
            time = 200 * np.exp(-score)
            lines.append(
                f"{a:.3f},{b:.3f},{c:.3f},{score:.3f},{int(score > 0)},{int(score > 1)},"
                f"{min(time, 600):.1f},{int(time < 600)}"
            )
        (folder / f"{site}.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture
def folder(tmp_path):
    """The tables of ``write_sites``."""
    write_sites(tmp_path)
    return tmp_path


def settings(folder, kind, **changes):
    """A short run of a task."""
    schema = folder / f"{kind}.toml"
    schema.write_text(f'name = "table"\nothers = "ignore"\n[label]\n{LABELS[kind]}\n{COLUMNS}')
    tree = {
        "methods": ["alone", "proxyfl"],
        "rounds": 3,
        "evaluate_every": 3,
        "data": {"source": str(folder / "*.csv"), "schema": str(schema)},
        "partition": {"kind": "site"},
        "models": {"private": "logistic", "proxy": "linear"},
        "learning": {"batch_size": 40},
    }
    if kind == "time-to-event":
        tree["models"]["proxy"] = "hazards"
    for key, value in changes.items():
        from proxyfl import _settings

        _settings.put(tree, key.replace("__", "."), value)
    return configs.from_tree(tree)


@pytest.mark.parametrize("kind", LABELS)
def test_every_path_of_a_run(folder, kind, tmp_path, capsys):
    """A run is recorded, read, shown, resampled and predicts; nothing of classes is on record."""
    out = tmp_path / "run"
    run(settings(folder, kind), out=out)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["measure"] == MEASURE[kind]
    assert summary["task"]["kind"] == kind
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["method"] == "alone"][-1]
    assert last[f"private_{MEASURE[kind]}"] > 0.6
    low, high = last["private_intervals"][MEASURE[kind]]
    assert low < last[f"private_{MEASURE[kind]}"] < high
    assert "private_accuracy" not in last
    assert "confusion" not in last
    assert ("private_survival" in last) == (kind == "time-to-event")
    assert ("private_own_risk_groups" in last) == (kind == "time-to-event")
    assert ("private_own_calibration" in last) == (kind != "time-to-event")

    for arguments in ([], ["--show", "measures"], ["--show", "calibration"]):
        assert main(["table", str(out), *arguments]) == 0
    page = tmp_path / "page.html"
    assert main(["report", str(out), "--out", str(page)]) == 0
    assert MEASURE[kind] in page.read_text()
    capsys.readouterr()

    assert main(["predict", str(out), str(folder / "north.csv"), "--client", "north", "--csv"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(table) == 120
    own = list(csv.DictReader((folder / "north.csv").open()))
    if kind == "regression":
        said = [float(row["value"]) for row in table]
        assert all(-4 <= value <= 4 for value in said)
        assert np.corrcoef(said, [float(row["value"]) for row in own])[0, 1] > 0.8
    elif kind == "multilabel":
        said = np.array([float(row["edema"]) for row in table])
        has = np.array([row["edema"] == "1" for row in own])
        assert said[has].mean() > said[~has].mean() + 0.3
    else:
        ends = [f"free at {end}" for end in (60, 200, 500)]
        curve = np.array([[float(row[end]) for end in ends] for row in table])
        assert (np.diff(curve, axis=1) <= 0).all()
        assert np.corrcoef(curve[:, 1], [float(row["days"]) for row in own])[0, 1] > 0.4


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("methods", [("regular", "fedavg", "fml"), ("joint", "cwt", "avgpush")])
def test_every_method_runs_with_networks(folder, kind, methods):
    """Mutual learning with beta, and all exchanges: each model has a score."""
    found = run(
        settings(
            folder,
            kind,
            methods=methods,
            models__private="mlp",
            learning__beta=0.5,
            learning__teacher="current",
        )
    )
    for method in methods:
        for client in found.clients_of(method):
            assert found.kept(method, client) is not None, method


@pytest.mark.slow
@pytest.mark.parametrize("kind", LABELS)
def test_workers_give_the_same_bits(folder, kind, tmp_path):
    """One process or two: the same rows, but for times."""
    config = settings(folder, kind, models__private="mlp")
    rows = []
    for workers in (1, 2):
        found = run(config, out=tmp_path / str(workers), workers=workers)
        rows.append([{k: v for k, v in row.items() if "second" not in k} for row in found.rows])
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"partition__kind": "majority"}, "divides examples by their class"),
        ({"measure": "accuracy"}, "is none of the task regression"),
        ({"learning__balance": "prior"}, "makes up for uneven classes"),
        ({"learning__prevalence": [0.5, 0.5]}, "share of each class"),
        ({"methods": ["score"]}, "published score"),
        ({"models__private": "sklearn.naive_bayes:GaussianNB"}, "is a classifier"),
    ],
)
def test_what_is_for_classes_is_refused_beforehand(folder, changes, words, tmp_path):
    """Refusals name what was asked for and what to do; nothing is written."""
    with pytest.raises(InputError, match=words):
        run(settings(folder, "regression", **changes), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_of_iid_sites(folder):
    """Examples are divided at random where nobody asks for sites."""
    config = settings(folder, "time-to-event", partition__kind="iid", partition__clients=4)
    assert len(run(replace(config, methods=("alone",))).clients) == 4


PLAIN = {
    "regression": "plain linear regression",
    "multilabel": "plain logistic regression",
    "time-to-event": "plain regression of hazards",
}


@pytest.mark.parametrize("kind", LABELS)
def test_an_untrained_opponent_is_called_weak(folder, kind, tmp_path):
    """A network that hardly learnt is held to the linear estimator of its task."""
    config = settings(folder, kind, models__private="mlp", rounds=1, evaluate_every=1)
    slow = replace(config.private_optimizer, learning_rate=1e-6)
    result = run(replace(config, private_optimizer=slow), out=tmp_path / "run")
    for client in result.about("alone")["clients"]:
        assert client["reference"][MEASURE[kind]] > 0.6
    (group,) = groups([result])
    # by a measure that has a level of chance, an untrained network may lie below that, too
    words = weak_alone(group, MEASURE[kind])
    assert PLAIN[kind] in words or words.startswith("Alone has a")
    assert plain_name(result) in PLAIN[kind]


def proxysum(folder, kind, **changes):
    """Joining by masked sums, next to alone."""
    terms = {
        "methods": ["alone", "proxysum"],
        "rounds": 6,
        "evaluate_every": 6,
        "learning__batch_size": 96,
        "learning__steps_per_round": 1,
        "privacy__sampling_rate": 1.0,
        "privacy__delta": 1e-3,
        "privacy__noise_multiplier": 1.0,
        "exchange__colluders": 1,
    }
    return settings(folder, kind, **terms | changes)


@pytest.mark.parametrize("kind", LABELS)
def test_one_proxy_by_masked_sums(folder, kind, tmp_path, capsys):
    """All end with one proxy that has learnt, its epsilon names the colluders, and subgroups are
    judged though alone has no masked sum."""
    out = tmp_path / "run"
    found = run(proxysum(folder, kind), out=out)
    scores = {found.final("proxysum", k)[f"proxy_{MEASURE[kind]}"] for k in found.clients}
    assert len(scores) == 1
    assert scores.pop() > 0.6
    assert "1 colluding" in str(found.epsilon("proxysum"))
    capsys.readouterr()
    assert main(["subgroups", str(out), "--by", "a", "--bands", "0", "--client", "north"]) == 0
    assert "proxysum" in capsys.readouterr().out


@pytest.mark.parametrize("kind", LABELS)
def test_a_stopped_run_goes_on_to_the_same_end(folder, kind, tmp_path):
    """Gossip and masked sums of every task, stopped in their second round and resumed: the same."""
    config = proxysum(folder, kind, methods=["proxyfl", "proxysum"], checkpoint_every=1)
    whole = run(config, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "cut", callbacks=[StopAfterTwo()])
    resumed = resume(tmp_path / "cut")
    for method in whole.methods:
        for client in whole.clients_of(method):
            one, other = whole.final(method, client), resumed.final(method, client)
            assert one[f"private_{MEASURE[kind]}"] == other[f"private_{MEASURE[kind]}"]
            assert one.get("private_risk_groups") == other.get("private_risk_groups")


class StopAfterTwo(Callback):
    """Ctrl-C in the second round."""

    def round_ended(self, name, round, rows):
        if round == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("kind", LABELS)
def test_an_audit_of_every_task(folder, kind, tmp_path, capsys):
    """Canaries do not contradict the epsilon of any task, though the run also has masked sums. More
    canaries than parameters, and the attack by membership, are refused in words."""
    config = tmp_path / "run.toml"
    config.write_text(configs.to_toml(proxysum(folder, kind, methods=["proxyfl", "proxysum"])))
    command = ["audit", str(config), "--method", "proxyfl"]
    assert main(command) == 0, capsys.readouterr()
    assert "does not contradict the claimed epsilon" in " ".join(capsys.readouterr().out.split())
    assert main([*command, "--canaries", "99"]) == 2
    assert "Expected fewer canaries" in " ".join(capsys.readouterr().err.split())
    assert main(["audit", str(config), "--membership"]) == 2
    assert f"the task is {kind}" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
@pytest.mark.parametrize("kind", LABELS)
def test_a_sweep_of_every_task(folder, kind, tmp_path, capsys):
    """Two seeds of masked sums run in processes of their own; the table has the task's measure."""
    config = tmp_path / "run.toml"
    config.write_text(configs.to_toml(proxysum(folder, kind)))
    (tmp_path / "sweep.toml").write_text('base = "run.toml"\n[grid]\nseed = [0, 1]\n')
    assert main(["sweep", str(tmp_path / "sweep.toml"), "--out", str(tmp_path / "runs")]) == 0
    capsys.readouterr()
    assert main(["table", str(tmp_path / "runs"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert MEASURE[kind] in json.dumps(document)
