"""Measures in groups of a client's own test persons."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from proxyfl.cli.main import main
from proxyfl.data.tables.schema import Column, Label, Schema
from proxyfl.data.tables.values import groups_of
from proxyfl.errors import ConfigError, RunError
from proxyfl.federation.subgroups import judge_groups
from proxyfl.measures import Predictions
from proxyfl.simulation.config import load
from proxyfl.simulation.run import run
from proxyfl.simulation.subgroups import subgroups
from proxyfl.tasks import classification

TWO = classification(("no", "yes"))


def said(labels: np.ndarray, strength: np.ndarray, seed: int = 0) -> Predictions:
    """Logits that follow the labels by ``strength``, with noise."""
    noise = np.random.default_rng(seed).normal(size=len(labels))
    second = strength * (2 * labels - 1) + noise
    return Predictions(np.stack([np.zeros(len(labels)), second], 1), labels)


def judged(joined: Predictions, alone: Predictions | None, group: list[str], **more: object):
    settings = {"measure": "auroc", "task": TWO, "seed": 3} | more
    persons = settings.pop("persons", None)
    return {
        each.name: each
        for each in judge_groups(joined, alone, group, persons, joined.labels, **settings)
    }


def test_a_group_that_loses_is_warned_of_and_no_other() -> None:
    """Joining helps one group and harms the other: only that one falls, by its interval."""
    labels = np.arange(400) % 2
    women = np.arange(400) < 200
    alone = said(labels, np.full(400, 1.0))
    joined = said(labels, np.where(women, 2.0, 0.1), seed=1)
    found = judged(joined, alone, ["f" if each else "m" for each in women])
    assert not found["f"].falls
    assert found["m"].falls
    gain = found["m"].gain
    assert gain.value == pytest.approx(found["m"].joined.value - found["m"].alone.value)
    assert gain.interval[0] < gain.value < gain.interval[1] < 0
    same = judged(alone, alone, ["f"] * 400)["f"]
    assert same.gain.interval == (0, 0)
    assert not same.falls
    # of an error, less is better: the same harm has the same sign
    by_error = judged(joined, alone, ["f" if each else "m" for each in women], measure="brier")
    assert by_error["m"].falls
    assert not by_error["f"].falls


def test_the_interval_is_over_persons() -> None:
    """Ten records a person: the interval is as wide as of one record each, not narrower."""
    labels = np.arange(40) % 2
    one = said(labels, np.full(40, 0.7))
    every = one.taken(np.repeat(np.arange(40), 10))
    persons = np.repeat(np.arange(40), 10)
    by_person = judged(every, None, ["a"] * 400, persons=persons)["a"]
    by_record = judged(every, None, ["a"] * 400)["a"]
    plain = judged(one, None, ["a"] * 40)["a"]
    assert by_person.persons == 40
    assert by_person.joined == plain.joined
    width = np.diff(by_person.joined.interval)
    assert width > 2 * np.diff(by_record.joined.interval)


@pytest.mark.parametrize(("few", "is_judged"), [(4, False), (5, True)])
def test_fewer_than_five_persons_of_a_class_are_not_judged(few: int, is_judged: bool) -> None:
    """Persons count, not records: four with two records each are four."""
    labels = np.array([1] * (2 * few) + [0] * 30)
    persons = np.concatenate([np.repeat(np.arange(few), 2), 100 + np.arange(30)])
    model = said(labels, np.ones(len(labels)))
    found = judged(model, model, ["a"] * len(labels), persons=persons)["a"]
    assert (found.joined is not None) == is_judged
    assert (found.gain is not None) == is_judged
    assert found.reason == ("" if is_judged else "4 test persons with yes, fewer than 5")


def test_groups_of_one_and_a_person_in_two_groups() -> None:
    """A group of one person says nothing but its size and why; a person whose records lie in two
    groups counts in both, and in each with the records there alone."""
    labels = np.arange(60) % 2
    persons = np.arange(60) // 2  # one record of each class
    model = said(labels, np.ones(60))
    bands = ["old" if each % 3 else "young" for each in range(60)]
    bands[59] = "oldest"
    groups = judged(model, model, bands, persons=persons)
    one = groups["oldest"]
    assert (one.persons, one.examples) == (1, 1)
    assert one.joined is None
    assert one.alone is None
    assert one.gain is None
    assert one.reason == "0 test persons with no, fewer than 5"
    assert not one.falls
    old = [row for row, band in enumerate(bands) if band == "old"]
    young = [row for row, band in enumerate(bands) if band == "young"]
    for name, rows in (("old", old), ("young", young)):
        assert groups[name].examples == len(rows)
        assert groups[name].persons == len({int(persons[row]) for row in rows})
        apart = judged(model.taken(np.array(rows)), None, [name] * len(rows), persons=persons[rows])
        assert groups[name].joined == apart[name].joined
    assert groups["old"].persons + groups["young"].persons > 30


SCHEMA = Schema(
    Label("died", classes=("no", "yes")),
    {
        "sex": Column("category", values=("f", "m"), unknown="other"),
        "smokes": Column("yes/no"),
        "age": Column("number", unit="years", range=(20.0, 90.0)),
        "grade": Column("number", range=(1.0, 4.0), indicator=False),
        "bmi": Column("number", range=(15.0, 45.0), encoding="bins", knots=(25.0, 30.0)),
    },
)


def test_values_come_back_from_features(tmp_path: Path) -> None:
    """Each kind of column, at the edges of bands and where values are missing or unknown."""
    from proxyfl.data.tables.encoding import encode
    from proxyfl.data.tables.faults import Tally
    from proxyfl.data.tables.reading import read

    path = tmp_path / "a.csv"
    rows = [
        "f,yes,39.9,1,24.9,no",
        "m,no,40,2,25,yes",
        "x,,59.999,3,,no",
        ",yes,60,4,31,yes",
        "f,no,,2,44,no",
        "f,no,95,2,44,no",
    ]
    path.write_text("\n".join(["sex,smokes,age,grade,bmi,died", *rows]) + "\n")
    (part,) = read(path)
    x = encode(SCHEMA, part, Tally())[0].x
    assert groups_of(SCHEMA, x, "sex") == ["f", "m", "other", "missing", "f", "f"]
    assert groups_of(SCHEMA, x, "smokes") == ["yes", "no", "missing", "yes", "no", "no"]
    bands = groups_of(SCHEMA, x, "age", (40, 60))
    middle, old = "40 to below 60 years", "60 and above years"
    assert bands == ["below 40 years", middle, middle, old, "missing", old]
    assert groups_of(SCHEMA, x, "grade") == ["1", "2", "3", "4", "2", "2"]
    assert groups_of(SCHEMA, x, "bmi")[:3] == ["15 to 25", "25 to 30", "missing"]
    # nobody is below 30 or from 61 to below 80: no such group
    gaps = groups_of(SCHEMA, x, "age", (30, 40, 61, 80))
    assert set(gaps) == {
        "30 to below 40 years",
        "40 to below 61 years",
        "missing",
        "80 and above years",
    }
    with pytest.raises(ConfigError, match="no feature column 'died'"):
        groups_of(SCHEMA, x, "died")
    for cut in (float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="rising cut points of 'age'"):
            groups_of(SCHEMA, x, "age", (cut,))
    with pytest.raises(ConfigError, match=r"no feature column 'agee'.*Did you mean 'age'"):
        groups_of(SCHEMA, x, "agee")
    with pytest.raises(ConfigError, match=r"rising cut points of 'age' within its range, 20 to 90"):
        groups_of(SCHEMA, x, "age", (60, 40))
    with pytest.raises(ConfigError, match="'sex' is of the type category"):
        groups_of(SCHEMA, x, "sex", (1,))
    many = np.repeat(x[:1], 30, 0)
    many[:, 6] = np.linspace(-1, 1, 30)
    assert len(set(groups_of(SCHEMA, many, "age", (40, 60)))) == 3
    with pytest.raises(ConfigError, match="--bands 55"):
        groups_of(SCHEMA, many, "age")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on the four hospitals."""
    out = tmp_path_factory.mktemp("subgroups") / "run"
    changes = {
        "rounds": "3",
        "methods": '["alone", "proxyfl"]',
        "data.source": "heart_disease",
        "partition.kind": "site",
        "models.private": "logistic",
        "models.proxy": "linear",
        "learning.batch_size": "20",
    }
    run(load(None, [f"{name}={value}" for name, value in changes.items()]), out=out)
    return out


def test_the_command(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By sex and age band, of the client's own test part: the groups are all of it, the whole as
    one group has the run's own score, and nothing is written."""
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    capsys.readouterr()
    line = ["subgroups", str(finished), "--client", "cleveland", "--by", "sex", "--by", "age"]
    assert main([*line, "--bands", "55", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    persons = {}
    for each in document["groups"]:
        persons[each["column"]] = persons.get(each["column"], 0) + each["persons"]
    assert persons["sex"] == persons["age"]
    assert "no epsilon covers it" in document["notes"][0]
    assert main([*line, "--bands", "55"]) == 0
    shown = capsys.readouterr().out
    assert "below 55" in shown
    assert "no epsilon covers" in re.sub(r"\s+", " ", shown)
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before

    everyone = subgroups(finished, ["age"], client="cleveland", bands=[29])
    (group,) = [each for each in everyone.by["age"] if each.joined is not None]
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").open()]
    last = [row for row in rows if row["name"] == "cleveland" and row["round"] == 2]
    for method, score in (("alone", group.alone), ("proxyfl", group.joined)):
        (row,) = [each for each in last if each["method"] == method]
        assert score.value == pytest.approx(row[f"private_own_{everyone.measure}"], abs=1e-3)


def test_refusals(finished: Path) -> None:
    """No client, an unknown one, no column of numbers for the bands, a method that is not there."""
    with pytest.raises(RunError, match="Name one with --client"):
        subgroups(finished, ["sex"])
    with pytest.raises(RunError, match="no 'nowhere'"):
        subgroups(finished, ["sex"], client="nowhere")
    with pytest.raises(ConfigError, match="got none with --by"):
        subgroups(finished, ["sex"], client="cleveland", bands=[50])
    with pytest.raises(ConfigError, match="no feature column 'sexx'"):
        subgroups(finished, ["sexx"], client="cleveland")
    with pytest.raises(RunError, match="no method 'fedavg'"):
        subgroups(finished, ["sex"], client="cleveland", method="fedavg")
