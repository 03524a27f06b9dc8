"""A site's client: what its sampling follows from, and what its ledger then says."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from proxyfl.data.examples import InMemory
from proxyfl.errors import ConfigError, ModelError
from proxyfl.node import assembly, preflight
from proxyfl.node.members import site as sites
from proxyfl.node.members.identity import Identity
from proxyfl.node.members.manifest import Input, Manifest
from proxyfl.node.members.manifest import Proxy as AgreedProxy
from proxyfl.node.members.site import Learning, Privacy, Site, Trust
from proxyfl.node.members.trust import code_of
from proxyfl.privacy.guarantee import Kind, Relation
from proxyfl.privacy.ledger import Ledger
from proxyfl.settings import ProxyTerms

from .federations import change, quick, trial

TRUST = Trust((__name__,), str(Path(__file__).parents[2]))
"""What lets a manifest name the proxy below."""


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """A federation of two, on tables of four numbers."""
    names = ("north", "south")
    cards = [Identity.create(tmp_path / name, name).card("127.0.0.1:7000") for name in names]
    return Manifest("heart", input=Input((4,), ("well", "sick")), members=tuple(cards))


@pytest.mark.parametrize(
    ("privacy", "rate", "relation"),
    [
        (Privacy(sampling_rate=0.25, delta=1e-3), 0.25, Relation.ADD_OR_REMOVE),
        (Privacy(examples=100), 0.2, Relation.ADD_OR_REMOVE),
        (Privacy(), 20 / 83, Relation.ZERO_OUT),
    ],
)
def test_a_sites_sampling_is_the_declared_one(
    manifest: Manifest, tmp_path: Path, privacy: Privacy, rate: float, relation: Relation
) -> None:
    """A declared rate or number decides how a site samples, and the ledger says which holds."""
    site = replace(Site("north"), learning=Learning(batch_size=20), privacy=privacy)
    examples = InMemory(torch.rand(83, 4), torch.arange(83) % 2)
    client = assembly.client(manifest, site, examples, ledger=tmp_path / "ledger.jsonl")
    assert client.learner.trainer.sampling_rate == pytest.approx(rate)
    assert client.ledger.epsilon().relation is relation


def test_an_impossible_rate_is_refused() -> None:
    """A sampling rate above 1 is an error that names the setting."""
    with pytest.raises(ConfigError, match=r"privacy\.sampling_rate"):
        Privacy(sampling_rate=1.5)


def branching(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    """A proxy that looks at its data: only its own Python can train it."""

    class Branching(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = torch.nn.Linear(math.prod(shape), classes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            flat = x.flatten(1)
            logits: torch.Tensor = self.last(flat + 1 if float(flat.sum()) == 0.5 else flat)
            return logits

    return Branching()


@pytest.mark.filterwarnings("ignore:.*computed by itself:UserWarning")
def test_a_real_site_refuses_an_unproven_proxy_unless_its_settings_trust_it(
    manifest: Manifest, tmp_path: Path
) -> None:
    """A site that refuses is charged for nothing; one that trusts has it on record."""
    agreed = replace(manifest, proxy=AgreedProxy(f"{__name__}:branching", 0))
    examples = InMemory(torch.rand(83, 4), torch.arange(83) % 2)
    site = replace(Site("north"), learning=Learning(batch_size=20), trust=TRUST)
    code = code_of(site, tmp_path)
    with pytest.raises(ModelError, match=r"proxy\.trust_unproven"):
        assembly.client(agreed, site, examples, ledger=tmp_path / "refused.jsonl", code=code)
    assert not Ledger.read(tmp_path / "refused.jsonl").charges
    trusting = replace(site, proxy=ProxyTerms(trust_unproven=True))
    assert "trust_unproven = true" in sites.to_toml(trusting)
    client = assembly.client(
        agreed, trusting, examples, ledger=tmp_path / "ledger.jsonl", code=code
    )
    client.learner.train(0, 1)
    (stated,) = client.ledger.gradients
    assert stated is not None
    assert stated.trusted


@pytest.mark.filterwarnings("ignore:.*computed by itself:UserWarning")
def test_preflight_says_how_gradients_are_computed(tmp_path: Path) -> None:
    """Proven is said in the line of the trial step; an unproven proxy fails there, until the
    site's settings trust it."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=3, template=quick())

    def line() -> preflight.Line:
        settings, folder = sites.read(layout.sites[0])
        checks = preflight.preflight(settings, folder)
        return next(each for each in checks if each.check == "models and one DP step")

    assert line().text.endswith("learns with DP; gradients: proven")
    unproven = AgreedProxy(f"{__name__}:branching", 0)
    for place in layout.sites:
        change(place, lambda site: replace(site, trust=TRUST))
    layout = trial.accept_everywhere(layout, replace(layout.manifest, proxy=unproven))
    assert not line().ok
    assert "proxy.trust_unproven = true in site.toml" in line().text
    change(layout.sites[0], lambda site: replace(site, proxy=ProxyTerms(trust_unproven=True)))
    assert line().ok
    assert "gradients: one by one, trusted unproven (" in line().text


@pytest.mark.parametrize(
    ("privacy", "delta"),
    [(Privacy(), 1e-3), (Privacy(examples=200), 1e-4), (Privacy(delta=0.004), 0.004)],
)
def test_a_new_sites_delta_is_a_tenth_of_one_in_n_or_less(
    manifest: Manifest, tmp_path: Path, privacy: Privacy, delta: float
) -> None:
    """Where a site states no delta, it is 1/(10 n) rounded down to a power of ten, for the declared
    n if there is one."""
    site = replace(Site("north"), learning=Learning(batch_size=20), privacy=privacy)
    examples = InMemory(torch.rand(83, 4), torch.arange(83) % 2)
    client = assembly.client(manifest, site, examples, ledger=tmp_path / "ledger.jsonl")
    assert client.ledger.delta == delta


@pytest.mark.parametrize("privacy", [Privacy(), Privacy(examples=100)])
def test_a_site_that_began_before_goes_on_as_it_began(
    manifest: Manifest, tmp_path: Path, privacy: Privacy
) -> None:
    """A ledger of an earlier release has delta 1/n and says zero-out, also for a declared number.
    The site continues it with what it says."""
    path = tmp_path / "ledger.jsonl"
    began = Ledger(
        "north",
        delta=1 / 83,
        kind=Kind.END_TO_END,
        simulated=False,
        relation=Relation.ZERO_OUT,
        path=path,
    )
    began.charge(0, 3, 0.2, 4.0)
    site = replace(Site("north"), learning=Learning(batch_size=20), privacy=privacy)
    examples = InMemory(torch.rand(83, 4), torch.arange(83) % 2)
    client = assembly.client(manifest, site, examples, ledger=path)
    assert (client.ledger.delta, client.ledger.relation) == (1 / 83, Relation.ZERO_OUT)
    client.learner.train(1, 1)
    assert Ledger.read(path).steps == 4
