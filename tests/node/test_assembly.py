"""A site's client: what its sampling follows from, and what its ledger then says."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from proxyfl.data.examples import InMemory
from proxyfl.errors import ConfigError
from proxyfl.node import assembly
from proxyfl.node.members.identity import Identity
from proxyfl.node.members.manifest import Input, Manifest
from proxyfl.node.members.site import Learning, Privacy, Site
from proxyfl.privacy.guarantee import Relation


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """A federation of two, on tables of four numbers."""
    names = ("north", "south")
    cards = [
        Identity.create(tmp_path / name, name).card("127.0.0.1:7000")
        for name in names
    ]
    return Manifest(
        "heart", input=Input((4,), ("well", "sick")), members=tuple(cards)
    )


@pytest.mark.parametrize(
    ("privacy", "rate", "relation"),
    [
        (Privacy(sampling_rate=0.25, delta=1e-3), 0.25, Relation.ADD_OR_REMOVE),
        (Privacy(examples=100), 0.2, Relation.ZERO_OUT),
        (Privacy(), 20 / 83, Relation.ZERO_OUT),
    ],
)
def test_a_sites_sampling_is_the_declared_one(
    manifest: Manifest,
    tmp_path: Path,
    privacy: Privacy,
    rate: float,
    relation: Relation,
) -> None:
    """A declared rate or number decides how a site samples, and the ledger says which holds."""
    site = replace(Site("north"), learning=Learning(batch_size=20), privacy=privacy)
    examples = InMemory(torch.rand(83, 4), torch.arange(83) % 2)
    client = assembly.client(
        manifest, site, examples, ledger=tmp_path / "ledger.jsonl"
    )
    assert client.learner.trainer.sampling_rate == pytest.approx(rate)
    assert client.ledger.epsilon().relation is relation


def test_an_impossible_rate_is_refused() -> None:
    """A sampling rate above 1 is an error that names the setting."""
    with pytest.raises(ConfigError, match=r"privacy\.sampling_rate"):
        Privacy(sampling_rate=1.5)
