r"""The model that an institution keeps: the received proxy, its own estimator, or both.

    logits = own_weight own(x) + proxy_weight received(x)

    alone      1, 0              the best of the stated estimators on the client's own examples
    proxy      0, 1              the proxy as it was received
    sum        1 - a, a          a weighted sum of both
    residual   1, 1              logistic regression fitted on top of the proxy's logits

Classes of which the site has no example follow the proxy: its own estimator speaks only among
those it has seen.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from proxyfl.errors import ModelError
from proxyfl.federation.state import below
from proxyfl.models import estimators
from proxyfl.models.estimators import UNSEEN


class Home(nn.Module):
    """The model that an institution keeps; see the module's docstring. ``name`` says what it is."""

    def __init__(
        self,
        name: str,
        own: nn.Module | None,
        received: nn.Module | None,
        weights: tuple[float, float],
        shift: Tensor,
        folds: tuple[float, float] | None = None,
        *,
        classes: bool = True,
    ) -> None:
        """``folds``: the log-losses by which the choice was made, of the best model of the
        institution's own and of the bare proxy, on its own examples. Not stored with the model.
        ``classes``: the outputs are the logits of classes, of which the own model may never have
        seen some. Those of other tasks are added up as they are."""
        super().__init__()
        self.name = name
        self.folds = folds
        self.own = own
        self.received = received
        self.weights = weights
        self.classes = classes
        self.register_buffer("shift", shift)
        self.requires_grad_(False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        own_weight, proxy_weight = self.weights
        if self.own is None:
            return self._received(x)
        # a copy: an estimator that works in place must not change what the proxy reads
        own: Tensor = self.own(x.flatten(1).clone()) - self.shift
        if self.received is None:
            return own * own_weight
        received = self._received(x)
        if not self.classes:
            return own_weight * own + proxy_weight * received
        return combined(own, received, own_weight, proxy_weight)

    def about(self) -> dict[str, Any]:
        """The entries of a model file besides the tensors; see ``rebuilt``."""
        form = None if self.own is None else type(self.own).__name__
        about = {"name": self.name, "form": form, "weights": list(self.weights)}
        return about if self.classes else about | {"classes": False}

    def _received(self, x: Tensor) -> Tensor:
        if self.received is None:
            raise ModelError(f"The model {self.name!r} listens to a proxy, and this file has none.")
        logits: Tensor = self.received.eval()(x)
        return logits


def rebuilt(
    about: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    proxy: nn.Module | None,
    *,
    unpickle: bool,
) -> Home:
    """The model that ``about`` and its tensors were written from."""
    own_weight, proxy_weight = map(float, about["weights"])
    own = None
    if about["form"] is not None:
        state = below(tensors, "own.")
        own = estimators.rebuild(about["form"], state, unpickle=unpickle)
    received = None
    if proxy_weight and proxy is not None:
        proxy.load_state_dict(below(tensors, "received."))
        received = proxy
    weights = (own_weight, proxy_weight)
    classes = about.get("classes", True)
    return Home(about["name"], own, received, weights, tensors["shift"], classes=classes)


def combined(own: Tensor, received: Tensor, own_weight: float, proxy_weight: float) -> Tensor:
    """The weighted sum of logits. A class that ``own`` has never seen keeps the probability that
    the proxy gives it; the rest is divided among the others by the sum."""
    unseen = own[:1] <= UNSEEN / 2
    if not unseen.any():
        return own_weight * own + proxy_weight * received
    return spread(own, received, own_weight, proxy_weight, unseen.expand_as(own))


def spread(
    own: Tensor, received: Tensor, own_weight: float, proxy_weight: float, hidden: Tensor
) -> Tensor:
    """``combined`` where the classes in ``hidden`` are those that ``own`` has never seen."""
    both = (own_weight * own + proxy_weight * received).masked_fill(hidden, -math.inf)
    seen = received.masked_fill(hidden, -math.inf)
    left = seen.logsumexp(1, keepdim=True)
    divided = both - both.logsumexp(1, keepdim=True) + left
    return torch.where(hidden, received, divided)
