"""Persons as the unit: drawn whole, their records chosen anew, clipped as one."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from proxyfl import params
from proxyfl.data.examples import InMemory
from proxyfl.errors import ConfigError, PrivacyError
from proxyfl.models import build
from proxyfl.privacy.dpsgd import DPSGD
from proxyfl.privacy.guarantee import Kind, Relation, Unit
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.units import Units
from proxyfl.seeds import Seeded, System
from proxyfl.settings import DP

SIZES = (1, 5, 2, 9)
C = 0.7


def people(sizes: tuple[int, ...] = SIZES, seed: int = 0) -> InMemory:
    """Persons with so many records each, in mixed order, numbered 10, 20, ..."""
    generator = torch.Generator().manual_seed(seed)
    groups = torch.repeat_interleave(10 * (1 + torch.arange(len(sizes))), torch.tensor(sizes))
    groups = groups[torch.randperm(len(groups), generator=generator)]
    x = torch.randn(len(groups), 4, generator=generator)
    return InMemory(x, torch.arange(len(groups)) % 3, groups)


def trainer(examples: InMemory, **changes) -> DPSGD:
    """A linear proxy under plain SGD of rate 1, every person drawn, next to no noise."""
    model = build("linear", shape=(4,), classes=3, seed=3)
    persons = len(torch.unique(examples.groups))
    given = {
        "batch_size": persons,
        "ledger": Ledger("a", delta=1e-5, kind=Kind.END_TO_END, simulated=True, unit=Unit.GROUP),
        "batches": Seeded(0, "batches", 0),
        "noise": Seeded(0, "noise", 0),
    }
    asked = {"unit": Unit.GROUP, "noise_multiplier": 1e-9, "clip_norm": C}
    for name, value in changes.items():
        (asked if name in DP.__dataclass_fields__ else given)[name] = value
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return DPSGD(model, optimizer, examples, dp=DP(**asked), classes=3, **given)


def summed(private: DPSGD, round: int = 0) -> Tensor:
    """The sum of clipped gradients, read off one whole step."""
    private.begin_round(round, 1)
    before = params.flatten(private.model)
    private.step(private.draw())
    return (before - params.flatten(private.model)).double() * private.batch_size


def test_a_person_is_drawn_whole() -> None:
    """All records of the persons chosen, person after person, and of nobody else."""
    examples = people()
    units = Units(examples, Unit.GROUP)
    assert len(units) == 4
    rows, sizes = units.records(torch.tensor([1, 3]), System())
    assert sizes is not None
    assert sizes.tolist() == [5, 9]
    assert examples.groups[rows].tolist() == [20] * 5 + [40] * 9
    assert len(set(rows.tolist())) == 14


def test_nobody_is_drawn() -> None:
    """An empty sample has no records."""
    rows, sizes = Units(people(), Unit.GROUP, 2).records(
        torch.empty(0, dtype=torch.int64), System()
    )
    assert len(rows) == 0
    assert sizes is not None
    assert len(sizes) == 0


def test_a_persons_records_are_chosen_anew_and_evenly() -> None:
    """Of nine records three are taken in each step; each equally often (chi-square), and another
    three the next time."""
    examples = people()
    units = Units(examples, Unit.GROUP, 3)
    source = Seeded(1, "batches")
    counts = torch.zeros(len(examples.labels))
    seen = set()
    for _ in range(600):
        rows, sizes = units.records(torch.tensor([0, 1, 2, 3]), source)
        assert sizes is not None
        assert sizes.tolist() == [1, 3, 2, 3]
        assert examples.groups[rows].tolist() == [10, *[20] * 3, *[30] * 2, *[40] * 3]
        assert len(set(rows.tolist())) == len(rows)
        counts[rows] += 1
        seen.add(tuple(sorted(rows[-3:].tolist())))
    assert len(seen) == math.comb(9, 3)
    of_last = counts[examples.groups == 40]
    assert stats.chisquare(of_last.numpy()).pvalue > 1e-3


def test_data_that_name_nobody_are_refused() -> None:
    """Without groups, the person as the unit is refused with what to do."""
    with pytest.raises(ConfigError, match=r"person = .*array 'group'"):
        Units(InMemory(torch.rand(3, 4), torch.zeros(3).long()), Unit.GROUP)
    for groups in (torch.tensor([0.0, float("nan")]), torch.tensor([0]), torch.eye(2)):
        with pytest.raises(ConfigError, match="whole number for the person"):
            Units(InMemory(torch.zeros(2, 4), torch.zeros(2), groups), Unit.GROUP)
    unnamed = torch.tensor([3, -1])
    with pytest.raises(ConfigError, match=r"got -1 for record 1.*Leave such records"):
        Units(InMemory(torch.zeros(2, 4), torch.zeros(2), unnamed), Unit.GROUP)
    with pytest.raises(ConfigError, match=r"max_per_group=2 is for"):
        Units(people(), Unit.RECORD, 2)
    with pytest.raises(ConfigError, match=r"max_per_group"):
        Units(people(), Unit.GROUP, 0)


def test_rate_and_ledger_count_persons() -> None:
    """The sampling rate is B over the number of persons; a ledger of another unit is refused."""
    assert trainer(people(), batch_size=2).sampling_rate == 0.5
    with pytest.raises(ConfigError, match="4 groups"):
        trainer(people(), batch_size=5)
    per_record = Ledger("a", delta=1e-5, kind=Kind.END_TO_END, simulated=True)
    with pytest.raises(PrivacyError, match=r"each record; this .* each group"):
        trainer(people(), ledger=per_record)


def test_a_step_is_the_sum_over_persons() -> None:
    """A step moves the model by the sum of the persons' clipped mean gradients over B."""
    examples = people()
    private = trainer(examples)
    model = private.model
    expected = torch.zeros(params.size(model), dtype=torch.float64)
    for person in examples.groups.unique():
        own = examples.groups == person
        loss = F.cross_entropy(model(examples.x[own]), examples.labels[own])
        parts = torch.autograd.grad(loss, params.trainable(model))
        mean = torch.cat([part.reshape(-1) for part in parts]).double()
        expected += mean * min(1.0, C / float(mean.norm()))
    assert torch.allclose(summed(private), expected, atol=1e-6)


@settings(max_examples=25)
@given(
    records=st.integers(1, 30),
    scale=st.sampled_from([1.0, 1e3, -50.0]),
    most=st.sampled_from([None, 1, 4]),
    seed=st.integers(0, 5),
)
def test_one_person_moves_a_step_by_at_most_c(
    records: int, scale: float, most: int | None, seed: int
) -> None:
    """Data that differ in one person, of any number of records and however far off, differ in a
    step's sum by at most C; the others' records are the same draws here."""
    examples = people(seed=seed)
    hostile = scale * torch.randn(records, 4, generator=torch.Generator().manual_seed(seed))
    more = InMemory(
        torch.cat([examples.x, hostile]),
        torch.cat([examples.labels, torch.full((records,), 2)]),
        torch.cat([examples.groups, torch.full((records,), 999)]),
    )
    # Without a choice among the others' records: then the draws are theirs in both.
    kept = InMemory(more.x, more.labels, more.groups)
    if most is not None:
        first = _first_records(more.groups, most, spare=999)
        kept = InMemory(more.x[first], more.labels[first], more.groups[first])
    without = kept.groups != 999
    fewer = InMemory(kept.x[without], kept.labels[without], kept.groups[without])
    one = trainer(fewer, batch_size=4, max_per_group=most)
    other = trainer(kept, batch_size=5, max_per_group=most)
    difference = summed(one) - summed(other)
    assert float(difference.norm()) <= C * (1 + 1e-5)


def _first_records(groups: Tensor, most: int, *, spare: int) -> Tensor:
    """Rows such that each person has at most ``most`` of them; all of ``spare``."""
    seen: dict[int, int] = {}
    rows = []
    for row, group in enumerate(groups.tolist()):
        seen[group] = seen.get(group, 0) + 1
        if group == spare or seen[group] <= most:
            rows.append(row)
    return torch.tensor(rows)


def test_the_ledger_states_and_keeps_the_unit(tmp_path) -> None:
    """A ledger's file says what it protects, and is not continued for another unit."""
    promise = {"delta": 1e-5, "kind": Kind.END_TO_END, "simulated": True}
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger("a", unit=Unit.GROUP, path=path, **promise)
    ledger.charge(0, 3, 0.1, 2.0)
    found = Ledger.read(path)
    assert found.unit is Unit.GROUP
    assert found.epsilon().unit is Unit.GROUP
    assert "per patient" in str(found.epsilon())
    with pytest.raises(PrivacyError, match="unit='group', expected 'record'"):
        Ledger.at(path, "a", relation=Relation.ZERO_OUT, **promise)
