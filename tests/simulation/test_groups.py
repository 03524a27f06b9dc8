"""The person as the unit through whole runs: tables and arrays, every method, engines, resume."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from proxyfl.cli.main import main
from proxyfl.data.stores.faults import Faults
from proxyfl.data.stores.index import PARTS, Content, Entry
from proxyfl.data.stores.writing import write_store
from proxyfl.errors import ConfigError
from proxyfl.federation.modelfile import about_model
from proxyfl.privacy.guarantee import Unit
from proxyfl.privacy.ledger import Ledger
from proxyfl.records import folder
from proxyfl.simulation.config import Config, from_tree, to_toml
from proxyfl.simulation.prepare import prepare
from proxyfl.simulation.run import resume, run
from tests import ranks
from tests.data.tables import making
from tests.privacy.alike import pld_epsilon

from .engines import StopAt, assert_equal_runs

METHODS = ["alone", "regular", "joint", "fedavg", "fml", "avgpush", "proxyfl"]


def arrays(path: Path, persons: int = 60, **named: bool) -> str:
    """An .npz file in which person i has 1 + i % 5 records, in mixed order."""
    generator = np.random.default_rng(0)
    group = np.repeat(np.arange(persons), 1 + np.arange(persons) % 5)
    group = generator.permutation(group)
    centre = generator.normal(size=(persons, 6))
    x = centre[group] + 0.3 * generator.normal(size=(len(group), 6))
    y = (centre[group, 0] > 0).astype(np.int64)
    kept = {} if named.get("group") is False else {"group": group}
    np.savez(path, x=x.astype(np.float32), y=y, **kept)
    return str(path)


def config(source: Any, **changes: Any) -> Config:
    """Two clients, three rounds, persons as the unit."""
    tree: dict[str, Any] = {
        "methods": ["proxyfl"],
        "rounds": 3,
        "evaluate_every": 3,
        "checkpoint_every": 1,
        "data": {"source": source, "test_fraction": 0.25},
        "partition": {"kind": "iid", "clients": 2},
        "models": {"private": "linear"},
        "learning": {"batch_size": 8},
        "privacy": {"unit": "group", "max_per_group": 3, "noise_multiplier": 2.0},
    }
    for key, value in changes.items():
        tree[key] = tree[key] | value if isinstance(value, dict) else value
    return from_tree(tree)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of every method over arrays with persons, on one worker."""
    folder = tmp_path_factory.mktemp("groups")
    source = arrays(folder / "data.npz")
    run(config(source, methods=METHODS), out=folder / "run")
    return folder


def test_clients_have_whole_persons(tmp_path: Path) -> None:
    """The division and the hold-out keep all records of a person together; B, n and delta count
    persons."""
    prepared = prepare(config(arrays(tmp_path / "data.npz")))
    parts = [client.examples.groups for client in prepared.clients]
    parts.append(prepared.dataset.test.groups)
    persons = [set(part.tolist()) for part in parts if part is not None]
    assert not persons[0] & persons[1] | persons[0] & persons[2]
    of_client = len(persons[0])
    assert of_client == len(persons[1]) == (60 - len(persons[2])) // 2
    client = prepared.assembly("proxyfl").client(0)
    assert client.learner.trainer.sampling_rate == 8 / of_client
    assert client.ledger.delta == 1 / of_client
    assert client.steps == of_client // 8


@pytest.mark.parametrize("method", METHODS)
def test_every_method_states_the_person(method: str, whole: Path) -> None:
    """Rows and ledgers of every method are per group, and epsilon is that of so many persons."""
    rows = [row for row in folder.read_metrics(whole / "run") if row["method"] == method]
    assert {row["epsilon_unit"] for row in rows} == {"group"}
    if method == "alone":
        return
    ledger = Ledger.read(whole / "run" / "ledger" / method / "000.jsonl")
    clients = prepare(config(str(whole / "data.npz"))).clients
    persons = len(set(clients[0].examples.groups.tolist()))  # type: ignore[union-attr]  # named
    if method == "joint":
        persons *= 2
    assert ledger.unit is Unit.GROUP
    assert ledger.epsilon().pld == pld_epsilon(
        sampling_rate=8 / persons, noise_multiplier=2.0, steps=ledger.steps, delta=1 / persons
    )
    assert rows[-1]["epsilon_pld"] == ledger.epsilon().pld


def test_certificate_models_and_report_state_the_person(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The certificate, a model's file and the report's document say what is protected."""
    path = whole / "run"
    assert main(["certificate", str(path), "--method", "proxyfl", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)["certificates"][0]
    assert page["unit"] == "one person with all of their records"
    assert "persons" in page["public"]
    assert "with respect to one person" in page["sentence"]
    assert "mean gradient of each person's records" in page["mechanism"]
    about = about_model(path / "models" / "proxyfl" / "000-proxy.safetensors")
    assert "per patient" in about["epsilon"]
    assert main(["report", str(path), "--json"]) == 0
    capsys.readouterr()
    html = (path / "report.html").read_text()
    assert "one person with all of their records, however many" in html


def test_workers_and_resume_change_nothing(whole: Path, tmp_path: Path) -> None:
    """Two workers, and a run cut off and resumed, equal the run on one worker bit for bit."""
    settings = config(str(whole / "data.npz"), methods=METHODS)
    with pytest.raises(KeyboardInterrupt):
        run(settings, out=tmp_path / "run", callbacks=[StopAt("fml", 1)])
    resume(tmp_path / "run", workers=2)
    assert_equal_runs(whole / "run", tmp_path / "run")


def test_mpi_ranks_change_nothing(whole: Path, tmp_path: Path) -> None:
    """Two MPI ranks give the ledgers, metrics and models of one process, with persons as the
    unit."""
    ranks.needs_mpi()
    settings = config(str(whole / "data.npz"), methods=["joint", "proxyfl"])
    run(settings, out=tmp_path / "one")
    (tmp_path / "config.toml").write_text(to_toml(settings))
    out = ["--out", str(tmp_path / "two"), "--json", "--workers", "1"]
    words = ["-m", "proxyfl.cli.main", "run", str(tmp_path / "config.toml"), *out]
    done = ranks.run(2, words)
    assert done.returncode == 0, done.stderr
    assert_equal_runs(tmp_path / "one", tmp_path / "two")


def test_an_image_store_with_persons(tmp_path: Path) -> None:
    """A store that names persons trains with the person as the unit, as the same images in memory
    do."""
    persons = np.arange(120) // 4
    images = np.random.default_rng(0).integers(0, 256, (120, 1, 6, 6), dtype=np.uint8)
    entries = [
        Entry(label=str(i // 4 % 2), person=f"p{i // 4:02d}", part=PARTS[i >= 80])
        for i in range(120)
    ]
    content = Content((1, 6, 6), "uint8", ("0", "1"), {"by": "a test"})

    def read(start: int, some: Sequence[Entry]) -> Iterator[npt.NDArray[Any]]:
        return iter(images[start : start + len(some)])

    write_store(tmp_path / "store", content, entries, read, Faults())
    np.savez(
        tmp_path / "arrays.npz",
        x_train=images[:80],
        y_train=persons[:80] % 2,
        group_train=persons[:80],
        x_test=images[80:],
        y_test=persons[80:] % 2,
        group_test=persons[80:],
    )
    learning = {"batch_size": 4}
    run(config(str(tmp_path / "store"), learning=learning), out=tmp_path / "one")
    other = config(str(tmp_path / "arrays.npz"), learning=learning)
    run(other, out=tmp_path / "two")
    ledger = Ledger.read(tmp_path / "one" / "ledger" / "proxyfl" / "000.jsonl")
    assert ledger.unit is Unit.GROUP
    assert {charge.sampling_rate for charge in ledger.charges} == {4 / 10}
    assert_equal_runs(tmp_path / "one", tmp_path / "two")


def test_a_table_with_persons(tmp_path: Path) -> None:
    """Sites' tables whose schema names the person train with the person as the unit."""
    files = []
    for i in range(2):
        table = making.rows(80, seed=i)
        for k, line in enumerate(table):
            line[0] = f"site {i} patient {k // 4}"
        files.append(str(making.write(tmp_path / f"site{i}.csv", table)))
    schema = tmp_path / "schema.toml"
    schema.write_text(making.schema.to_toml(making.SCHEMA))
    data = {"schema": str(schema)}
    settings = config(tuple(files), data=data, partition={"kind": "site"})
    run(settings, out=tmp_path / "run")
    ledger = Ledger.read(tmp_path / "run" / "ledger" / "proxyfl" / "000.jsonl")
    assert ledger.unit is Unit.GROUP
    groups = prepare(settings).clients[0].examples.groups
    assert groups is not None
    assert 10 <= len(groups.unique()) < 20
    assert ledger.segments()[0].sampling_rate == 8 / len(groups.unique())


def test_without_persons_it_is_refused_by_name(tmp_path: Path) -> None:
    """Arrays without groups, and a schema without a person, are refused with what to do."""
    with pytest.raises(ConfigError, match="array 'group'"):
        prepare(config(arrays(tmp_path / "data.npz", group=False)))
    table = making.write(tmp_path / "site.csv", making.rows(80))
    text = making.schema.to_toml(making.SCHEMA)
    schema = tmp_path / "schema.toml"
    nameless = text.replace('person = "patient"\n', "")
    schema.write_text(nameless + '\n[columns.patient]\ntype = "ignored"\n')
    settings = config(
        (str(table),), data={"schema": str(schema)}, partition={"kind": "site", "clients": 1}
    )
    with pytest.raises(ConfigError, match="person = "):
        prepare(settings)


def test_a_budget_is_per_person(tmp_path: Path) -> None:
    """The plan turns a budget into steps at the rate of persons, and declared persons count."""
    source = arrays(tmp_path / "data.npz")
    privacy = {"budget": 1.0, "delta": 1e-3}
    few = prepare(config(source, rounds=30, privacy=privacy))
    many = prepare(config(source, rounds=30, privacy=privacy | {"examples": 2000}))
    steps = [
        sum(each.steps(0, 2) for each in found.presences["proxyfl"] if each.present)
        for found in (few, many)
    ]
    assert steps[0] < steps[1]


def test_max_per_group_needs_groups() -> None:
    """The most records of a person, without persons, is an error that names the setting."""
    with pytest.raises(ConfigError, match=r"max_per_group=3 is for"):
        from_tree({"privacy": {"max_per_group": 3}})
    with pytest.raises(ConfigError, match=r"privacy\.unit"):
        from_tree({"privacy": {"unit": "patient"}})
