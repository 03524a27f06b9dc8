"""A batch in slices (``max_physical_batch_size``): the same sum, the same cost, less memory."""

import pytest
import torch
from torch import Tensor, nn

from proxyfl.data.examples import InMemory
from proxyfl.errors import ConfigError
from proxyfl.node.members.site import Privacy as SitePrivacy
from proxyfl.privacy.dpsgd import DPSGD
from proxyfl.privacy.guarantee import Kind
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.perexample.clipper import Clipped, Clipper
from proxyfl.seeds import Seeded
from proxyfl.settings import DP
from proxyfl.simulation.config import Privacy
from tests.privacy.architectures import SOUND, cross_entropy, records

KINDS = ["MLP", "CNN, GroupNorm", "LSTM", "tied embedding", "spectral norm"]


def clipped(name: str, n: int, at_once: int | None, sizes: Tensor | None) -> Clipped:
    """The sum over ``n`` records of the zoo's model ``name``, and the buffers afterwards."""
    torch.manual_seed(0)
    entry = SOUND[name]
    model = entry.make().double().train()
    x, y = records(entry, n)
    found = Clipper(model, dp=DP(max_physical_batch_size=at_once)).clip(
        x, y, cross_entropy, 0.5, sizes
    )
    buffers = [buffer.flatten() for buffer in model.buffers()]
    total = torch.cat([found.total, *buffers])
    return Clipped(total, found.loss, found.norms)


@pytest.mark.parametrize("at_once", [1, 4, 9, 50])
@pytest.mark.parametrize("name", KINDS)
def test_slices_add_up_to_the_whole(name: str, at_once: int) -> None:
    """However the batch is cut, sum, loss and norms are those of the whole; buffers that move on
    in a step do so once."""
    whole = clipped(name, 9, None, None)
    cut = clipped(name, 9, at_once, None)
    torch.testing.assert_close(cut.total, whole.total, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(cut.norms, whole.norms, rtol=1e-9, atol=0)
    assert cut.loss == pytest.approx(whole.loss)


@pytest.mark.parametrize("name", ["MLP", "spectral norm"])
def test_a_group_is_never_cut(name: str) -> None:
    """A person with more records than a slice holds is one unit all the same."""
    sizes = torch.tensor([5, 1, 3])
    whole = clipped(name, 9, None, sizes)
    cut = clipped(name, 9, 2, sizes)
    torch.testing.assert_close(cut.total, whole.total, rtol=1e-9, atol=1e-11)


def test_one_record_moves_a_sliced_sum_by_at_most_c() -> None:
    """Taking a record away shifts all later slices, and the sum by no more than C."""
    x, y = records(SOUND["CNN"], 11)
    x[4] *= 1e4
    torch.manual_seed(0)
    clipper = Clipper(SOUND["CNN"].make().double(), dp=DP(max_physical_batch_size=3))
    whole = clipper.clip(x, y, cross_entropy, 0.5).total.clone()
    for removed in range(11):
        rest = torch.arange(11) != removed
        total = clipper.clip(x[rest], y[rest], cross_entropy, 0.5).total
        assert float((whole - total).norm()) <= 0.5 * (1 + 1e-6)


def test_a_record_without_a_gradient_stays_alone_in_its_slice() -> None:
    """A record that is not finite contributes nothing, and the other slices know nothing of it."""
    x, y = records(SOUND["MLP"], 7)
    x[2] = torch.inf
    rest = torch.arange(7) != 2
    torch.manual_seed(0)
    clipper = Clipper(SOUND["MLP"].make().double(), dp=DP(max_physical_batch_size=2))
    found = clipper.clip(x, y, cross_entropy, 0.5).total.clone()
    expected = clipper.clip(x[rest], y[rest], cross_entropy, 0.5).total
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def trained(size: int | None) -> tuple[Tensor, float]:
    """The parameters after three noisy steps, and the epsilon that they cost."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1)).double()
    ledger = Ledger("a", delta=1e-3, kind=Kind.END_TO_END, simulated=True)
    private = DPSGD(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        InMemory(x, torch.arange(40) % 3),
        dp=DP(clip_norm=0.3, noise_multiplier=1.0, max_physical_batch_size=size),
        classes=3,
        batch_size=20,
        ledger=ledger,
        batches=Seeded(0, "batches"),
        noise=Seeded(0, "noise"),
    )
    private.begin_round(0, 3)
    for _ in range(3):
        private.step(private.draw())
    parameters = torch.cat([p.detach().flatten() for p in model.parameters()])
    return parameters, ledger.epsilon().pld


def test_training_in_slices_is_the_same_mechanism() -> None:
    """The same batches, one noise per step, the same epsilon: the same model up to rounding."""
    whole, cost = trained(None)
    cut, cut_cost = trained(3)
    torch.testing.assert_close(cut, whole, rtol=1e-9, atol=1e-12)
    assert cut_cost == cost


def test_activations_of_one_slice_are_in_memory_at_a_time() -> None:
    """The largest batch that the model sees is the slice."""
    seen: list[int] = []
    model = nn.Linear(6, 3)
    clipper = Clipper(model, dp=DP(max_physical_batch_size=4))
    way = clipper.prepare((6,), torch.float32)
    original = way.terms

    def watched(x: Tensor, *rest: object) -> object:
        seen.append(len(x))
        return original(x, *rest)

    object.__setattr__(way, "terms", watched)
    clipper.clip(torch.randn(10, 6), torch.arange(10) % 3, cross_entropy, 1.0)
    assert seen == [4, 4, 2]


@pytest.mark.parametrize("settings", [Privacy, SitePrivacy])
def test_a_slice_has_at_least_one_record(settings: type) -> None:
    """A run's config and a site's refuse an empty slice by the setting's name."""
    assert settings(max_physical_batch_size=1).max_physical_batch_size == 1
    with pytest.raises(ConfigError, match=r"privacy\.max_physical_batch_size"):
        settings(max_physical_batch_size=0)
