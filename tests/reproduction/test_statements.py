"""Statements: the verdict follows from the comparisons, and those from the scores."""

from dataclasses import replace
from pathlib import Path

import pytest

from reproduction import page, statements
from reproduction.records import Record
from reproduction.series import FEDAVG_TRAINED, MODELS, Results
from tests.reproduction.samples import group, record, results

NOISE = ((0.00, 0.01, 0.02, 0.01), (0.01, 0.00, 0.01, 0.02), (0.02, 0.01, 0.00, 0.01))
"""Three seeds of four clients."""


def benchmark(name: str, **better: float) -> Record:
    """All models at 0.5, but those named, with underscores for spaces; clients differ a little."""
    groups = []
    for model in (*MODELS, FEDAVG_TRAINED):
        level = better.get(model.name.replace(" ", "_"), 0.5)
        # so that differences are not all the same number, which no test can judge
        shift = len(groups) / 1e4
        clients = [
            [level + x * (1 + shift) for x in seed][: 1 if model.pooled else None] for seed in NOISE
        ]
        groups.append(group(model.method, model.role, clients))
    return record(name, groups)


def verdict(found: Results, name: str) -> str:
    (statement,) = [s for s in statements.all_of(found) if s.name == name]
    return statement.verdict


def test_best_needs_every_method_and_a_small_p(tmp_path: Path) -> None:
    """Clearly above all: holds. Level with one: partly. Below all: not. `alone` does not count."""
    above = results(tmp_path / "a", benchmark("mnist", ProxyFL_private=0.7, alone=0.9, Joint=0.9))
    level = results(tmp_path / "b", benchmark("mnist", ProxyFL_private=0.7, FML_private=0.7))
    below = results(tmp_path / "c", benchmark("mnist", ProxyFL_private=0.3))
    assert [verdict(found, "best") for found in (above, level, below)] == [
        "holds",
        "holds partly",
        "does not hold here",
    ]
    (best,) = [s for s in statements.all_of(above) if s.name == "best"]
    (alone,) = [row for row in best.rows if not row.counts]
    assert not alone.met
    assert alone.comparison.over_clients.difference == pytest.approx(-0.2, abs=1e-3)


def test_means_are_over_the_seeds_that_both_have(tmp_path: Path) -> None:
    """A method of which one seed was run is compared with that seed of the other."""
    mine = [[0.9, 0.8], [0.1, 0.2]]
    rest = [
        group(model.method, model.role, mine)
        for model in (*MODELS, FEDAVG_TRAINED)
        if model.name != "alone"
    ]
    one_seed = group("alone", "private", [[0.5, 0.6]])
    found = results(tmp_path, record("mnist", [*rest, one_seed]))
    (best,) = [s for s in statements.all_of(found) if s.name == "best"]
    (row,) = [row for row in best.rows if row.against == "alone"]
    assert row.ours == pytest.approx(0.85)
    assert row.theirs == pytest.approx(0.55)
    assert row.comparison.over_clients.difference == pytest.approx(0.3)
    assert row.comparison.seeds == 1


def test_a_dataset_on_which_it_fails_makes_it_partly(tmp_path: Path) -> None:
    """AvgPush and FedAvg are compared as both are before the exchange; what leaves the hub is shown
    and does not count."""
    good = benchmark("mnist", AvgPush=0.6, FedAvg=0.9)
    bad = benchmark("fashion-mnist", FedAvg_before_the_exchange=0.6)
    assert verdict(results(tmp_path / "a", good), "avgpush") == "holds"
    assert verdict(results(tmp_path / "b", good, bad), "avgpush") == "holds partly"
    assert (
        verdict(
            results(tmp_path / "c", bad, benchmark("mnist", FedAvg_before_the_exchange=0.6)),
            "avgpush",
        )
        == "does not hold here"
    )


@pytest.mark.parametrize(("wanted", "expected"), [(20, "holds partly"), (21, "holds")])
def test_a_benchmark_of_less_than_half_its_rounds_does_not_count(
    wanted: int, expected: str, tmp_path: Path
) -> None:
    """Ten rounds of twenty are judged, ten of twenty-one are shown only."""
    good = benchmark("mnist", AvgPush=0.6)
    bad = replace(benchmark("cifar10", FedAvg_before_the_exchange=0.6), rounds=wanted)
    assert verdict(results(tmp_path, good, bad), "avgpush") == expected


def test_a_model_that_was_not_run_is_said_to_be_missing(tmp_path: Path) -> None:
    """No comparison with it, and "not run" in the table."""
    found = benchmark("mnist", ProxyFL_private=0.7)
    groups = [group for group in found.groups if group.method != "alone"]
    without = results(tmp_path, replace(found, groups=groups))
    assert verdict(without, "best") == "holds"
    (best,) = [s for s in statements.all_of(without) if s.name == "best"]
    assert all(row.counts for row in best.rows)
    assert "| alone | not run |  |" in page.benchmarks(without)


def both_mlp(**better: float) -> Record:
    found = benchmark("both-mlp", **better)
    base = {"partition.p_major": 0.8, "learning.batch_size": 250, "learning.alpha": 0.5}
    return Record(**{**vars(found), "base": base})


def test_skew_compares_losses_not_levels(tmp_path: Path) -> None:
    """ProxyFL is lower throughout and falls less: it is the more robust."""
    even = [
        group(
            g.method, g.role, [[0.2 + x for x in s[0]] for s in g.accuracy], partition__p_major=0.1
        )
        for g in benchmark("x", ProxyFL_private=0.25).groups
    ]
    assert (
        verdict(results(tmp_path, both_mlp(ProxyFL_private=0.4), record("skew", even)), "skew")
        == "holds"
    )


def test_batches_must_not_cost_two_points(tmp_path: Path) -> None:
    base = both_mlp(ProxyFL_private=0.7)
    for loss, expected in ((0.01, "holds"), (0.05, "does not hold here")):
        roles = (("private", 0.7 - loss), ("proxy", 0.5))
        small = [
            group("proxyfl", role, [[level + x for x in s] for s in NOISE], learning__batch_size=50)
            for role, level in roles
        ]
        found = results(tmp_path / str(loss), base, record("batch-size", small))
        assert verdict(found, "batches") == expected


def test_every_statement_can_be_made_of_quick_results(quick: Results) -> None:
    """All seven, each with comparisons and one of the three verdicts."""
    found = statements.all_of(quick)
    assert [s.name for s in found] == [
        "best",
        "fml",
        "avgpush",
        "skew",
        "architectures",
        "dp",
        "batches",
    ]
    assert all(s.verdict in ("holds", "holds partly", "does not hold here") for s in found)
    assert [len(s.rows) for s in found] == [21, 11, 6, 8, 9, 7, 1]
    # FedAvg on three datasets: before the exchange, which counts, and as it leaves the hub.
    assert [row.counts for row in found[2].rows].count(True) == 3
