"""A CSV file per hospital: three nodes that agree on the schema in their manifest."""

import csv
import dataclasses
import random
import re
import sqlite3
import tarfile
import tomllib
from contextlib import closing
from pathlib import Path

import pytest
import torch

from proxyfl.cli.main import main
from proxyfl.data.tables import schema as schemas
from proxyfl.errors import ConfigError, DataError
from proxyfl.node import assembly
from proxyfl.node.exchange import auditlog
from proxyfl.node.members import holdout
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members import site as sites
from proxyfl.node.members.site import Data, Learning, Network, Site
from proxyfl.node.observe import status
from proxyfl.node.preflight import Line, preflight
from proxyfl.node.supervisor import Node
from proxyfl.node.trial import Layout, free_ports
from proxyfl.privacy.account import Account
from proxyfl.privacy.guarantee import Unit
from proxyfl.privacy.ledger import Ledger
from proxyfl.simulation.subgroups import subgroups
from tests.waiting import PATIENCE

from .federations import change, predicted, quick, running, total_weight, trial
from .test_node import final_proxy

NAMES = ("north", "south", "east")
SCHEMA = """\
name = "stroke"
person = "patient"

[label]
column = "died"
classes = ["alive", "dead"]
written = {alive = ["0", "no"], dead = ["1", "yes"]}

[columns.age]
type = "number"
unit = "years"
range = [18, 100]

[columns.pressure]
type = "number"
unit = "mmHg"
range = [80, 220]

[columns.smoker]
type = "yes/no"
"""

Record = dict[str, str]


def records(count: int, seed: int) -> list[Record]:
    """Invented patients, of whom the old with a high pressure die more often."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        age = draw.uniform(20, 95)
        pressure = draw.uniform(90, 200)
        dies = (age - 55) / 20 + (pressure - 140) / 40 + draw.gauss(0, 0.5) > 0
        found.append(
            {
                "patient": f"p{seed}-{number}",
                "age": f"{age:.1f}",
                "pressure": f"{pressure:.1f}",
                "smoker": draw.choice(["yes", "no"]),
                "died": "1" if dies else "0",
            }
        )
    return found


def write_csv(
    path: Path,
    rows: list[Record],
    *,
    separator: str = ",",
    decimal: str = ".",
    columns: tuple[str, ...] = ("patient", "age", "pressure", "smoker", "died"),
) -> None:
    """A file as one hospital's program writes it."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(columns)
        for row in rows:
            writer.writerow([row[name].replace(".", decimal) for name in columns])


DIALECTS = {
    "north": {},
    "south": {"separator": ";", "decimal": ","},
    "east": {"separator": "\t", "columns": ("died", "smoker", "pressure", "age", "patient")},
}


@pytest.fixture
def hospitals(tmp_path: Path) -> Layout:
    """Three sites made by the commands, each with a CSV in its own dialect."""
    (tmp_path / "schema.toml").write_text(SCHEMA)
    ports = free_ports(6)
    cards = []
    for at, name in enumerate(NAMES):
        place = tmp_path / name
        address = f"127.0.0.1:{ports[at]}"
        assert main(["node", "init", str(place), "--address", address]) == 0
        # a key that every repetition of a test holds the same patients out by
        (place / holdout.FILE).write_text("0" * 64)
        cards.append(str(place / f"{name}.card.toml"))
        write_csv(place / "patients.csv", records(80, seed=at), **DIALECTS[name])  # type: ignore[arg-type]  # a test's own words
        network = Network(
            listen=address, patience=PATIENCE, heartbeat=1.0, status_port=ports[3 + at]
        )
        change(place, lambda site, network=network: described(site, network))
    new = ["federation", "new", str(tmp_path), *cards, "--name", "stroke"]
    terms = ["--schema", str(tmp_path / "schema.toml"), "--rounds", "4"]
    assert main([*new, *terms, "--measure", "auroc"]) == 0
    for name in NAMES:
        place, manifest = str(tmp_path / name), str(tmp_path / "manifest.toml")
        assert main(["node", "accept", place, manifest]) == 0
    places = tuple(tmp_path / name for name in NAMES)
    return Layout(tmp_path, manifests.read(tmp_path), places)


def described(site: Site, network: Network) -> Site:
    """A site's own settings: its file, a private model for tables, quick rounds."""
    return dataclasses.replace(
        site,
        data=Data(source="patients.csv"),
        model=sites.Model("tabular"),
        learning=Learning(batch_size=20, steps_per_round=3),
        privacy=sites.Privacy(budget=5.0),
        network=network,
    )


def test_a_site_protects_persons_and_keeps_an_account(hospitals: Layout) -> None:
    """Every patient has two rows. Under real noise one site protects persons, and what its rounds
    cost stands in the institution's account when they are released."""
    place = hospitals.sites[0]
    write_csv(place / "patients.csv", 2 * records(60, seed=0))
    account = place / "account"
    Account.open(account, delta=1e-4, budget=4.0, unit=Unit.GROUP)
    privacy = sites.Privacy(unit="group", account="account", delta=1e-4, budget=4.0)
    change(place, lambda site: dataclasses.replace(site, privacy=privacy))
    with running(hospitals, only=[]) as made:
        for each in hospitals.sites:
            made.start(each, seed=None)
        made.join()
    assert set(made.ended.values()) == {"finished"}
    ledger = Ledger.read(place / assembly.LEDGER_FILE)
    assert (ledger.unit, ledger.simulated, ledger.steps) == (Unit.GROUP, False, 12)
    entries = Account(account).entries()
    assert [entry.charge for entry in entries] == list(ledger.charges)
    assert {entry.study for entry in entries} == {"federation stroke"}
    assert total_weight(hospitals) == 3


def test_a_schema_that_names_a_person_makes_the_patient_the_unit(hospitals: Layout) -> None:
    """A site whose site.toml leaves the unit open opens a ledger per patient, and preflight says
    so."""
    settings, folder = sites.read(hospitals.sites[0])
    assert settings.privacy.unit == "auto"
    lines = preflight(settings, folder)
    assert any("per patient" in line.text for line in lines)
    with Node(settings, folder, seed=1) as node:
        ledger = node.client.ledger
    assert ledger.unit is Unit.GROUP
    assert "per patient" in str(ledger.epsilon())


def test_nodes_over_tables_equal_the_simulation(hospitals: Layout) -> None:
    """Three files, three dialects, one schema: the sites train together, the proxies are the
    simulation's, bit for bit, and the gain is in the manifest's measure."""
    with running(hospitals) as made:
        made.join()
    assert set(made.ended.values()) == {"finished"}
    expected = predicted(hospitals.folder)
    for place, outcome in zip(hospitals.sites, expected, strict=True):
        assert torch.equal(final_proxy(place), outcome.proxy), place.name
        assert outcome.joined == status.rows(place)[-1]["private_auroc"]
    assert total_weight(hospitals) == 3
    check_subgroups(hospitals.sites[0])


def check_subgroups(place: Path) -> None:
    """A site that has ended keeps both models for its owner alone, and judges them at home: the
    whole test part as one group has the recorded scores."""
    for model in (place / "models").glob("*/*.safetensors"):
        assert model.stat().st_mode & 0o077 == 0, model
        assert model.parent.stat().st_mode & 0o077 == 0, model
    found = subgroups(place, ["age", "smoker"], bands=[19])
    (group,) = found.by["age"]
    for method, score in (("alone", group.alone), ("proxyfl", group.joined)):
        row = status.rows(place, method)[-1]
        assert score is not None
        assert score.value == pytest.approx(row["private_auroc"], abs=1e-3)
    assert {each.name for each in found.by["smoker"]} <= {"yes", "no"}
    assert "no epsilon covers it" in found.notes[0]


def test_nodes_protect_persons(hospitals: Layout) -> None:
    """With persons as the unit the sites sample and charge by persons, and their proxies are the
    simulation's, bit for bit."""
    for at, place in enumerate(hospitals.sites):
        rows = records(80, seed=at)
        for number, row in enumerate(rows):
            row["patient"] = f"p{at}-{number // 2}"
        write_csv(place / "patients.csv", rows, **DIALECTS[place.name])  # type: ignore[arg-type]  # a test's own words
        change(place, by_person)
    with running(hospitals) as made:
        made.join()
    assert set(made.ended.values()) == {"finished"}
    expected = predicted(hospitals.folder)
    for place, outcome in zip(hospitals.sites, expected, strict=True):
        ledger = made.nodes[place.name].client.ledger
        assert ledger.unit is Unit.GROUP
        # 40 patients, of whom some are held out
        own = assembly.load(hospitals.manifest, *sites.read(place))
        assert own.train.groups is not None
        persons = len(own.train.groups.unique())
        assert 20 < persons < 40
        assert {charge.sampling_rate for charge in ledger.charges} == {8 / persons}
        assert torch.equal(final_proxy(place), outcome.proxy), place.name


def by_person(site: Site) -> Site:
    """A site that protects persons, and takes one record of each in a step."""
    return dataclasses.replace(
        site,
        privacy=sites.Privacy(unit="group", max_per_group=1, budget=5.0),
        learning=Learning(batch_size=8, steps_per_round=3),
    )


def test_all_sites_encode_alike(hospitals: Layout) -> None:
    """The same patients in three dialects give the same numbers at every site."""
    shown = []
    for place in hospitals.sites:
        write_csv(
            place / "patients.csv",
            records(40, seed=9),
            **DIALECTS[place.name],  # type: ignore[arg-type]  # a test's own words
        )
        own = assembly.load(hospitals.manifest, *sites.read(place))
        rows = []
        for part in (own.train, own.test):
            inputs = part.take(torch.arange(len(part)))
            labels = part.labels.tolist()
            rows += zip(inputs.tolist(), labels, strict=True)
        shown.append(sorted(rows))
    assert len(shown[0]) == 40
    assert shown[0] == shown[1] == shown[2]


def test_a_file_that_does_not_fit_the_schema_is_refused(hospitals: Layout) -> None:
    """A column that is missing, and a class that the schema lacks, are named."""
    place = hospitals.sites[0]
    write_csv(place / "patients.csv", records(40, seed=1), columns=("age", "died"))
    with pytest.raises(DataError, match="pressure"):
        assembly.load(hospitals.manifest, *sites.read(place))
    rows = [row | {"died": "perhaps"} for row in records(40, seed=1)]
    write_csv(place / "patients.csv", rows)
    with pytest.raises(DataError, match="perhaps"):
        assembly.load(hospitals.manifest, *sites.read(place))


def test_a_manifest_carries_its_schema(hospitals: Layout) -> None:
    """It reads back equal; the order of columns is part of the hash; input must follow from it."""
    agreed = hospitals.manifest
    assert agreed.schema == schemas.parse(tomllib.loads(SCHEMA))
    assert agreed.input == manifests.Input((6,), ("alive", "dead"))
    assert agreed.schema is not None
    columns = dict(reversed(agreed.schema.columns.items()))
    turned = dataclasses.replace(agreed.schema, columns=columns)
    other = dataclasses.replace(agreed, schema=turned)
    assert other.digest != agreed.digest
    following = dataclasses.replace(manifests.successor(agreed), schema=turned)
    with pytest.raises(ConfigError, match="changes schema"):
        manifests.check_successor(agreed, following)
    with pytest.raises(ConfigError, match="not what its schema gives"):
        dataclasses.replace(agreed, input=manifests.Input((7,), ("alive", "dead")))


def test_a_federation_ends_on_its_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the date has come no round begins; nobody waits for who has ended, mass balances."""
    layout = trial.lay_out(tmp_path, sites=3, rounds=500, template=quick(patience=100.0))
    first = layout.sites[0]

    def over(agreed: manifests.Manifest, now: float) -> bool:
        return len(status.rows(first)) >= 3

    monkeypatch.setattr(manifests.Manifest, "is_over", over)
    with running(layout) as made:
        made.join()
    assert set(made.ended.values()) == {"finished"}
    rounds = [len(status.rows(place)) for place in layout.sites]
    assert rounds[0] == 3
    assert max(rounds) < 10
    assert total_weight(layout) == 3
    for place in layout.sites:
        waits = [entry.get("seconds", 0) for entry in auditlog.read(place / auditlog.FILE)]
        assert max(waits) < 60, "a site waited for one that has ended, until it lost patience"


def test_a_date_alone_is_its_end_in_utc() -> None:
    """A round may begin on the named day, and not on the next."""
    agreed = manifests.Manifest("f", ends="1970-01-02")
    assert not agreed.is_over(2 * 86400 - 1)
    assert agreed.is_over(2 * 86400)
    assert manifests.Manifest("f", ends="1970-01-01T01:00:00+01:00").is_over(0)
    assert not manifests.Manifest("f").is_over(1e12)


@pytest.mark.parametrize("text", ["tomorrow", "2027-13-01", "31.3.2027"])
def test_an_end_that_is_no_date_is_refused(text: str) -> None:
    """The error shows how to write one."""
    with pytest.raises(ConfigError, match="2027-03-31"):
        manifests.Manifest("f", ends=text)


def test_preflight_warns_of_a_form_that_is_recognised_at_each_start(hospitals: Layout) -> None:
    """Left at `auto`, one byte of one record changed the sides of others, whose names were then
    read otherwise. What preflight proposes removes the warning, and such a byte is refused."""
    place = hospitals.sites[0]
    settings, folder = sites.read(place)
    path = folder / settings.data.source
    named = [{**row, "patient": f"Müller {row['patient']}"} for row in records(80, seed=0)]
    write_csv(path, named)
    sides = sides_of(hospitals, settings, folder)
    line = form_of(settings, folder)
    assert line.warn
    stated = dict(re.findall(r'(\w+) = "([\w-]+)"', line.text))
    assert stated == {"separator": "comma", "decimal": "point", "encoding": "utf-8"}
    own = dataclasses.replace(settings, data=dataclasses.replace(settings.data, **stated))
    assert not form_of(own, folder).warn
    assert sides_of(hospitals, own, folder) == sides
    path.write_bytes(path.read_bytes().replace("Müller p0-7,".encode(), b"M\xfcller p0-7,"))
    moved = [
        before - now
        for before, now in zip(sides, sides_of(hospitals, settings, folder), strict=True)
    ]
    assert sum(map(len, moved)) > 10
    with pytest.raises(DataError, match="cannot be read as utf-8"):
        assembly.load(hospitals.manifest, own, folder)


def sides_of(layout: Layout, settings: Site, folder: Path) -> list[set[float]]:
    """The training and the test part, each record by its age."""
    own = assembly.load(layout.manifest, settings, folder)
    found = []
    for part in (own.train, own.test):
        found.append(set(part.take(torch.arange(len(part)))[:, 0].tolist()))
    return found


def form_of(settings: Site, folder: Path) -> Line:
    (line,) = [each for each in preflight(settings, folder) if each.check == "form of the file"]
    return line


def test_a_table_that_changes_is_refused(hospitals: Layout, tmp_path: Path) -> None:
    """A site whose file is another than at its last start says so and charges nothing; it starts
    when its operator accepts the change, or the file is back."""
    place = tmp_path / "north"
    settings, folder = sites.read(place)

    def start() -> list[str]:
        said: list[str] = []
        with Node(sites.read(place)[0], folder, say=said.append):
            return said

    start()
    before = (place / "patients.csv").read_bytes()
    rows = records(80, seed=0)
    write_csv(place / "patients.csv", [*rows, *records(3, seed=9)], **DIALECTS["north"])  # type: ignore[arg-type]  # a test's own words
    with pytest.raises(DataError, match=r"have changed since.*Nothing was charged.*accept"):
        start()
    assert (
        not (place / assembly.LEDGER_FILE).exists()
        or not Ledger.read(place / assembly.LEDGER_FILE).charges
    )
    (place / "patients.csv").write_bytes(before)
    assert not start()
    write_csv(place / "patients.csv", rows[:-1], **DIALECTS["north"])  # type: ignore[arg-type]  # a test's own words
    data = dataclasses.replace(settings.data, changes="accept")
    change(place, lambda site: dataclasses.replace(site, data=data))
    assert any("data.changes accepts that" in line for line in start())
    assert not start()


def test_a_site_reads_its_database(hospitals: Layout, tmp_path: Path) -> None:
    """A site whose records are in SQLite has what the file had, and a backup leaves them out."""
    place = tmp_path / "east"
    settings, folder = sites.read(place)
    manifest = hospitals.manifest
    from_file = assembly.load(manifest, settings, folder)
    names = ("patient", "age", "pressure", "smoker", "died")
    with closing(sqlite3.connect(place / "cohort.sqlite")) as connection, connection:
        connection.execute(f"CREATE TABLE cohort ({', '.join(names)})")
        for row in records(80, seed=2):
            connection.execute(
                "INSERT INTO cohort VALUES (?, ?, ?, ?, ?)", [row[name] for name in names]
            )
    data = dataclasses.replace(
        settings.data, source="sqlite:///cohort.sqlite", query="SELECT * FROM cohort"
    )
    change(place, lambda site: dataclasses.replace(site, data=data))
    own = sites.read(place)[0]
    from_database = assembly.load(manifest, own, folder)
    for one, other in (
        (from_file.train, from_database.train),
        (from_file.test, from_database.test),
    ):
        rows = torch.arange(len(one))
        assert sorted(one.take(rows).tolist()) == sorted(other.take(rows).tolist())
    with Node(own, folder):
        pass
    assert main(["node", "backup", str(place), str(tmp_path / "east.tar")]) == 0
    with tarfile.open(tmp_path / "east.tar") as archive:
        inside = archive.getnames()
    assert inside
    assert not any("cohort" in name for name in inside)
