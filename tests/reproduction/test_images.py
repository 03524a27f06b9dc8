"""docs/research/medical.md: its tables are made from the recorded studies; a verdict follows from
its rule."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from proxyfl.sweeps import file as sweep
from reproduction import catalogue, imageplots, images
from reproduction.catalogue import IMAGES
from reproduction.records import Group, Record
from reproduction.series import Results
from tests.reproduction.samples import group, record, results

TEXT = images.PAGE.read_text(encoding="utf-8") if images.PAGE.is_file() else ""
METHODS = {"joint", "regular", "fedavg", "cwt", "avgpush", "proxyfl", "alone", "fml"}


def kvasir(proxyfl: float, fml: float, hub: float, decentralized: float = 0.5) -> Record:
    """A record of Kvasir in which models score as given, and a little better at one client."""
    scored = {
        ("proxyfl", "private"): proxyfl,
        ("proxyfl", "proxy"): decentralized,
        ("avgpush", "proxy"): decentralized,
        ("fml", "private"): fml,
        ("fml", "received"): hub,
        ("fedavg", "received"): hub,
    }
    groups = [
        group(method, role, [[score, score + 0.01]]) for (method, role), score in scored.items()
    ]
    return record("images/kvasir", groups, **{"data.source": "kvasir.store"})


@pytest.mark.parametrize(
    ("proxyfl", "fml", "hub", "little", "above"),
    [
        (0.5, 0.4, 0.15, "holds", "holds"),
        (0.5, 0.6, 0.45, "does not hold here", "does not hold here"),
    ],
)
def test_verdicts_follow_from_the_rules(
    tmp_path: Path, proxyfl: float, fml: float, hub: float, little: str, above: str
) -> None:
    """A hub's model learns little below half of its decentralized counterpart's gain over chance;
    ProxyFL is above FML with the higher mean."""
    found = results(tmp_path, kvasir(proxyfl, fml, hub))
    assert images.little(found).verdict == little
    assert images.little(found).count.endswith(" of 2")
    assert images.above_fml(found).verdict == above


def over_rounds(method: str, *means: float) -> Group:
    """A method's private models, two clients with one seed, scored after every fifth round."""
    scores = [[mean, mean + 0.02] for mean in means]
    rounds = [5 * (i + 1) for i in range(len(means))]
    one = group(method, "private", [[0.0, 0.0]])
    return replace(
        one,
        rounds=rounds,
        accuracy=[scores],
        macro_accuracy=[scores],
        epsilon=[2.0 for _ in rounds],
    )


@pytest.mark.parametrize(
    ("fml", "proxyfl", "verdict"),
    [
        ((0.5, 0.7, 0.6), (0.5, 0.6, 0.7), "holds"),
        ((0.5, 0.6, 0.7), (0.5, 0.7, 0.6), "does not hold here"),
        ((0.5, 0.7, 0.6), (0.5, 0.7, 0.6), "holds partly"),
    ],
)
def test_a_peak_is_before_the_last_round(
    tmp_path: Path, fml: tuple[float, ...], proxyfl: tuple[float, ...], verdict: str
) -> None:
    """FML peaks early if its last mean is below its best before; ProxyFL improves to the end if its
    last is the best."""
    groups = [over_rounds("fml", *fml), over_rounds("proxyfl", *proxyfl)]
    tissue = replace(record("images/histopathology", groups), rounds=15)
    assert images.peaks(results(tmp_path, tissue)).verdict == verdict


def test_a_comparison_says_after_how_many_rounds_it_was_met(tmp_path: Path) -> None:
    """The paper says "throughout training": beside the end, the rounds on the way are counted."""
    groups = [over_rounds("proxyfl", 0.5, 0.6, 0.7), over_rounds("fml", 0.6, 0.5, 0.6)]
    endoscopy = replace(record("images/kvasir", groups), rounds=15)
    (row,) = images.above_fml(results(tmp_path, endoscopy)).rows
    assert row.met
    assert row.more == "2/3"


def test_other_studies_do_not_count(tmp_path: Path) -> None:
    """The claim about FML is about Kvasir: others are shown in brackets."""
    groups = [group("proxyfl", "private", [[0.5, 0.6]]), group("fml", "private", [[0.4, 0.5]])]
    found = results(tmp_path, record("images/histopathology", groups))
    (row,) = images.above_fml(found).rows
    assert row.met
    assert not row.counts
    assert images.above_fml(found).verdict == "not tested"


def test_a_verdict_says_of_which_study_and_how_far(tmp_path: Path) -> None:
    """A study has a line of its own for each statement about it, with its rounds and seeds."""
    groups = [
        group("proxyfl", "private", [[0.5, 0.6]]),
        group("fml", "private", [[0.4, 0.5]]),
        group("regular", "proxy", [[0.7, 0.7]]),
    ]
    tissue = record("images/slides", groups)
    text = images.verdicts(results(tmp_path, tissue, kvasir(0.5, 0.6, 0.15)))
    lines = text.splitlines()[2:]
    assert ["kvasir" in line for line in lines] == [True, True, False]
    assert "10 of 10 rounds, 1 seed | 1 of 2 comparisons | **met partly, not significant**" in text


def test_a_verdict_says_what_may_be_chance(tmp_path: Path) -> None:
    """Beside a verdict stands how many of the comparisons that meet it are clear over clients.
    Where none is, nothing is said to hold."""
    told = {1: "holds", 0: "met, not significant"}
    for scores, clear in (([0.5, 0.6, 0.7], 1), ([0.5, 0.1, 0.9], 0)):
        groups = [
            group("proxyfl", "private", [scores]),
            group("regular", "proxy", [[0.29, 0.41, 0.5]]),
        ]
        found = results(tmp_path / str(clear), record("images/slides", groups))
        line = images.verdicts(found).splitlines()[2]
        assert line.endswith(f"1 of 1 comparisons | **{told[clear]}** | {clear} |")


def test_a_few_rounds_are_too_early(tmp_path: Path) -> None:
    """A study that did less than half of its rounds is shown, and judges nothing."""
    early = replace(kvasir(0.5, 0.4, 0.15), rounds=30)
    found = results(tmp_path, early)
    assert images.above_fml(found).verdict == "not tested"
    text = images.verdicts(found)
    assert text.count("**too early to say**") == 2
    assert "10 of 30 rounds, 1 seed | 1 of 1 comparisons" in text


def test_settings_are_compared_apart(tmp_path: Path) -> None:
    """Pixels and features of one study are two comparisons, each named."""
    groups = []
    for source, score in (("ham.store", 0.5), ("ham-features.store", 0.7)):
        setting = {"data__source": source}
        groups.append(group("proxyfl", "private", [[score, score]], **setting))
        groups.append(group("alone", "private", [[0.6, 0.6]], **setting))
    found = results(tmp_path, record("images/ham10000", groups))
    rows = images.best(found).rows
    assert [row.where for row in rows] == ["ham10000, ham", "ham10000, ham-features"]
    assert [row.met for row in rows] == [False, True]


def test_an_epsilon_says_whom_it_protects() -> None:
    """Where persons are the unit, every epsilon of the table says so, and no other does."""
    lines = images.accuracies(Results(catalogue.RESULTS)).splitlines()[2:]
    for line in lines:
        per_person = "ham10000-lesions" in line and not line.endswith("none |")
        assert line.endswith("per person |") == per_person


@pytest.mark.parametrize("name", sorted(IMAGES))
def test_each_file_loads(name: str, tmp_path: Path) -> None:
    """Every run's settings are valid, and the paper's studies have its eight methods."""
    runs = sweep.plan(IMAGES[name].file, tmp_path)
    assert runs
    if name.startswith(("kvasir", "histopathology", "slides")):
        assert {run.config.methods[0] for run in runs} == METHODS


def test_every_file_is_in_the_catalogue() -> None:
    """Nothing lies in experiments/images/ that nobody runs."""
    folder = catalogue.FOLDER / "images"
    files = {path.stem for path in folder.glob("*.toml")}
    assert {name for name in files if not name.endswith("-base")} == set(IMAGES)


def test_the_privacy_table_is_about_the_experiment(tmp_path: Path) -> None:
    """Batch, noise, epochs and delta are the file's, whose beta makes epsilon conditional. So many
    patients have about as many images as a batch."""
    config = sweep.plan(IMAGES["histopathology"].file, tmp_path)[0].config
    assert config.learning.batch_size == images.BATCH
    assert config.privacy.noise_multiplier == images.NOISE
    assert config.rounds == images.EPOCHS
    assert config.privacy.delta == images.DELTA
    assert config.learning.beta > 0
    for site in images.SITES:
        drawn = images.PATIENTS_A_BATCH * site.images / site.patients
        assert drawn == pytest.approx(images.BATCH, rel=0.4)


def test_a_figure_comes_out_of_a_record(tmp_path: Path) -> None:
    """Every recorded study has a panel of where it stands, and a curve from three scored rounds on;
    nothing is drawn of nothing."""
    found = results(tmp_path / "results", kvasir(0.5, 0.4, 0.2))
    (path,) = imageplots.draw(found.folder, tmp_path)
    assert path.name == "medical-last.png"
    assert path.stat().st_size > 5000
    assert not list(imageplots.draw(tmp_path / "nothing", tmp_path))
    names = [path.name for path in imageplots.draw(catalogue.RESULTS, tmp_path)]
    assert names == ["medical.png", "medical-last.png"]


def test_tables_are_generated_and_not_typed() -> None:
    """The page is what `python -m reproduction page` writes, and has every table."""
    assert images.filled(TEXT, Results(catalogue.RESULTS), images.TABLES) == TEXT
    assert set(re.findall(r"<!-- table: (\S+) -->", TEXT)) == set(images.TABLES)
    outside = re.sub(r"<!-- table: \S+ -->.*?<!-- end -->", "", TEXT, flags=re.DOTALL)
    assert not re.search(r"^\|", outside, re.MULTILINE)
