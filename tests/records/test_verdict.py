"""The verdict on joining: its kind follows from the interval, and its words promise no more."""

import io
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from proxyfl.cli.terminal.verdict import show_verdict
from proxyfl.records.answers import Question, answer
from proxyfl.records.certainty import widen
from proxyfl.records.groups import groups
from proxyfl.records.run import Run
from proxyfl.records.verdict import Verdict, _Case, bet, points, verdict

SAMPLES = 100


def made(
    gains: Sequence[float],
    *,
    noise: float = 0.001,
    alone: float = 0.8,
    seed: int = 0,
    test: tuple[int, int] = (150, 150),
    **more: Any,
) -> Run:
    """A run in which each client has gained so much, with bootstrap samples of this noise."""
    generator = random.Random(seed)
    rows = []
    clients: dict[str, list[dict[str, Any]]] = {"alone": [], "proxyfl": []}
    for client, gain in enumerate(gains):
        for method, score in (("alone", alone), ("proxyfl", alone + gain)):
            row = {
                "method": method,
                "round": 0,
                "client": client,
                "name": f"site-{client}",
                "present": len(gains),
                "private_auroc": score,
                "private_resampled": [score + generator.gauss(0, noise) for _ in range(SAMPLES)],
                "epsilon_pld": 1.0,
                "epsilon_rdp": 2.0,
                "delta": 1e-5,
                "epsilon_kind": "none" if method == "alone" else "end-to-end",
                "left": None,
            }
            rows.append(row)
            counts = [[test[0], 0], [0, test[1]]]
            clients[method].append({"client": client, "confusion": {"private": counts}, **more})
    summary = {
        "finished": True,
        "classes": ["well", "ill"],
        "methods": {name: {"clients": found} for name, found in clients.items()},
    }
    settings = {
        "seed": seed,
        "rounds": 1,
        "measure": "auroc",
        "methods": ["alone", "proxyfl"],
        "partition": {"kind": "site"},
    }
    return Run(Path("run"), settings, rows, summary, {"simulation": True})


def said(*runs: Run) -> Verdict:
    """The verdict on ProxyFL in these runs."""
    (group,) = groups(runs)
    found = answer(group, "proxyfl", Question("auroc"))
    assert found is not None
    return verdict(found)


def test_an_interval_above_zero_is_a_gain() -> None:
    """With its size, its epsilon, and how many gain."""
    found = said(made([0.05, 0.06]))
    assert found.kind == "gain"
    start = "Joining gains 5.5 points of AUROC at epsilon 1."
    assert found.headline == f"{start} Both sites gain."
    assert found.claim == "5.5 points"
    assert "over test persons of one split" in found.lede[0]


def test_an_interval_below_zero_is_a_loss() -> None:
    """The same sentence the other way, and what to try instead."""
    found = said(made([-0.05, -0.03, -0.04]))
    assert found.kind == "loss"
    assert found.headline.startswith("Joining loses 4.0 points of AUROC")
    assert "All three sites end below training alone." in found.headline
    assert found.advice


def test_an_interval_with_zero_has_no_number_in_its_headline() -> None:
    """What noise could have made is no headline."""
    found = said(made([0.01, 0.02], noise=0.05))
    assert found.headline == "Joining makes no difference beyond noise."
    assert not found.claim


def test_whoever_loses_is_named_first() -> None:
    """A mean that gains does not hide the one that loses more than a point."""
    found = said(made([0.1, 0.1, -0.03]))
    assert found.kind == "gain"
    assert "site-2 loses 3.0 points. 2 of 3 sites gain, 1 loses." in found.headline


def test_nobody_who_loses_is_said_in_words() -> None:
    """Sites without a change neither gain nor lose, and a count of zero is a word."""
    found = said(made([0.05, 0.04, 0.0]))
    assert found.headline.endswith("2 of 3 sites gain, none loses.")


def test_few_positives_and_one_split_are_too_few() -> None:
    """Fewer than 100 of the rarer class: no verdict from one split, but one from several."""
    runs = [made([0.05, 0.06], seed=seed, test=(300, 40)) for seed in range(5)]
    assert said(runs[0]).headline == "Too few to say: 40 of class ill in the test part."
    assert said(*runs).kind == "gain"


def test_a_class_with_four_test_examples_is_never_judged() -> None:
    """However many splits there are."""
    runs = [made([0.05], seed=seed, test=(300, 4)) for seed in range(5)]
    assert said(*runs).kind == "few"


def test_an_opponent_below_a_coin_is_weak() -> None:
    """A gain over an AUROC below 0.5 is none, and the sentence says why."""
    found = said(made([0.2, 0.2], alone=0.4))
    assert found.kind == "weak"
    assert found.lede[0] == "Alone has an AUROC of 0.400: a coin has 0.500."


@pytest.mark.parametrize(("plain", "kind"), [(0.97, "weak"), (0.81, "gain")])
def test_an_opponent_below_a_logistic_regression_is_weak(plain: float, kind: str) -> None:
    """Seventeen points below a plain logistic regression is trained too little; one is fair."""
    found = said(made([0.05, 0.05], reference={"auroc": plain}))
    assert found.kind == kind
    if kind == "weak":
        assert "17 points below a plain logistic regression" in found.lede[0]


def test_the_spread_between_splits_widens_the_interval() -> None:
    """Splits that disagree make a gain of one split one within noise."""
    runs = [made([gain], seed=seed) for seed, gain in enumerate((0.15, 0.001, -0.02, 0.1, 0.0))]
    assert said(runs[0]).kind == "gain"
    assert said(*runs).kind == "none"
    assert widen((0.1, 0.2), [0.15, 0.15, 0.15]) == pytest.approx((0.1, 0.2))
    assert widen((0.1, 0.2), [0.15, 0.3]) == (0.1, 0.2), "two splits tell no spread"


def test_an_interval_without_width_is_no_interval() -> None:
    """Equal answers are said to be equal."""
    found = said(made([0.0, 0.0], noise=0.0))
    assert found.headline.startswith("Joining changed nothing")
    assert not found.lede


def test_a_site_without_a_change_is_said_to_have_none() -> None:
    """A site that gained nothing on every sample has no interval from +0.0 to +0.0."""
    console = Console(width=80, record=True, force_terminal=False, file=io.StringIO())
    show_verdict([made([0.0, 0.0], noise=0.0)], None, console)
    text = console.export_text()
    assert text.count("no change") == 2
    assert "+0.0 to +0.0" not in text


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("sites", [1, 4, 12, 200])
def test_the_terminal_has_at_most_30_lines(sites: int, width: int) -> None:
    """For any number of sites, the verdict first, and no line is cut."""
    generator = random.Random(1)
    run = made([generator.gauss(0.02, 0.05) for _ in range(sites)])
    console = Console(width=width, record=True, force_terminal=False, file=io.StringIO())
    show_verdict([run], Path("runs/one"), console)
    lines = console.export_text().splitlines()
    assert len(lines) <= 30
    assert lines[0].startswith("proxyfl: ")
    assert all(len(line) <= width for line in lines)
    assert any("Next: proxyfl report runs/one" in line for line in lines)


def test_points_have_a_sign_and_bets_round_up() -> None:
    """Zero is no loss; a bet at epsilon 1 is won at most 74 times in 100."""
    assert [points(gain) for gain in (0.054, -0.0001, -0.02)] == ["+5.4", "+0.0", "\u22122.0"]
    assert (bet(0.0, 0.0), bet(1.0, 0.0), bet(60.0, 0.1)) == (50, 74, 100)


def test_folds_that_prefer_alone_at_most_sites_are_a_warning() -> None:
    """Two of three: the sites may be of different kinds. One of three is nothing to say."""
    rows = [{"folds": [0.3, 0.5]}, {"folds": [0.3, 0.4]}, {"folds": [0.4, 0.3]}, {}]

    def said(rows: list[dict[str, Any]]) -> str:
        run = SimpleNamespace(finals=lambda _method: rows, flat={"partition.kind": "site"})
        group = SimpleNamespace(runs=[run])
        answer: Any = SimpleNamespace(method="proxyfl", group=group)
        return _Case(answer)._folds()

    assert "in 2 of 3 choices at a site, its own folds prefer alone to the proxy" in said(rows)
    assert said(rows[1:]) == ""
    assert said([]) == ""
