"""What was tried to make joining pay more: the scripts, on data that can be followed."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import interactions, keeping, leaves, levers
from proxyfl.data.examples import InMemory
from proxyfl.data.features.backbones import build


def test_pictures_of_the_random_process_need_no_data() -> None:
    """A seed draws the same dead leaves again; they are grey values, and not blank."""
    one, again = (leaves.pictures(3, torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(one, again)
    assert one.shape == (3, 1, leaves.SIDE, leaves.SIDE)
    assert 0 <= one.min() < one.max() <= 1


def test_the_network_of_leaves_is_an_embedder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What training saves, ``proxyfl embed --model benchmarks.leaves:features`` takes."""
    weights = tmp_path / "leaves.pt"
    torch.save(leaves.trained(1).state_dict(), weights)
    shape = (1, leaves.SIDE, leaves.SIDE)
    options = {"weights": str(weights)}
    model, width = build("benchmarks.leaves:features", shape, options)
    assert model(torch.rand(2, *shape)).shape == (2, width)
    assert "alignment" in capsys.readouterr().out


def test_only_proxies_that_see_interactions_learn_one() -> None:
    """The label is whether two inputs agree: a linear proxy ranks at chance, the others well."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 2, (600, 4), generator=draw) * 2.0 - 1
    y = (x[:, 0] == x[:, 1]).long()
    sites = [InMemory(x[:200], y[:200]), InMemory(x[200:400], y[200:400])]
    judged = [InMemory(x[400:], y[400:])] * 2
    federation = interactions.Federation(sites, judged, 2)
    scores = {}
    for name, proxy in interactions.proxies(4, 2).items():
        trained = interactions.trained(proxy, federation, None, 0)
        scores[name] = federation.score(trained)
    assert scores["linear"] < 0.65
    assert min(scores["pairs"], scores["fourier"], scores["hidden"]) > 0.9


def test_a_site_is_judged_with_and_without_the_bare_proxy() -> None:
    """Both rules give every site its gain over its own model."""
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(3, 6))
    parts = []
    for _ in range(2):
        y = draw.integers(0, 3, 30)
        x = centres[y] + draw.normal(size=(30, 6))
        parts.append((np.hstack([x, np.ones((30, 1))]), y))
    federation = levers.Federation("two sites", parts, parts[0], 3)
    found = list(keeping.gains(federation, 3.0, 0))
    assert [rule for rule, _ in found] == 2 * list(keeping.RULES)
    assert all(-1 < gain < 1 for _, gain in found)
