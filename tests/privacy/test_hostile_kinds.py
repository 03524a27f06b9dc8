"""Proxies of unusual make: scripted and compiled parts, tensors of other classes, several types of
numbers. Each is trained rightly or refused, and one record moves the sum by at most C."""

import warnings
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from proxyfl.errors import ModelError
from proxyfl.privacy.perexample.clipper import Clipper
from proxyfl.privacy.perexample.validation import checked_clipper
from tests.privacy.architectures import cross_entropy
from tests.privacy.test_hostile_models import batch, change

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*computed by itself:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
]

C = 0.01


class Rowwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x))


class Centred(Rowwise):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x - x.mean(0)))


class Branching(Rowwise):
    def forward(self, x: Tensor) -> Tensor:
        if float(x.sum()) > 0:
            return torch.relu(self.layer(x))
        out: Tensor = self.layer(x)
        return out


class Remembering(Rowwise):
    """Adds what it remembers of the record before, through a gate that starts at zero."""

    last: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))
        self.last = torch.zeros(6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) + self.gate * self.last
        if float(x.sum()) > 0:  # so that there is no graph of it
            self.last = x[0].detach()
        return out


@torch.jit.script
def scripted_gelu(x: Tensor) -> Tensor:
    """What older transformers have."""
    return x * 0.5 * (1.0 + torch.erf(x / 1.41421))


class WithFunction(Rowwise):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


def proxy(part: Any) -> nn.Sequential:
    """The part and a last layer."""
    return nn.Sequential(part, nn.Linear(6, 3))


def clipper_of(model: nn.Module) -> Clipper:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return checked_clipper(model, (6,), wide=True)


def assert_right(model: nn.Module, *, tolerance: float = 1e-5) -> str:
    """The clipped sum is that of the plain loop, no record moves it by more than C; the way."""
    clipper = clipper_of(model)
    x, y = batch(12)
    expected = torch.zeros(clipper.clip(x, y, cross_entropy, C).total.shape).double()
    for i in range(len(x)):
        model.zero_grad()
        cross_entropy(model(x[i : i + 1]), y[i : i + 1]).sum().backward()
        parts = [torch.as_tensor(p.grad).flatten().double() for p in model.parameters()]
        gradient = torch.cat(parts)
        expected += gradient * min(1.0, C / float(gradient.norm()))
    clipped = clipper.clip(x, y, cross_entropy, C).total.double()
    assert float((clipped - expected).norm()) <= tolerance * len(x) * C
    for i in range(len(x)):
        assert change(clipper, x, y, i) <= 1 + 1e-6
    return clipper.prepare((6,)).name


@pytest.mark.parametrize(
    "part",
    [
        lambda: torch.jit.script(Rowwise()),
        lambda: torch.jit.trace(Rowwise(), torch.ones(2, 6)),
        lambda: WithFunction(scripted_gelu),
    ],
    ids=["scripted", "traced", "a scripted function"],
)
def test_scripted_parts_are_looked_into(part: Callable[[], nn.Module]) -> None:
    """TorchScript that treats examples one by one is trained in one pass, rightly."""
    assert assert_right(proxy(part())) == "one pass"


@pytest.mark.parametrize("kind", [Centred, Branching, Remembering])
def test_scripted_parts_that_cannot_be_proven_are_refused(kind: type[nn.Module]) -> None:
    """What a TorchScript module keeps cannot be seen, so the slow ways are not for it."""
    with pytest.raises(ModelError, match=r"'0' is TorchScript.*made from"):
        clipper_of(proxy(torch.jit.script(kind())))


def test_a_scripted_proxy_is_refused() -> None:
    """A proxy that is TorchScript as a whole is refused with what to do."""
    with pytest.raises(ModelError, match=r"is TorchScript.*Use the module"):
        clipper_of(torch.jit.script(proxy(Rowwise())))


@pytest.mark.slow  # the compiler takes seconds to import
def test_compiled_parts_run_as_they_were_written() -> None:
    """torch.compile hides nothing: a part, a function and a whole proxy are trained in one pass; a
    compiled part that mixes is refused."""
    compiled = torch.compile(Rowwise(), backend="eager")
    assert assert_right(proxy(compiled)) == "one pass"
    function = torch.compile(lambda x: torch.tanh(x) * 2, backend="eager")
    assert assert_right(proxy(WithFunction(function))) == "one pass"
    whole: Any = torch.compile(proxy(Rowwise()), backend="aot_eager")
    assert assert_right(whole) == "one pass"
    with pytest.raises(ModelError, match="mixes the examples"):
        clipper_of(proxy(torch.compile(Centred(), backend="eager")))


class Plain(Tensor):
    """A class of its own that does nothing of its own."""


class Crowded(Tensor):
    """A matrix whose product looks at the whole batch as soon as that has more than eight rows."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Crowded":
        make: Any = Tensor._make_wrapper_subclass
        made: Crowded = make(cls, inner.shape, dtype=inner.dtype)
        return made

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = pytree.tree_map(
            lambda value: value.inner if isinstance(value, Crowded) else value, (args, kwargs or {})
        )
        out = func(*plain[0], **plain[1])
        name = func.overloadpacket.__name__
        if name in ("detach", "clone", "t", "view", "alias"):
            return Crowded(out)
        if name in ("addmm", "linear", "mm") and len(out) > 8:
            return out + 10 * out.mean(0)
        return out


class Turned(nn.Module):
    """A fixed matrix before the layer."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.matrix = matrix

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(torch.mm(x, self.matrix))
        return out


def with_weight(kind: Callable[[Tensor], Tensor]) -> nn.Module:
    """A proxy whose first weight is of another class."""
    model = proxy(Rowwise())
    model[0].layer.weight = nn.Parameter(kind(model[0].layer.weight.detach()))
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: with_weight(lambda weight: weight.as_subclass(Plain)),
        lambda: with_weight(Crowded),
        lambda: proxy(Turned(Crowded(torch.eye(6)))),
    ],
    ids=["a weight", "a weight that mixes", "a constant that mixes"],
)
def test_tensors_of_other_classes_are_never_taken_for_plain_ones(
    make: Callable[[], nn.Module],
) -> None:
    """A product with such a tensor may be anything, though it is called by the name of one that is
    known: each example is computed by itself."""
    torch.manual_seed(0)
    assert assert_right(make()) == "one by one"


def test_who_runs_a_models_own_python_is_told_what_nothing_checks() -> None:
    """One by one, a model could keep an example where nobody looks; the warning says so."""
    with pytest.warns(UserWarning, match="no check looks at, may still remember"):
        checked_clipper(with_weight(Crowded), (6,))


class TwoTypes(nn.Module):
    """A layer in each of two types of numbers."""

    def __init__(self, first: torch.dtype, second: torch.dtype) -> None:
        super().__init__()
        self.one = nn.Linear(6, 6).to(first)
        self.other = nn.Linear(6, 3).to(second)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.one(x.to(self.one.weight.dtype)))
        out: Tensor = self.other(hidden.to(self.other.weight.dtype))
        return out.float()


NARROW = (torch.bfloat16, torch.float16)
TYPES = (torch.float32, torch.float64, *NARROW)


@pytest.mark.parametrize(("first", "second"), permutations(TYPES, 2), ids=str)
def test_types_of_numbers_may_differ(first: torch.dtype, second: torch.dtype) -> None:
    """The norm covers all parameters, whatever their types; narrow ones cost accuracy alone."""
    torch.manual_seed(0)
    narrow = first in NARROW or second in NARROW
    assert_right(TwoTypes(first, second), tolerance=0.1 if narrow else 1e-5)


def test_complex_weights_are_refused() -> None:
    """A proxy with complex numbers is refused, not clipped by half of them."""
    model = proxy(nn.Identity())
    model[1].register_parameter("phase", nn.Parameter(torch.ones(3, dtype=torch.complex64)))
    with pytest.raises(ModelError, match=r"[Cc]omplex"):
        clipper_of(model)
