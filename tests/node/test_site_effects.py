"""Odds ratios at a real site, whose own inputs stand for all others'."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from proxyfl.cli.main import main
from proxyfl.errors import ConfigError
from proxyfl.federation.effects import Mechanism, fit
from proxyfl.node.members.manifest import Graph, Masked
from proxyfl.node.trial import Layout, accept_everywhere
from proxyfl.simulation import effects as module
from proxyfl.simulation.effects import effects

from .federations import running
from .test_task_sites import three_sites

LABEL = 'column = "ill"\nclasses = ["no", "yes"]'


def finished(folder: Path, *, masked: bool) -> Layout:
    """Three sites with a linear proxy, which have ended."""
    layout = three_sites(folder, "regression", label=LABEL)
    for seed, place in enumerate(layout.sites):
        draw = random.Random(seed)
        lines = []
        for _ in range(90):
            a, b = draw.uniform(-1, 1), draw.uniform(-1, 1)
            ill = draw.random() < 1 / (1 + math.exp(b - 2 * a))
            lines.append(f"{a:.3f},{b:.3f},{'yes' if ill else 'no'}")
        (place / "patients.csv").write_text("\n".join(["a,b,ill", *lines]) + "\n")
    if masked:
        terms = Masked(
            1,
            3,
            steps=10,
            noise_multiplier=2.0,
            clip_norm=1.5,
            optimizer="sgd",
            learning_rate=0.5,
            momentum=0.5,
        )
        layout = accept_everywhere(layout, replace(layout.manifest, graph=Graph(masked=terms)))
    with running(layout) as made:
        made.join()
    assert set(made.ended.values()) == {"finished"}
    return layout


def test_a_site_of_a_masked_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the sizes of the others it has a table and says on what it rests; the noise is that of
    three shares, and rows stand for all sites' records. Without the sizes it asks for them."""
    seen: list[Mechanism] = []

    def look(mechanism: Mechanism, *rest: object, **more: object) -> object:
        seen.append(mechanism)
        return fit(mechanism, *rest, **more)

    monkeypatch.setattr(module, "fit", look)
    first = finished(tmp_path, masked=True).sites[0]
    sizes = ["--records", "south=72", "--records", "east=80"]
    capsys.readouterr()
    assert main(["effects", str(first), *sizes, "--draws", "600", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["column"] for each in document["effects"]] == ["a", "b"]
    for each in document["effects"]:
        assert each["low"] < each["odds_ratio"] < each["high"]
    assert "inputs of north stand for those of all sites" in document["notes"][1]
    (member,) = seen[0].members
    own = len(member.inputs) // 3
    assert float(member.stands_for.sum()) == pytest.approx(own + 72 + 80)
    assert member.noise == pytest.approx(2.0 * 1.5 * math.sqrt(3 / 2))
    assert seen[0].rounds == 4
    assert member.steps == 10
    with pytest.raises(ConfigError, match="--records south=N --records east=N"):
        effects(first)


def test_gossip_between_real_sites_is_refused(tmp_path: Path) -> None:
    """What the others decide by themselves is not known."""
    first = finished(tmp_path, masked=False).sites[0]
    with pytest.raises(ConfigError, match=r"what others decide .* is not known here"):
        effects(first)
