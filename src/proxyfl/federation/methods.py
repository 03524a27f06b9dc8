"""Every method is one row: what learns locally, with or without DP, and how models mix
(docs/design.md).

A new method is a new row: ``METHODS | {"mine": Method(...)}``, passed to ``run``.
"""

from dataclasses import dataclass
from typing import Literal

from proxyfl._validate import choice
from proxyfl.errors import ConfigError

Role = Literal["private", "proxy", "received"]
"""The models of a client: the private one, the proxy as local training left it, or the proxy as the
exchange gave it."""


@dataclass(frozen=True)
class Method:
    """One row of the table.

    ``learner``: "single" (one model) or "mutual" (private model and proxy teach each other).
    ``exchange``: "none", "mean" (through a hub), "cycle" (handed on whole), "pushsum" (over the
    configured topology). ``dp``: whether the model that is shared (or, unshared, would be)
    trains with DP-SGD. ``pooled``: whether one model sees all clients' data. ``keeps``: the model
    that an institution uses after training; results are reported for it. ``architecture``: for a
    single model, whether it is built like the proxies or like the private models."""

    summary: str
    learner: Literal["single", "mutual"]
    exchange: Literal["none", "mean", "cycle", "pushsum"]
    dp: bool = True
    pooled: bool = False
    keeps: Role = "proxy"
    architecture: Literal["proxy", "private"] = "proxy"


METHODS: dict[str, Method] = {
    "alone": Method(
        "the private model on local data only, no DP: what an institution has if it does not join",
        "single",
        "none",
        dp=False,
        keeps="private",
        architecture="private",
    ),
    "regular": Method(
        "one model on local data only, with DP although nothing is shared",
        "single",
        "none",
    ),
    "joint": Method(
        "one model on everybody's data in one place, with DP",
        "single",
        "none",
        pooled=True,
    ),
    "fedavg": Method(
        "one model, averaged through a hub each round, with DP",
        "single",
        "mean",
        keeps="received",
    ),
    "cwt": Method(
        "cyclical weight transfer: models travel around a ring, with DP",
        "single",
        "cycle",
    ),
    "avgpush": Method(
        "one model, mixed by PushSum gossip, with DP", "single", "pushsum"
    ),
    "fml": Method(
        "private model and proxy; proxies averaged through a hub, with DP",
        "mutual",
        "mean",
        keeps="private",
    ),
    "proxyfl": Method(
        "private model and proxy; proxies mixed by PushSum gossip, with DP",
        "mutual",
        "pushsum",
        keeps="private",
    ),
    "pooled": Method(
        "the private model on everybody's data in one place, no DP: what pooling would give",
        "single",
        "none",
        dp=False,
        pooled=True,
        keeps="private",
        architecture="private",
    ),
}
"""The paper's methods, and two that the paper lacks: ``alone``, a model that is never shared and
needs no DP, and ``pooled``, which shows how much there is to win."""


def method(name: str) -> Method:
    """The row called ``name``."""
    return METHODS[choice("method", name, METHODS, error=ConfigError)]
