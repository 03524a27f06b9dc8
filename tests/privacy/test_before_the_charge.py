"""What a proxy, its settings or its optimizer cannot do is refused before anything is charged."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

from proxyfl.data.examples import InMemory
from proxyfl.errors import DataError, ModelError, PrivacyError
from proxyfl.federation.assembly import Part, Parts, assemble, real
from proxyfl.federation.methods import METHODS
from proxyfl.privacy.dpsgd import DPSGD
from proxyfl.privacy.guarantee import Kind
from proxyfl.privacy.ledger import Ledger
from proxyfl.seeds import System
from proxyfl.settings import DP, Input, Learning, Local, Optimizer, Study
from tests.privacy.architectures import Fn, lin

pytestmark = pytest.mark.filterwarnings("ignore:.*computed by itself:UserWarning")

IDS = torch.arange(180).view(30, 6) % 9


def table() -> nn.Parameter:
    """Nine rows of four numbers, all longer than 1."""
    generator = torch.Generator().manual_seed(0)
    return nn.Parameter(3 * torch.randn(9, 4, generator=generator))


def trained(
    model: nn.Module,
    ledger: Ledger,
    *,
    classes: int = 3,
    x: Tensor = IDS,
    labels: Tensor | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """Three steps of DP-SGD on sequences of whole numbers, under a real ledger."""
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    private = DPSGD(
        model,
        optimizer or torch.optim.SGD(trainable, lr=0.1),
        InMemory(x, torch.arange(30) % 3 if labels is None else labels),
        dp=DP(clip_norm=1.0, noise_multiplier=1.0),
        classes=classes,
        batch_size=10,
        ledger=ledger,
        batches=System(),
        noise=System(),
        trust_unproven=True,
    )
    private.begin_round(0, 3)
    for _ in range(3):
        private.step(private.draw())


def looked_up(m: Fn, x: Tensor, **options: object) -> Tensor:
    rows = F.embedding(x, m.t, **options)  # type: ignore[arg-type]
    logits: Tensor = m.a(rows.flatten(1))
    return logits


def added_up(m: Fn, x: Tensor, **options: object) -> Tensor:
    logits: Tensor = m.a(F.embedding_bag(x, m.t, **options))  # type: ignore[arg-type]
    return logits


def wide(**options: object) -> nn.Module:
    return Fn(lambda m, x: looked_up(m, x, **options), a=lin(24, 3), t=table())


def narrow(**options: object) -> nn.Module:
    return Fn(lambda m, x: added_up(m, x, **options), a=lin(4, 3), t=table())


def frozen(**options: object) -> nn.Module:
    model = wide(**options)
    model.t.requires_grad_(False)
    return model


def bag(**options: object) -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(9, 4, mode="sum", **options), lin(4, 3))  # type: ignore[arg-type]


def layer(**options: object) -> nn.Module:
    return nn.Sequential(nn.Embedding(9, 4, **options), nn.Flatten(), lin(24, 3))  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [wide, narrow, frozen, bag, layer])
@pytest.mark.parametrize(
    ("options", "said"), [({"max_norm": 1.0}, "max_norm"), ({"sparse": True}, "sparse=False")]
)
def test_embeddings_that_cannot_be_trained_privately_are_refused_before_the_charge(
    make: object, options: dict[str, object], said: str
) -> None:
    """``max_norm`` writes to the weight in the forward pass, ``sparse`` gives gradients without
    zeros: as a layer or a function, learning or frozen."""
    ledger = Ledger("a", delta=1e-3, kind=Kind.END_TO_END, simulated=False)
    if make is frozen and "sparse" in options:
        trained(frozen(**options), ledger)  # it has no gradient
        return
    if make is narrow and "sparse" in options:
        options = {**options, "mode": "sum"}
    model = make(**options)  # type: ignore[operator]
    before = [weight.detach().clone() for weight in model.parameters()]
    with pytest.raises(ModelError, match=said):
        trained(model, ledger)
    assert not ledger.charges
    for weight, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(weight, value), "the check itself changed the model"


@pytest.mark.parametrize("make", [wide, narrow, bag, layer])
def test_plain_embeddings_are_trained(make: object) -> None:
    """The counterpart: with the defaults each of them trains."""
    ledger = Ledger("a", delta=1e-3, kind=Kind.END_TO_END, simulated=False)
    trained(make(), ledger)  # type: ignore[operator]
    assert ledger.steps == 3


def weight(*shape: int, **options: object) -> nn.Parameter:
    """A weight that learns."""
    generator = torch.Generator().manual_seed(0)
    return nn.Parameter(torch.randn(*shape, generator=generator, **options))  # type: ignore[call-overload]


def added(parameter: nn.Parameter) -> nn.Module:
    """A linear model with one more weight, the sum of which is added to all logits."""
    return Fn(lambda m, x: m.a(x) + m.w.sum(), a=lin(6, 3), w=parameter)


def beside(parameter: nn.Parameter) -> nn.Module:
    """A linear model with a weight that takes no part in it."""
    return Fn(lambda m, x: m.a(x), a=lin(6, 3), w=parameter)


def sparse_gather(m: Fn, x: Tensor) -> Tensor:
    places = torch.zeros(len(x), 3, dtype=torch.int64)
    logits: Tensor = m.a(x) + torch.gather(m.w.expand(len(x), 3), 1, places, sparse_grad=True)
    return logits


def in_inference_mode() -> nn.Module:
    with torch.inference_mode():
        return nn.Linear(6, 3)


def without_gradients(m: Fn, x: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = m.a(x)
    return logits


def not_a_number() -> nn.Module:
    model = nn.Linear(6, 3)
    nn.init.constant_(model.weight, float("nan"))
    return model


NARROW = torch.float8_e4m3fn

CANNOT = {
    "sparse weight": (
        lambda: Fn(
            lambda m, x: torch.sparse.mm(m.w, x.T).T, w=nn.Parameter(torch.eye(3, 6).to_sparse())
        ),
        "dense weights",
    ),
    "sparse gather": (lambda: Fn(sparse_gather, a=lin(6, 3), w=weight(1, 3)), "sparse"),
    "complex weight": (
        lambda: Fn(lambda m, x: (x + 0j @ m.w).abs(), w=weight(6, 3, dtype=torch.complex64)),
        "complex64",
    ),
    "eight bits": (lambda: added(nn.Parameter(torch.zeros(3).to(NARROW))), "float8"),
    "eight bits, unused": (lambda: beside(nn.Parameter(torch.zeros(3).to(NARROW))), "float8"),
    "fake quantisation": (
        lambda: nn.Sequential(torch.ao.quantization.FakeQuantize(), nn.Linear(6, 3)),
        "buffer 'scale'",
    ),
    "lazy layer": (lambda: nn.Sequential(nn.LazyLinear(3)), "has no shape yet"),
    "another device": (
        lambda: nn.Sequential(nn.Linear(6, 4, device="meta"), nn.Linear(4, 3)),
        "one device, got cpu, meta",
    ),
    "no device": (lambda: nn.Linear(6, 3, device="meta"), "one device, got meta"),
    "another device, unused": (lambda: beside(weight(3).to("meta")), "one device, got cpu, meta"),
    "nothing but empty weights": (
        lambda: Fn(lambda m, x: x[:, :3] + m.w.sum(), w=weight(0, 3)),
        "no trainable parameters",
    ),
    "no weight used": (lambda: Fn(lambda _m, x: x[:, :3] * 1.0, w=weight(5)), "require grad"),
    "no gradient": (lambda: Fn(without_gradients, a=lin(6, 3)), "require grad"),
    "made in inference mode": (in_inference_mode, "inference mode"),
    "not a number": (not_a_number, "not finite"),
    "complex logits": (lambda: Fn(lambda m, x: m.a(x) + 0j, a=lin(6, 3)), "ComplexFloat"),
    "whole logits": (lambda: Fn(lambda m, x: m.a(x).long(), a=lin(6, 3)), "Long"),
    "several outputs": (lambda: Fn(lambda m, x: (m.a(x),), a=lin(6, 3)), "one row per example"),
    "another type than its inputs": (lambda: nn.Linear(6, 3).half(), "same dtype"),
}


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_be_trained_is_refused_before_the_charge(name: str) -> None:
    """Weights, gradients and outputs of kinds that clipping and noise are not made for."""
    make, message = CANNOT[name]
    ledger = Ledger("a", delta=1e-3, kind=Kind.END_TO_END, simulated=False)
    model = make()
    with pytest.raises(ModelError, match=message):
        trained(model, ledger, x=IDS.float())
    assert not ledger.charges


CAN = {
    "sparse product": lambda: Fn(
        lambda m, x: torch.sparse.mm(m.w.to_sparse(), x.T).T, w=weight(3, 6)
    ),
    "scaled by frequency": lambda: Fn(
        lambda m, x: m.a(F.embedding(x, m.t, scale_grad_by_freq=True).flatten(1)),
        a=lin(24, 3),
        t=table(),
    ),
    "bag of means": lambda: Fn(lambda m, x: m.a(F.embedding_bag(x, m.t)), a=lin(4, 3), t=table()),
    "bag of largest": lambda: Fn(
        lambda m, x: m.a(F.embedding_bag(x, m.t, mode="max")), a=lin(4, 3), t=table()
    ),
    "empty weight": lambda: added(weight(0, 3)),
    "empty weight, unused": lambda: beside(weight(0)),
    "layer of no width": lambda: nn.Sequential(nn.Linear(6, 0), nn.Linear(0, 3)),
    "unused weight": lambda: beside(weight(5)),
    "weight spread out": lambda: added(nn.Parameter(torch.ones(1, 3).expand(4, 3))),
    "weight on its side": lambda: Fn(lambda m, x: x @ m.w, w=nn.Parameter(weight(3, 6).data.T)),
    "double": lambda: Fn(lambda m, x: m.a(x.double()), a=nn.Linear(6, 3).double()),
    "half": lambda: Fn(lambda m, x: m.a(x.half()).float(), a=nn.Linear(6, 3).half()),
    "checkpointed": lambda: Fn(
        lambda m, x: torch.utils.checkpoint.checkpoint(m.a, x, use_reentrant=False), a=lin(6, 3)
    ),
}


@pytest.mark.parametrize("name", CAN)
def test_what_looks_the_same_and_can_be_trained_is_trained(name: str) -> None:
    """The counterparts: nothing is refused for its looks, and nothing fails after the charge."""
    ledger = Ledger("a", delta=1e-3, kind=Kind.END_TO_END, simulated=False)
    model = CAN[name]()
    trained(model, ledger, x=IDS if hasattr(model, "t") else IDS.float())
    assert ledger.steps == 3
    assert all(bool(weight.isfinite().all()) for weight in model.parameters())


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_label_without_a_class_is_refused_before_the_charge(wrong: int) -> None:
    """The step that draws it would stop, after its charge, for all peers to see."""
    ledger = Ledger("a", delta=1e-3, kind=Kind.END_TO_END, simulated=False)
    labels = torch.arange(30) % 3
    labels[17] = wrong
    with pytest.raises(DataError, match="Expected labels from 0 to 2 for 3 classes"):
        trained(nn.Linear(6, 3), ledger, x=IDS.float(), labels=labels)
    assert not ledger.charges


@pytest.mark.parametrize("columns", [2, 4])
def test_a_proxy_of_another_number_of_classes_is_refused_before_the_charge(columns: int) -> None:
    """The labels' classes and the proxy's logits must be equally many."""
    ledger = Ledger("a", delta=1e-3, kind=Kind.END_TO_END, simulated=False)
    with pytest.raises(ModelError, match=r"Expected 3 logits for each example .* as wide as"):
        trained(nn.Linear(6, columns), ledger, x=IDS.float())
    assert not ledger.charges


OPTIMIZERS = {
    "SparseAdam": lambda weights: torch.optim.SparseAdam(weights),
    "Adam": lambda weights: torch.optim.Adam(weights, capturable=True),
    "Sometimes": lambda weights: Sometimes(weights, lr=0.1),
}


class Sometimes(torch.optim.SGD):
    """An optimizer that cannot take its first step."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        raise NotImplementedError("not on this machine")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_cannot_step_is_refused_before_the_charge(name: str) -> None:
    """One step is tried on a copy: of sparse gradients, of options that do not go together."""
    ledger = Ledger("a", delta=1e-3, kind=Kind.END_TO_END, simulated=False)
    model = nn.Linear(6, 3)
    before = model.weight.detach().clone()
    with pytest.raises(PrivacyError, match=f"{name} cannot take a step"):
        trained(model, ledger, x=IDS.float(), optimizer=OPTIMIZERS[name](model.parameters()))
    assert not ledger.charges
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_a_proxy_that_cannot_be_sent_is_refused_before_the_charge(
    kind: torch.dtype, tmp_path: Path
) -> None:
    """Parameters travel as float32. One that is of another type was trained, and paid for, and then
    stayed."""
    model = nn.Sequential(Fn(lambda x: x.to(kind)), nn.Linear(6, 3).to(kind))
    data = InMemory(IDS.float(), torch.arange(30) % 3)
    study = Study("s", input=Input((6,), ("0", "1", "2")))
    local = Local("a", learning=Learning(batch_size=5))
    path = tmp_path / "ledger.jsonl"
    with pytest.raises(ModelError, match=r"'1\.weight'.*travel as float32"):
        assemble(
            study,
            local,
            data,
            METHODS["avgpush"],
            real(),
            ledger=path,
            parts=Parts(None, Part(model, Optimizer("sgd"))),
        )
    assert not path.exists()
