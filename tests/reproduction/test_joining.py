"""What joining is worth: the studies' files follow the rule, the page follows the records."""

import dataclasses
import json
import re
import tomllib
from pathlib import Path

import pytest

from proxyfl.privacy.worth import RULE, Facts, settings_for
from proxyfl.simulation.config import load
from proxyfl.sweeps import file as sweep
from reproduction import joining
from reproduction.catalogue import FOLDER, JOINING, RESULTS
from reproduction.records import Group, Record
from reproduction.series import Results

TEXT = joining.PAGE.read_text(encoding="utf-8")


def made(name: str = "heart") -> joining.Study:
    """A study of two sites and two seeds, with numbers that can be followed by hand."""

    def group(method: str, variant: str, scores, keeps=()) -> Group:
        return Group(
            {"variant": variant},
            method,
            "private",
            [0, 1],
            [43],
            scores,
            scores,
            [None],
            "none",
            scores,
            keeps,
        )

    groups = [
        group("alone", "reference", [[[0.7, 0.8]], [[0.7, 0.8]]]),
        group("pooled", "reference", [[[0.9]], [[0.9]]]),
        group(
            "proxyfl",
            "epsilon-1",
            [[[0.8, 0.78]], [[0.82, 0.8]]],
            [["proxy", "alone (trees)"], ["sum, 0.5 proxy (trees)", "proxy"]],
        ),
    ]
    base = {"partition.clients": 2, "learning.batch_size": 100, "privacy.delta": 1e-3}
    record = Record(f"joining/{name}", 43, [0, 1], base, {}, 1.0, groups)
    return joining.Study(name, "made up", record)


def test_shares_losers_and_choices() -> None:
    """Half of what pooling gives, one site two points below, and what each kept."""
    study = made()
    assert study.share(1) == pytest.approx((0.8 - 0.75) / (0.9 - 0.75))
    assert study.losers(1) == [pytest.approx(-0.02)]
    assert study.kept(1) == {"proxy": 2, "alone": 1, "sum": 1}


def test_a_missed_goal_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share below the goal and sites that lose more than a point are listed, each with its
    federation."""
    monkeypatch.setattr(joining, "studies", lambda results, measure="auroc": iter([made()]))
    monkeypatch.setattr(joining, "EPSILONS", (1,))
    text = joining.goals_sentences(Results(RESULTS))
    assert (
        "At epsilon 1 the goal of 50% is met in 0 of 1 federations; shares are 33% to 33%." in text
    )
    assert "- made up, epsilon 1: a share of 33%" in text
    assert "- made up, epsilon 1: 1 of 4 (worst -2.0) lose more than a point" in text


def test_the_interval_is_over_seeds() -> None:
    """Student's interval of the seeds' mean gains, 0.04 and 0.06."""
    low, high = joining.seed_interval(made().gains(1))
    assert (low + high) / 2 == pytest.approx(0.05)
    assert high - low == pytest.approx(2 * 12.706 * 0.01, rel=1e-3)


@pytest.mark.parametrize("name", sorted(JOINING))
def test_the_studies_take_what_worth_gives(name: str) -> None:
    """Noise, learning rate and rounds of each study are those of ``proxyfl worth``: nothing was
    tuned on its scores. (The largest site has 1 / (10 delta) examples.)"""
    with (FOLDER / "joining" / f"{name}.toml").open("rb") as file:
        tree = tomllib.load(file)
    fixed = tree["set"]
    total = TOTALS[name]
    for variant in tree["variant"]:
        if variant["name"] == "reference":
            continue
        facts = Facts(
            fixed["partition"]["clients"],
            fixed["learning"]["batch_size"],
            joining.PARAMETERS[name],
            float(variant["name"].split("-")[1]),
            fixed["privacy"]["delta"],
            joining.CLASSES.get(name, 2),
        )
        settings = settings_for(facts, total=total)
        assert variant["privacy"]["noise_multiplier"] == settings.noise_multiplier
        rate = variant["proxy_optimizer"]["learning_rate"]
        assert rate == settings.learning_rate
        assert fixed["rounds"] == settings.rounds + settings.settle


def test_the_rule_is_the_recorded_fit() -> None:
    """The constants of ``worth`` are those of the calibration's record, to two digits."""
    record = json.loads((RESULTS / "worth.json").read_text(encoding="utf-8"))
    for name, value in dataclasses.asdict(RULE).items():
        assert value == pytest.approx(record["rule"][name], abs=0.02), name
    assert record["left_out"]["advised_and_lost"] == 0
    assert record["left_out"]["mean_error_share"] <= 0.21


def test_the_hospitals_run_as_in_their_study(tmp_path: Path) -> None:
    """`make hospitals` is the study's first run at epsilon 1, with what it is compared with."""
    shown = load(FOLDER / "examples" / "hospitals.toml")
    points = sweep.plan(JOINING["heart"].file, tmp_path)
    (studied,) = [p.config for p in points if p.name == "epsilon-1,seed=0"]
    same = dataclasses.replace(
        studied, methods=shown.methods, data=dataclasses.replace(studied.data, directory=None)
    )
    assert shown == same


TOTALS = {
    "heart": 735,
    "gusto": 32672,
    "ist": 14979,
    "impact": 8818,
    "loans": 13103,
    "ham": 5618,
    "fashion-two": 8000,
    "fashion-five": 8000,
    "fashion-many": 3200,
}
"""Training examples of each federation."""


def test_tables_are_generated_and_not_typed() -> None:
    """The page is what `python -m reproduction page` writes."""
    filled = joining.filled(TEXT, Results(RESULTS), joining.TABLES)
    assert filled == TEXT


def test_every_table_is_on_the_page() -> None:
    """Each table of the studies stands between its markers."""
    assert set(re.findall(r"<!-- table: (\S+) -->", TEXT)) == set(joining.TABLES)
