"""How gradients are computed is stated, on record, and under real noise a matter of trust."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from proxyfl.data.examples import InMemory
from proxyfl.errors import ModelError
from proxyfl.privacy.dpsgd import DPSGD
from proxyfl.privacy.guarantee import Computation, Gradients, Kind
from proxyfl.privacy.ledger import Ledger
from proxyfl.seeds import Seeded, System
from proxyfl.settings import DP

pytestmark = pytest.mark.filterwarnings("ignore:.*computed by itself:UserWarning")


class Branching(nn.Module):
    """Looks at its data, so that no graph can be recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.a(x + 1 if float(x.sum()) == 0.5 else x)
        return logits


class Numbered(nn.Module):
    """Scales by the number of records: no proof, but a graph of one record."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.a(x) / len(x)
        return logits


def trainer(model: nn.Module, *, real: bool = False, path: Path | None = None, **more) -> DPSGD:
    """DP-SGD of ``model`` on thirty records, with seeded noise or real noise."""
    x = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
    return DPSGD(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        InMemory(x, torch.arange(30) % 3),
        dp=DP(clip_norm=1.0, noise_multiplier=1.0),
        classes=3,
        batch_size=5,
        ledger=Ledger("a", delta=1e-3, kind=Kind.END_TO_END, simulated=not real, path=path),
        batches=System() if real else Seeded(0, "batches"),
        noise=System() if real else Seeded(0, "noise"),
        **more,
    )


@pytest.mark.parametrize(
    ("make", "way", "reason"),
    [
        (lambda: nn.Linear(6, 3), Computation.PROVEN, ""),
        (Numbered, Computation.VMAPPED, "how many examples there are"),
        (Branching, Computation.ONE_BY_ONE, "looks at numbers"),
    ],
)
def test_a_trainer_says_how_it_computes_gradients_and_why(make, way, reason) -> None:
    """``DPSGD.gradients`` names the way and what stood in the way of the proof."""
    stated = trainer(make()).gradients
    assert stated.way is way
    assert reason in stated.reason
    assert bool(stated.reason) is (way is not Computation.PROVEN)
    assert not stated.trusted


def test_under_real_noise_an_unproven_proxy_needs_trust() -> None:
    """A proxy whose Python runs on records is refused with a real ledger before anything is
    charged; trusted it trains, and the statement says so. Vmapped proxies run no Python."""
    with pytest.raises(ModelError, match=r"proxy\.trust_unproven = true in site\.toml"):
        trainer(Branching(), real=True)
    trusted = trainer(Branching(), real=True, trust_unproven=True)
    assert trusted.gradients.trusted
    assert str(trusted.gradients).startswith("one by one, trusted unproven (")
    for model in (Numbered(), nn.Linear(6, 3)):
        private = trainer(model, real=True, trust_unproven=True)
        assert not private.gradients.trusted, "nothing of it is taken on trust"


def test_a_ledger_has_on_record_how_gradients_were_computed(tmp_path: Path) -> None:
    """The way stands in the file before the first charge, once; a round without steps states
    nothing; steps of earlier releases count as not recorded."""
    path = tmp_path / "ledger.jsonl"
    private = trainer(Branching(), real=True, path=path, trust_unproven=True)
    private.begin_round(0, 0)
    assert private.ledger.gradients == ()
    private.begin_round(1, 2)
    private.begin_round(2, 2)
    again = Ledger.read(path)
    assert again.gradients == (private.gradients,)
    assert again.charges == private.ledger.charges
    assert [charge.steps for charge in again.charges] == [0, 2, 2]
    lines = path.read_text().splitlines()
    assert '"way": "one by one"' in lines[2]
    assert sum('"way"' in line for line in lines) == 1

    old = Ledger("a", delta=1e-3, kind=Kind.END_TO_END, simulated=True)
    old.charge(0, 1, 0.1, 1.0)
    old.record_gradients(Gradients(Computation.PROVEN))
    assert old.gradients == (None, Gradients(Computation.PROVEN))


def test_every_mode_of_the_model_uses_the_way_that_was_checked() -> None:
    """A model that stays out of training mode is trained on the graph that was proven, not on a
    way that nobody has checked."""

    class Stubborn(Branching):
        def train(self, mode: bool = True) -> "Stubborn":
            super().train(mode)
            if self.late:
                self.training = False
            return self

        late = False

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) if self.training else super().forward(x)

    model = Stubborn()
    private = trainer(model, real=True)
    assert private.gradients.way is Computation.PROVEN
    Stubborn.late = True
    private.begin_round(0, 1)
    private.step(private.draw())
    assert private._clipper.prepare((6,)).computation is Computation.PROVEN
