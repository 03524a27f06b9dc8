"""The numbers that a site signs: proposed from its data, declared, and what fits a budget."""

from dataclasses import replace
from pathlib import Path

import pytest

from proxyfl import _settings
from proxyfl.cli.main import main
from proxyfl.node import assembly, preflight, trial
from proxyfl.node.members import site as sites
from proxyfl.node.members.site import Privacy, Site
from proxyfl.privacy.guarantee import Kind, Relation
from proxyfl.privacy.ledger import Budget, Ledger
from proxyfl.settings import Optimizer

from .federations import change, quick


def init(place: Path, *options: str) -> Privacy:
    """The privacy settings that `node init` writes."""
    assert main(["node", "init", str(place), *options]) == 0
    return sites.read(place)[0].privacy


def test_a_new_site_declares_rounded_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Data that are there are counted: the number is rounded down, delta is 1/(10 n) or less, and
    the budget is 1. What was declared is said."""
    made = init(tmp_path / "north", "--data", "digits")
    assert (made.examples, made.delta, made.budget) == (1400, 1e-5, 1.0)
    assert "declared number of 1400 examples" in capsys.readouterr().out
    place = tmp_path / "south"
    place.mkdir()
    rows = "\n".join(f"{i};{i % 2}" for i in range(437))
    (place / "patients.csv").write_text(f"age;died\n{rows}\n")
    made = init(place, "--data", "patients.csv")
    assert (made.examples, made.delta) == (350, 1e-4)  # the rest is held out
    form = sites.read(place)[0].data
    assert (form.separator, form.decimal, form.encoding) == ("semicolon", "point", "utf-8")
    made = init(tmp_path / "east", "--examples", "50")
    assert (made.examples, made.delta) == (50, 1e-3)
    assert sites.read(tmp_path / "east")[0].learning.batch_size == 50
    capsys.readouterr()
    assert main(["node", "init", str(tmp_path / "west"), "--examples", "0"]) == 2
    assert not (tmp_path / "west").exists()


def test_data_that_come_later_are_declared_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without data nothing is declared, and the operator is told to."""
    made = init(tmp_path / "north")
    assert (made.examples, made.delta) == (None, None)
    assert "Declare there" in capsys.readouterr().out


def test_the_new_file_explains_each_setting_where_it_stands(tmp_path: Path) -> None:
    """Above every setting of the new site.toml stands its documentation, as on the settings
    page."""
    init(tmp_path / "north")
    lines = (tmp_path / "north" / sites.FILE).read_text().splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert any("73 % sure" in line for line in lines)
    documented = [setting.key.rpartition(".")[2] for setting in _settings.describe(Site)]
    stated = []
    for above, line in zip(["", *lines], lines, strict=False):
        name = line.removeprefix("# ").partition(" = ")[0]
        if "= " in line and name.isidentifier():
            assert above.startswith("# "), line
            stated.append(name)
    assert stated == documented


def line_of(place: Path, check: str) -> preflight.Line:
    """One line of a site's preflight, whose peers do not answer."""
    settings, folder = sites.read(place)
    (line,) = (line for line in preflight.preflight(settings, folder) if line.check == check)
    return line


def with_privacy(site: Site, **changes: object) -> Site:
    return replace(site, privacy=replace(site.privacy, **changes))  # type: ignore[arg-type]  # a test's own words


def test_preflight_warns_of_a_plan_that_does_not_fit_and_says_what_would(tmp_path: Path) -> None:
    """A budget that covers some of the rounds is a warning; the noise, the rounds and the budget
    that it names do fit, and hardly more than fit."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=60, template=quick())
    north = layout.sites[0]
    change(north, lambda site: with_privacy(site, budget=0.4, examples=240, delta=1e-4))
    line = line_of(north, "budget")
    assert (line.ok, line.warn) == (True, True)
    words = line.text.replace(",", "").split()
    rounds = int(words[words.index("covers") + 1])
    assert 0 < rounds < 60
    noise = float(words[words.index("=") + 1])
    budget = float(line.text.rpartition("a budget of ")[2].rstrip("."))
    assert f"or {rounds} rounds" in line.text
    for fits in ({"noise_multiplier": noise}, {"budget": budget}):
        change(north, lambda site, fits=fits: with_privacy(site, **fits))
        assert line_of(north, "budget").text.startswith("covers all 60 rounds")
        change(north, lambda site: with_privacy(site, noise_multiplier=4.0, budget=0.4))
    for short in ({"noise_multiplier": 0.95 * noise}, {"budget": 0.9 * budget}):
        change(north, lambda site, short=short: with_privacy(site, **short))
        assert line_of(north, "budget").warn
        change(north, lambda site: with_privacy(site, noise_multiplier=4.0, budget=0.4))


def test_preflight_of_a_manifest_with_far_too_many_rounds(tmp_path: Path) -> None:
    """A hundred thousand rounds ask for an epsilon in the thousands: preflight warns, and judges
    the site's size by the budget after which it leaves."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=100_000, template=quick())
    north = layout.sites[0]
    change(north, lambda site: with_privacy(site, budget=1.0, examples=240, delta=1e-4))
    line = line_of(north, "budget")
    assert line.warn
    assert "of 100000 rounds" in line.text
    within = line_of(north, "size").text
    change(north, lambda site: with_privacy(site, budget=None))
    assert "from 1 on a site adds more signal" in line_of(north, "size").text
    assert "from 1 on a site adds more signal" not in within


def test_preflight_counts_what_was_spent(tmp_path: Path) -> None:
    """A site in the middle of a federation is judged by the rounds and the budget that are left."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=60, template=quick())
    north = layout.sites[0]
    change(north, lambda site: with_privacy(site, budget=2.0, examples=240, delta=1e-4))
    assert line_of(north, "budget").text.startswith("covers all 60 rounds")
    ledger = Ledger(
        "north",
        delta=1e-4,
        kind=Kind.END_TO_END,
        simulated=False,
        relation=Relation.ADD_OR_REMOVE,
        budget=Budget(2.0),
        path=north / assembly.LEDGER_FILE,
    )
    fits = ledger.affordable_steps(20 / 240, 4.0, 10_000)
    ledger.charge(0, fits - 10, 20 / 240, 4.0)
    line = line_of(north, "budget")
    assert line.warn
    assert "of 59 rounds" in line.text
    assert "a budget of" not in line.text  # it is never raised
    assert "covers 5 of" in line.text
    ledger.charge(1, 10, 20 / 240, 4.0)
    line = line_of(north, "budget")
    assert not line.ok
    assert ": not one. " in line.text


def test_preflight_warns_of_a_number_that_nobody_declared(tmp_path: Path) -> None:
    """The true number of examples is public then, and a rounded one is proposed; what is proposed
    removes the warning, and makes the relation add-or-remove."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=3, template=quick())
    north = layout.sites[0]
    line = line_of(north, "declared numbers")
    assert line.warn
    assert "zero-out" in line.text
    assert "examples = 240, delta = 0.0001" in line.text
    change(north, lambda site: with_privacy(site, examples=240, delta=0.0001))
    line = line_of(north, "declared numbers")
    assert not line.warn
    assert line.text == "delta 0.0001, add-or-remove"


def test_preflight_names_the_least_size(tmp_path: Path) -> None:
    """A site that adds more noise than signal is told for what its steps should count; with that
    weight, or with less noise, the warning is gone."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=3, template=quick())
    north = layout.sites[0]
    change(north, lambda site: with_privacy(site, noise_multiplier=60.0))
    line = line_of(north, "size")
    assert line.warn
    assert "249 examples: with fewer than" in line.text
    assert "in [learning] of site.toml: weight = " in line.text
    sgd = Optimizer("sgd", learning_rate=0.1)

    def lighter(site: Site) -> Site:
        learning = replace(site.learning, weight=0.2)
        return replace(site, learning=learning, proxy_optimizer=sgd)

    change(north, lighter)
    line = line_of(north, "size")
    assert not line.warn
    assert "count for 0.2" in line.text
    change(north, lambda site: with_privacy(site, noise_multiplier=0.8, budget=None))
    assert "a site adds more signal than noise" in line_of(north, "size").text


def test_site_files_of_earlier_releases_keep_their_budget(tmp_path: Path) -> None:
    """A file that states a budget of 5, as earlier releases wrote it, has it still."""
    (tmp_path / sites.FILE).write_text('name = "north"\n[privacy]\nbudget = 5.0\n')
    assert sites.read(tmp_path)[0].privacy.budget == 5.0
