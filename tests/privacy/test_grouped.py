"""Groups of records: clipped as one, in one pass, equal to the plain loop over persons."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from proxyfl import params
from proxyfl.privacy.perexample.clipper import Clipper
from proxyfl.privacy.perexample.grouped import pieces
from proxyfl.privacy.perexample.validation import checked_clipper
from tests.privacy.architectures import SOUND, Entry, cross_entropy, records
from tests.privacy.test_rounding import MODELS, adversarial, loss

C = 0.5
SIZES = torch.tensor([3, 1, 2, 5])
KINDS = ["plain", "huge", "constant", "offset", "cancelling", "one position"]


def accepted(entry: Entry) -> Clipper:
    """A clipper for the architecture in float64, its weights moved away from where they start."""
    torch.manual_seed(0)
    model = entry.make().double().train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dtype = torch.int64 if entry.ids else torch.float64
        clipper = checked_clipper(model, entry.shape, dtype=dtype)
    params.load_flat(model, params.flatten(model) + 0.2)
    if entry.draws:
        model.eval()
    return clipper


def looped(clipper: Clipper, x: Tensor, y: Tensor, sizes: Tensor) -> Tensor:
    """The definition: person after person the mean of the records' gradients, each record alone by
    plain autograd, clipped and added up."""
    before = {name: b.clone() for name, b in clipper.model.named_buffers()}
    total = torch.zeros(params.size(clipper.model), dtype=torch.float64)
    start = 0
    for size in sizes.tolist():
        mean = torch.zeros_like(total)
        for i in range(start, start + size):
            for name, buffer in clipper.model.named_buffers():
                buffer.copy_(before[name])
            logits = clipper.model(x[i : i + 1])
            # squeeze() in one of the models drops the only row
            losses = cross_entropy(logits.view(1, -1), y[i : i + 1])
            parts = torch.autograd.grad(losses.sum(), list(clipper.views), materialize_grads=True)
            mean += torch.cat([part.reshape(-1) for part in parts]) / size
        total += mean * min(1.0, C / max(float(mean.norm()), 1e-30))
        start += size
    for name, buffer in clipper.model.named_buffers():
        buffer.copy_(before[name])
    return total


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SOUND)
def test_groups_are_clipped_as_in_the_loop_over_persons(name: str) -> None:
    """For every sound architecture, on every way, the sum over groups is that of the definition.
    One person more, with more records than any other and hostile ones, changes it by at most C,
    and the model's buffers not at all."""
    entry = SOUND[name]
    clipper = accepted(entry)
    before = {name: b.clone() for name, b in clipper.model.named_buffers()}
    x, y = records(entry, int(SIZES.sum()) + 9)
    if not entry.ids:
        x[-9:] *= 30.0
    expected = looped(clipper, x, y, SIZES)
    found = clipper.clip(x[:-9], y[:-9], cross_entropy, C, SIZES)
    total = found.total.clone()
    assert torch.allclose(total, expected, rtol=1e-9, atol=1e-12)
    assert len(found.norms) == len(SIZES)
    after = {name: b.clone() for name, b in clipper.model.named_buffers()}
    for path, buffer in clipper.model.named_buffers():
        buffer.copy_(before[path])
    more = torch.cat([SIZES, torch.tensor([9])])
    whole = clipper.clip(x, y, cross_entropy, C, more).total
    assert float((whole - total).norm()) <= C * (1 + 1e-6)
    for path, buffer in clipper.model.named_buffers():
        assert torch.equal(buffer, after[path])


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(MODELS)),
    st.sampled_from(KINDS),
    st.sampled_from([1.0, 1e-3, 1e3]),
    st.integers(2, 4),
    st.integers(0, 5),
)
def test_no_group_exceeds_c_in_float32(
    name: str, kind: str, weights: float, size: int, seed: int
) -> None:
    """Whatever the records and the parameters, a group's clipped gradient in float32 is at most
    C (1 + 1e-6)."""
    factory, shape = MODELS[name]
    torch.manual_seed(seed)
    model = factory()
    params.load_flat(model, params.flatten(model) * weights)
    x = adversarial(kind, shape, seed)[:size]
    y = torch.arange(size) % 3
    total = Clipper(model).clip(x, y, loss, C, torch.tensor([size])).total
    assert float(total.double().norm()) <= C * (1 + 1e-6)


@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.integers(1, 9),
    st.sampled_from(KINDS),
    st.integers(0, 3),
)
def test_neighbours_differ_by_at_most_c(others: list[int], size: int, kind: str, seed: int) -> None:
    """In float64, as under real noise, datasets that differ in one person of any number of
    records differ by at most C (1 + 1e-6), wherever the person stands."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(240, 8), nn.Tanh(), nn.Linear(8, 3))
    clipper = Clipper(model, wide=True)
    x = torch.randn(sum(others), 6, 40)
    y = torch.arange(len(x)) % 3
    hostile = adversarial(kind, (6, 40), seed).repeat(3, 1, 1)[:size]
    before = clipper.clip(x, y, loss, C, torch.tensor(others)).total.clone()
    more = torch.cat([hostile, x])
    labels = torch.cat([torch.full((size,), 2), y])
    after = clipper.clip(more, labels, loss, C, torch.tensor([size, *others])).total
    assert float((after - before).norm()) <= C * (1 + 1e-6)


def test_a_group_with_a_record_that_is_not_finite_contributes_nothing() -> None:
    """One infinite record takes its own group out, and no other."""
    model = nn.Linear(4, 3).double()
    clipper = Clipper(model)
    x = torch.randn(6, 4, dtype=torch.float64)
    y = torch.arange(6) % 3
    x[1] = torch.inf
    found = clipper.clip(x, y, loss, C, torch.tensor([3, 1, 2])).total.clone()
    alone = clipper.clip(x[3:], y[3:], loss, C, torch.tensor([1, 2])).total
    assert torch.equal(found, alone)


def test_copies_that_fill_a_group_up_contribute_nothing() -> None:
    """A group of three among four rows has exactly the norm that it has without the copy."""
    model = nn.Linear(4, 3).double()
    clipper = Clipper(model)
    x, y = torch.randn(3, 4, dtype=torch.float64), torch.tensor([0, 1, 2])
    (piece,) = pieces(3, torch.tensor([3]), None)
    assert piece.groups is not None
    assert piece.groups.records == 4
    assert piece.groups.weights.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    found = clipper.clip(x, y, loss, 1e9, torch.tensor([3])).total
    logits = model(x)
    gradients = torch.autograd.grad(loss(logits, y).mean(), list(clipper.views))
    expected = torch.cat([gradient.reshape(-1) for gradient in gradients])
    assert torch.allclose(found, expected, rtol=1e-7)


def test_groups_of_one_are_records() -> None:
    """A group of one record is clipped as the record, to the bit."""
    torch.manual_seed(1)
    clipper = Clipper(nn.Linear(4, 3))
    x, y = torch.randn(5, 4), torch.arange(5) % 3
    plain = clipper.clip(x, y, loss, C).total.clone()
    grouped = clipper.clip(x, y, loss, C, torch.ones(5, dtype=torch.int64)).total
    assert torch.equal(plain, grouped)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.sampled_from([None, 1, 4, 16]))
def test_pieces_hold_every_record_once(sizes: list[int], at_once: int | None) -> None:
    """Each record is in one piece with weight 1/k; fewer than half of the rows are copies."""
    seen = torch.zeros(sum(sizes), dtype=torch.float64)
    rows = 0
    for piece in pieces(sum(sizes), torch.tensor(sizes), at_once):
        if piece.groups is None:
            seen[slice(None) if piece.rows is None else piece.rows] += 1
            continue
        assert len(piece.rows) % piece.groups.records == 0
        rows += len(piece.rows)
        seen.index_add_(0, piece.rows, piece.groups.weights.double())
    expected = torch.cat([torch.full((k,), 1 / k) for k in sizes]).double()
    assert torch.allclose(seen, expected)
    assert rows < 2 * sum(sizes)


def test_no_pass_runs_person_by_person() -> None:
    """A hundred persons of up to four records take three forward passes, one for each width."""
    model = nn.Linear(4, 3)
    clipper = Clipper(model)
    sizes = torch.tensor([1, 2, 3, 4] * 25)
    x, y = torch.randn(int(sizes.sum()), 4), torch.zeros(int(sizes.sum())).long()
    calls = 0

    def counted(logits: Tensor, targets: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return loss(logits, targets)

    clipper.prepare((4,))
    clipper.clip(x, y, counted, C, sizes)
    assert calls == 3
