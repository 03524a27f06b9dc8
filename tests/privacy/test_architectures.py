"""The zoo (``architectures``): what becomes of each proxy, and how far one record can move it."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from proxyfl import params
from proxyfl.errors import ModelError
from proxyfl.privacy.perexample.clipper import Clipper
from proxyfl.privacy.perexample.validation import checked_clipper
from tests.privacy.architectures import (
    REFUSED,
    SOUND,
    UNSOUND,
    Entry,
    cross_entropy,
    measured_change,
    records,
)

ALL = {**SOUND, **UNSOUND}


def accepted(entry: Entry) -> Clipper:
    """A clipper for the architecture in float64, its weights moved away from where they start."""
    torch.manual_seed(0)
    model = entry.make().double().train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dtype = torch.int64 if entry.ids else torch.float64
        clipper = checked_clipper(model, entry.shape, dtype=dtype)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter += 0.3 * noise
    if entry.draws:
        model.eval()
    return clipper


def verdict(entry: Entry) -> tuple[str, float | None]:
    """The way that is taken and the measured change in C; or that the model is refused."""
    try:
        clipper = accepted(entry)
    except ModelError:
        return REFUSED, None
    return clipper.prepare(entry.shape).name, measured_change(clipper, entry)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ALL)
def test_nothing_above_c_is_accepted(name: str) -> None:
    """Each architecture meets its verdict, and one record moves an accepted one by at most C."""
    way, change = verdict(ALL[name])
    assert way == ALL[name].expected
    assert change is None or change <= 1 + 1e-6


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SOUND)
def test_sound_architectures_are_clipped_exactly(name: str) -> None:
    """For every sound architecture the sum is that of the definition: each example alone, by plain
    autograd."""
    entry = SOUND[name]
    clipper = accepted(entry)
    buffers = {name: b.clone() for name, b in clipper.model.named_buffers()}
    x, y = records(entry, 5)
    found = clipper.clip(x, y, cross_entropy, 0.5).total.clone()
    expected = torch.zeros_like(found)
    for i in range(5):
        for path, buffer in clipper.model.named_buffers():
            buffer.copy_(buffers[path])
        expected += clipped_alone(clipper, x[i : i + 1], y[i : i + 1], 0.5)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


def clipped_alone(clipper: Clipper, x: Tensor, y: Tensor, clip_norm: float) -> Tensor:
    """One example's clipped gradient, written out (two copies of it, since squeeze() needs two)."""
    model = clipper.model
    losses = cross_entropy(model(torch.cat([x, x])), torch.cat([y, y]))
    parts = torch.autograd.grad(losses[0], params.trainable(model), materialize_grads=True)
    flat = torch.cat([part.reshape(-1) for part in parts])
    return flat * min(1.0, clip_norm / float(flat.norm()))


def test_the_zoo_is_large_enough() -> None:
    """At least 35 sound architectures and 25 unsound ones are in the table."""
    assert len(SOUND) >= 35
    assert len(UNSOUND) >= 25


def test_the_table_in_the_docs_is_this_zoo() -> None:
    """docs/research/zoo.md has a line for each architecture, with its verdict."""
    page = (Path(__file__).parents[2] / "docs" / "research" / "zoo.md").read_text()
    for name, entry in ALL.items():
        line = next(row for row in page.splitlines() if row.startswith(f"| {name} |"))
        assert f"| {entry.expected} |" in line
    before = json.loads((Path(__file__).parent / "before.json").read_text())
    assert before.keys() >= ALL.keys()
