"""A run from its config to its folder: what is checked before, what is there after."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch

from proxyfl._settings import flat
from proxyfl.data import Dataset
from proxyfl.data.examples import Subset
from proxyfl.data.sources import load
from proxyfl.errors import ConfigError, DataError, InputError, ModelError, TopologyError
from proxyfl.federation.modelfile import about_model, load_model
from proxyfl.privacy.ledger import Ledger
from proxyfl.records import folder
from proxyfl.simulation import run as runner
from proxyfl.simulation.config import from_tree, of_run
from proxyfl.simulation.run import Callback, prepare, run

ALL = load("digits")
DIGITS = dataclasses.replace(ALL, test=Subset(ALL.test, torch.arange(40)))


def tiny(**sections):
    tree = {
        "methods": ["alone", "proxyfl"],
        "rounds": 2,
        "partition": {"clients": 2, "examples": 30} | sections.pop("partition", {}),
        "learning": {"batch_size": 15} | sections.pop("learning", {}),
    }
    return from_tree(tree | sections)


def with_sites(counts: list[int]) -> Dataset:
    """Digits of institutions of the sizes given."""
    n, site = (
        sum(counts),
        torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)),
    )
    names = tuple(f"site {i}" for i in range(len(counts)))
    return dataclasses.replace(
        DIGITS, train=Subset(DIGITS.train, torch.arange(n)), site=site, site_names=names
    )


def test_what_lies_in_the_folder(tmp_path: Path) -> None:
    """The resolved config, a row per method, client and round, ledgers that add up, final models, a
    summary."""
    result = run(tiny(), out=tmp_path / "run", dataset=DIGITS)
    path = tmp_path / "run"
    # What is kept is what "auto" came to, so that a resumed run cannot come to something else.
    assert flat(of_run(path)) == flat(tiny()) | {"measure": "accuracy"}
    rows = list(folder.read_metrics(path))
    assert [(r["method"], r["round"], r["client"]) for r in rows] == [
        (m, t, c) for m in ("alone", "proxyfl") for t in range(2) for c in range(2)
    ]
    assert rows == result.rows
    ledger = Ledger.read(path / "ledger" / "proxyfl" / "001.jsonl")
    assert (ledger.client, ledger.steps, ledger.simulated) == ("client-1", 4, True)
    assert ledger.epsilon().pld == rows[-1]["epsilon_pld"]
    assert {p.name for p in (path / "models" / "proxyfl").iterdir()} == {
        f"00{i}-{role}.safetensors" for i in range(2) for role in ("private", "proxy")
    }
    summary = json.loads((path / "summary.json").read_text())
    assert summary["clients"][0]["examples"] == sum(summary["clients"][0]["class_counts"]) == 30
    assert summary["methods"]["proxyfl"]["clients"][1]["private_accuracy"] == result.accuracy(
        "proxyfl", 1
    )


def test_the_folders_config_runs_again(tmp_path: Path) -> None:
    """The config in the folder gives the same numbers once more."""
    first = run(tiny(), out=tmp_path / "run", dataset=DIGITS)
    again = run(of_run(tmp_path / "run"), dataset=DIGITS)
    counts = [row["confusion"] for row in first.summary["methods"]["proxyfl"]["clients"]]
    assert counts == [row["confusion"] for row in again.summary["methods"]["proxyfl"]["clients"]]
    assert counts[0]["private"]


@pytest.mark.parametrize("residual", [True, False])
def test_saved_models_score_as_recorded(residual: bool, tmp_path: Path) -> None:
    """A private model loaded from its file has the accuracy of the last record; unless the exchange
    came after."""
    config = tiny(models={"residual": residual}, methods=["alone", "fml"])
    result = run(config, out=tmp_path / "run", dataset=DIGITS)
    for name in ("alone", "fml"):
        model, about = load_model(tmp_path / "run" / "models" / name / "001-private.safetensors")
        assert (about["client"], about["method"], about["role"]) == ("client-1", name, "private")
        assert ("residual_on" in about) == (residual and name == "fml")
        if not about.get("residual_on"):
            correct = (model(DIGITS.test_x).argmax(1) == DIGITS.test_y).float().mean()
            assert float(correct) == pytest.approx(result.accuracy(name, 1))


def test_a_released_models_file_says_what_it_cost(tmp_path: Path) -> None:
    """A proxy's file states epsilon with its kind; a private model's says that it was never
    released."""
    run(tiny(learning={"beta": 0.5}, methods=["proxyfl"]), out=tmp_path / "run", dataset=DIGITS)
    models = tmp_path / "run" / "models" / "proxyfl"
    assert (
        "(conditional, zero-out, per record)"
        in about_model(models / "000-proxy.safetensors")["epsilon"]
    )
    assert about_model(models / "000-private.safetensors")["epsilon"] == "never released"


def test_callbacks_see_everything() -> None:
    """Start, methods, rounds and the end, in order."""
    seen: list[str] = []

    class Watch(Callback):
        def started(self, *_):
            seen.append("start")

        def method_started(self, name, *_):
            seen.append(name)

        def round_ended(self, name, *_):
            seen.append(f"{name} round")

        def finished(self, *_):
            seen.append("end")

    run(tiny(), dataset=DIGITS, callbacks=[Watch()])
    assert seen == [
        "start",
        "alone",
        *["alone round"] * 2,
        "proxyfl",
        *["proxyfl round"] * 2,
        "end",
    ]


class Stop(Callback):
    """Ctrl-C after a number of rounds."""

    def __init__(self, after: int) -> None:
        self.left = after

    def round_ended(self, *_) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def test_an_interrupted_run_leaves_readable_records(tmp_path: Path) -> None:
    """Cut off in the middle: every round that ended is on record, and the summary says what there
    is."""
    with pytest.raises(KeyboardInterrupt):
        run(tiny(rounds=3), out=tmp_path / "run", dataset=DIGITS, callbacks=[Stop(after=5)])
    rows = list(folder.read_metrics(tmp_path / "run"))
    assert [(r["method"], r["round"]) for r in rows[-2:]] == [("proxyfl", 1)] * 2
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert set(summary["methods"]) == {"alone", "proxyfl"}


def test_a_summary_before_the_first_scores_says_what_was_spent(tmp_path: Path) -> None:
    """Cut off before anybody was scored: each client's last round, not its first."""
    config = tiny(methods=["proxyfl"], rounds=4, evaluate_every=4)
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "run", dataset=DIGITS, callbacks=[Stop(after=3)])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    found = summary["methods"]["proxyfl"]["clients"]
    assert [row["round"] for row in found] == [2, 2]


def test_interrupted_before_its_first_checkpoint(tmp_path: Path) -> None:
    """A run that was cut off before a method's first checkpoint is resumed like any other."""
    config = tiny(rounds=3, checkpoint_every=3)
    whole = run(config, dataset=DIGITS)
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "run", dataset=DIGITS, callbacks=[Stop(after=4)])
    resumed = runner.resume(tmp_path / "run", dataset=DIGITS)
    assert resumed.accuracy("proxyfl", 1) == whole.accuracy("proxyfl", 1)


def write_models(path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> str:
    (path / f"{name}.py").write_text(
        "from torch import nn\n"
        "def private(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), "
        "nn.Dropout(0.5),\n"
        "                         nn.Linear(12, classes))\n"
        "def proxy(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, "
        "classes))\n"
    )
    monkeypatch.chdir(path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


@pytest.mark.parametrize("name", ["proxyfl", "fml"])
def test_own_models(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Private model and proxy by module:factory, with BatchNorm and dropout in the private one;
    twice the same bits."""
    module = write_models(tmp_path, monkeypatch, f"own_run_models_{name}")
    config = tiny(
        methods=[name], models={"private": [f"{module}:private", "mlp"], "proxy": f"{module}:proxy"}
    )
    first = run(config, out=tmp_path / "a", dataset=DIGITS)
    second = run(config, dataset=DIGITS)
    assert [r["private_loss"] for r in first.finals(name)] == [
        r["private_loss"] for r in second.finals(name)
    ]
    file = tmp_path / "a" / "models" / name / "000-private.safetensors"
    model, about = load_model(file, trust=[module])
    assert about["architecture"] == f"{module}:private"
    assert model(DIGITS.test_x).shape == (40, 10)


def test_per_client_settings_reach_their_client() -> None:
    """Lists of batch sizes, steps, noise and deltas: each client's own is in its records."""
    config = tiny(
        methods=["proxyfl"],
        learning={"batch_size": [10, 15], "steps_per_round": [1, 3]},
        privacy={"noise_multiplier": [2.0, 8.0], "delta": [0.01, 0.02]},
    )
    first, second = run(config, dataset=DIGITS).finals("proxyfl")
    assert (first["steps"], second["steps"]) == (1, 3)
    assert (first["delta"], second["delta"]) == (0.01, 0.02)
    assert first["epsilon_pld"] > second["epsilon_pld"]


def test_partition_by_site(tmp_path: Path) -> None:
    """Each site is a client, with its own size and name."""
    config = tiny(methods=["proxyfl"], partition={"kind": "site", "clients": 3, "examples": 30})
    config = dataclasses.replace(
        config, partition=dataclasses.replace(config.partition, examples=None)
    )
    result = run(config, out=tmp_path / "run", dataset=with_sites([30, 45, 60]))
    assert [row["name"] for row in result.finals("proxyfl")] == ["site 0", "site 1", "site 2"]
    assert [row["steps"] for row in result.finals("proxyfl")] == [2, 3, 4]


def no_examples(**partition):
    config = tiny(methods=["proxyfl"], **partition.pop("sections", {}))
    return dataclasses.replace(
        config, partition=dataclasses.replace(config.partition, **{"examples": None} | partition)
    )


def test_sites_count_not_the_clients_setting(tmp_path: Path) -> None:
    """With sites, lists have one value per site, whatever partition.clients says; the run saves its
    models."""
    config = no_examples(
        kind="site", clients=8, sections={"models": {"private": ["mlp", "linear"]}}
    )
    run(config, out=tmp_path / "run", dataset=with_sites([30, 45]))
    assert (tmp_path / "run" / "models" / "proxyfl" / "001-private.safetensors").exists()


def test_a_list_of_sizes_that_does_not_fit_the_sites() -> None:
    """A list of examples of another length than there are sites is an error of the input."""
    with pytest.raises(InputError):
        prepare(
            no_examples(kind="site", clients=3, examples=(5, 5, 5)), dataset=with_sites([30, 45])
        )


def test_every_client_is_checked_before_the_folder_is_made(tmp_path: Path) -> None:
    """A second client with less data than a batch is found before anything is written."""
    config = tiny(methods=["proxyfl"], partition={"examples": [30, 10]})
    with pytest.raises(ConfigError, match="larger than the 10 examples of client-1"):
        run(config, out=tmp_path / "run", dataset=DIGITS)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("sections", "error", "message"),
    [
        ({"methods": ["fedprox"]}, ConfigError, "Unknown method 'fedprox'. Known: alone"),
        ({"device": "abacus"}, ConfigError, "Cannot use device='abacus'"),
        (
            {"learning": {"batch_size": 31}},
            ConfigError,
            "batch_size=31 is larger than the 30 examples of client-0",
        ),
        (
            {"learning": {"batch_size": [1, 2, 3]}},
            ConfigError,
            "one value or 2 values .*batch_size, got 3",
        ),
        (
            {"models": {"private": ["mlp"] * 3}},
            ConfigError,
            "one value or 2 values .* models.private, got 3",
        ),
        (
            {"privacy": {"delta": [0.1] * 3}},
            ConfigError,
            "one value or 2 values .* privacy.delta, got 3",
        ),
        (
            {"partition": {"examples": [30] * 3}},
            ConfigError,
            "one value or 2 values .* partition.examples, got 3",
        ),
        ({"partition": {"examples": 10**6}}, DataError, "there are 1438"),
        (
            {"partition": {"examples": 300, "p_major": 1.0}},
            DataError,
            "asks for 300 examples of a majority class",
        ),
        (
            {"partition": {"kind": "site", "examples": "none"}},
            DataError,
            "needs the site of each example",
        ),
        ({"models": {"private": "vgg"}}, ModelError, "vgg expects images of at least 32x32"),
        ({"models": {"proxy": "perceptron"}}, ModelError, "Unknown model 'perceptron'"),
        ({"exchange": {"topology": "star"}}, TopologyError, "Unknown topology 'star'"),
        (
            {"exchange": {"topology": "cycle", "self_weight": 0.3}},
            TopologyError,
            "takes no self_weight",
        ),
    ],
)
def test_what_is_wrong_is_found_before_the_folder_is_made(
    sections, error, message, tmp_path: Path
) -> None:
    """Settings that do not fit the data or each other raise with their names; nothing is
    written."""
    with pytest.raises(error, match=message):
        run(tiny(**sections), out=tmp_path / "run", dataset=DIGITS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["dirichlet", "site"])
def test_examples_are_not_ignored(kind: str) -> None:
    """A number of examples is honoured or refused by every kind of partition, never passed over in
    silence."""
    config = no_examples(kind=kind, clients=2, examples=25)
    try:
        sizes = [len(client) for client in prepare(config, dataset=with_sites([30, 45])).clients]
    except InputError:
        return
    assert sizes == [25, 25]
