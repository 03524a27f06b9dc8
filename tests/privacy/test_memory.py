"""Places in which an unproven proxy's Python can remember a record: each is looked at.

Such a proxy is computed one by one, by its own code. Whatever of it is another after a forward pass
than before is refused: at the check, or at the latest after the first record."""

import functools
import io
import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from proxyfl.errors import ModelError
from proxyfl.privacy.perexample.clipper import Clipper
from proxyfl.privacy.perexample.validation import checked_clipper
from tests.privacy import architectures
from tests.privacy.architectures import cross_entropy

pytestmark = pytest.mark.filterwarnings("ignore:.*computed by itself:UserWarning")

GLOBAL: list[Tensor] = []


class Base(nn.Module):
    """Looks at its data, so that no graph is recorded, and then remembers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if float(x.sum()) == 0.5:
            x = x + 1
        self.remember(x.detach())
        logits: Tensor = self.a(x)
        return logits

    def remember(self, x: Tensor) -> None:
        """Remembers nothing."""


class Closure(Base):
    def __init__(self) -> None:
        super().__init__()
        kept: list[Tensor] = []

        def note(x: Tensor) -> None:
            kept.append(x)

        self.note = note

    def remember(self, x: Tensor) -> None:
        self.note(x)


class Notebook:
    """An object that is called, and keeps what it is given."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []

    def __call__(self, x: Tensor) -> None:
        self.kept.append(x)


class CallableObject(Base):
    def __init__(self) -> None:
        super().__init__()
        self.note = Notebook()

    def remember(self, x: Tensor) -> None:
        self.note(x)


class ClassAttribute(Base):
    kept: ClassVar[list[Tensor]] = []

    def remember(self, x: Tensor) -> None:
        self.kept.append(x)


class Slotted:
    """An object without a ``__dict__``."""

    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen: Any = None


class Slots(Base):
    def __init__(self) -> None:
        super().__init__()
        self.note = Slotted()

    def remember(self, x: Tensor) -> None:
        self.note.seen = x.sum().item()


class Unregistered(Base):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.Linear(6, 6)]

    def remember(self, x: Tensor) -> None:
        with torch.no_grad():
            self.hidden[0].weight.add_(x.mean())


class PastAutograd(Base):
    def __init__(self) -> None:
        super().__init__()
        self.kept = [torch.zeros(6)]

    def remember(self, x: Tensor) -> None:
        self.kept[0].data.add_(x.sum(0))


class DeepContainer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, Any] = {"a": [{"b": ([{"c": [[]]}],)}]}

    def remember(self, x: Tensor) -> None:
        self.kept["a"][0]["b"][0][0]["c"][0].append(x)


class BoundMethod(Base):
    def __init__(self) -> None:
        super().__init__()
        self.note = [].append

    def remember(self, x: Tensor) -> None:
        self.note(x)  # type: ignore[arg-type]


class Partial(Base):
    def __init__(self) -> None:
        super().__init__()
        self.note = functools.partial(list.append, [])

    def remember(self, x: Tensor) -> None:
        self.note(x)


class Default(Base):
    def remember(self, x: Tensor, kept: list[Tensor] = []) -> None:  # noqa: B006  # the point
        kept.append(x)


class FunctionAttribute(Base):
    def remember(self, x: Tensor) -> None:
        type(self).remember.seen = x  # type: ignore[attr-defined]


class Global(Base):
    def remember(self, x: Tensor) -> None:
        GLOBAL.append(x)


class Buffer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.kept = bytearray(8)

    def remember(self, x: Tensor) -> None:
        self.kept[0] = (self.kept[0] + 1) % 256


class Counter(Base):
    def __init__(self) -> None:
        super().__init__()
        self.kept = itertools.count()

    def remember(self, x: Tensor) -> None:
        next(self.kept)


class Stream(Base):
    def __init__(self) -> None:
        super().__init__()
        self.kept = io.BytesIO()

    def remember(self, x: Tensor) -> None:
        self.kept.write(x.numpy().tobytes())


class Iterator(Base):
    def __init__(self) -> None:
        super().__init__()
        self.kept = iter(range(10**6))

    def remember(self, x: Tensor) -> None:
        next(self.kept)


class Array(Base):
    def __init__(self) -> None:
        super().__init__()
        self.kept = np.array([None, None], dtype=object)

    def remember(self, x: Tensor) -> None:
        self.kept[0] = float(x.sum())


class Gradient(Base):
    def __init__(self) -> None:
        super().__init__()
        self.kept = (torch.zeros(6),)

    def remember(self, x: Tensor) -> None:
        self.kept[0].grad = x[0].clone()


class Sign(Base):
    """Remembers in what comparisons do not see: 0.0 equals -0.0."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = [0.0]

    def remember(self, x: Tensor) -> None:
        self.kept[0] = -self.kept[0]


class Hook(Base):
    """Remembers in a hook of one of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a.register_forward_hook(functools.partial(keep, {}))


def keep(kept: dict[int, Any], _module: nn.Module, arguments: tuple[Tensor], _out: Tensor) -> None:
    kept[len(kept)] = arguments[0].detach()


class OtherModule(Base):
    """Remembers in a global variable of another module."""

    def remember(self, x: Tensor) -> None:
        architectures.LAST = x  # type: ignore[attr-defined]


class Counting(torch.autograd.Function):
    """A backward pass of its own, with a memory in the class."""

    seen: ClassVar[list[float]] = []

    @staticmethod
    def forward(_context: Any, x: Tensor) -> Tensor:
        Counting.seen.append(float(x.sum()))
        return x.clone()

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


class OwnBackward(Base):
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.a(Counting.apply(x))  # type: ignore[no-untyped-call]
        return logits


class Generator(Base):
    def __init__(self) -> None:
        super().__init__()
        self.kept = self.running()
        next(self.kept)

    def running(self) -> Any:
        total = 0.0
        while True:
            total += yield

    def remember(self, x: Tensor) -> None:
        self.kept.send(float(x.sum()))


class Cached(Base):
    def __init__(self) -> None:
        super().__init__()
        self.note = functools.lru_cache(lambda number: number)

    def remember(self, x: Tensor) -> None:
        self.note(float(x.sum()))


class WeightAttribute(Base):
    def remember(self, x: Tensor) -> None:
        self.a.weight.seen = x  # type: ignore[assignment]


class WeightGradient(Base):
    def remember(self, x: Tensor) -> None:
        self.a.weight.grad = x.sum() * torch.ones_like(self.a.weight)


class Mode(Base):
    def remember(self, x: Tensor) -> None:
        self.a.train(not self.a.training)


class Code(Base):
    """Remembers by replacing the code of one of its functions."""

    def note(self) -> float:
        return 0.0

    def remember(self, x: Tensor) -> None:
        other = float(self.note() == 0.0)
        type(self).note.__code__ = eval(f"lambda _: {other}").__code__


class Constant(Base):
    """The other code differs in a constant of a function within it."""

    def __init__(self) -> None:
        super().__init__()
        self.note = eval("lambda: (lambda: 0.5)")

    def remember(self, x: Tensor) -> None:
        self.note.__code__ = eval(f"lambda: (lambda: {float(x.sum())})").__code__


PLACES: list[Callable[[], Base]] = [
    Closure,
    CallableObject,
    ClassAttribute,
    Slots,
    Unregistered,
    PastAutograd,
    DeepContainer,
    BoundMethod,
    Partial,
    Default,
    FunctionAttribute,
    Global,
    Buffer,
    Counter,
    Stream,
    Iterator,
    Array,
    Gradient,
    Sign,
    Hook,
    OtherModule,
    OwnBackward,
    Generator,
    Cached,
    WeightAttribute,
    WeightGradient,
    Mode,
    Code,
    Constant,
]


def batch() -> tuple[Tensor, Tensor]:
    """Eight records and their labels."""
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    return x, torch.arange(8) % 3


def clipped(model: nn.Module) -> Clipper:
    """A clipper of the model that has clipped one batch."""
    clipper = checked_clipper(model, (6,))
    x, y = batch()
    assert len(clipper.clip(x, y, cross_entropy, 1.0).norms) == len(x)
    return clipper


@pytest.mark.parametrize("make", PLACES)
def test_memory_is_refused_wherever_python_keeps_it(make: Callable[[], Base]) -> None:
    """A proxy that remembers its records is not trained."""
    with pytest.raises(ModelError, match="in a forward pass"):
        clipped(make())


def test_a_proxy_that_remembers_nothing_is_trained() -> None:
    """The counterpart, so that the test above can fail."""
    assert clipped(Base()).prepare((6,)).name == "one by one"
