"""torch's optimizers, without its compiler.

torch decorates the methods of ``Optimizer`` for ``torch.compile``, and the decorators load the
compiler at the first optimizer that is made: 1.5 s of CPU time in each process, whether anything is
compiled or not. These classes call the methods beneath the decorators. Values, state and hooks are
those of torch's own."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


class Adam(torch.optim.Adam):
    """``torch.optim.Adam``, bit for bit."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """One step; with a ``closure`` returns its loss."""
        with torch.no_grad():
            return inspect.unwrap(torch.optim.Adam.step)(self, closure)


class SGD(torch.optim.SGD):
    """``torch.optim.SGD``, bit for bit."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """One step; with a ``closure`` returns its loss."""
        with torch.no_grad():
            return inspect.unwrap(torch.optim.SGD.step)(self, closure)
