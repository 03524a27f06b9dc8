"""Every method is one row: what learns locally, with or without DP, and how models mix
(docs/about/design.md).

A new method is a new row: ``METHODS | {"mine": Method(...)}``, passed to ``run``. Its learner and
its exchange may be your own functions.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from proxyfl._entrypoint import is_code
from proxyfl._validate import choice
from proxyfl.errors import ConfigError

if TYPE_CHECKING:
    from proxyfl.federation.exchange import Mixing
    from proxyfl.federation.learners import MakeLearner

Role = Literal["private", "proxy", "received"]
"""The models of a client: the private one, the proxy as local training left it, or the proxy as the
exchange gave it."""


LEARNERS = ("single", "mutual")
EXCHANGES = ("none", "mean", "cycle", "pushsum", "masked")


def name_of(part: str | Callable[..., Any]) -> str:
    """The name of a learner or an exchange; of a function "package.module:function"."""
    if isinstance(part, str):
        return part
    function = inspect.unwrap(getattr(part, "func", part))  # of a functools.partial
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{kind.__module__}:{kind.__qualname__}"


def _check_part(
    name: str, value: object, known: tuple[str, ...], arguments: tuple[str, ...]
) -> None:
    """Raise ConfigError for a name that is not ``known``, and for a function that does not take
    ``arguments``."""
    if isinstance(value, str):
        if not is_code(value):
            choice(name, value, known)
        return
    if not callable(value):
        raise ConfigError(
            f"Expected a function or one of {', '.join(known)} for the {name}, got {value!r}."
        )
    try:
        inspect.signature(value).bind(*arguments)
    except (TypeError, ValueError) as problem:
        raise ConfigError(
            f"The {name} {name_of(value)} must take {len(arguments)} arguments, "
            f"{', '.join(arguments)} ({problem})."
        ) from problem


@dataclass(frozen=True)
class Method:
    """One row of the table.

    ``learner``: "single" (one model), "mutual" (private model and proxy teach each other), or a
    function of your own, (trainer, private) -> learner (``federation.learners.MakeLearner``).
    ``exchange``: "none", "mean" (through a hub), "cycle" (handed on whole), "pushsum" (over the
    configured topology), "masked" (one shared model, every step a masked sum over all), or a
    function of your own, (masses, present, leaving, channel) -> masses
    (``federation.exchange.Mixing``). A function may be given as "package.module:function"; workers
    need one that can be imported or pickled.
    ``dp``: whether the model that is shared (or, unshared, would be) trains with DP-SGD.
    ``pooled``: whether one model sees all clients' data. ``keeps``: the model that an institution
    uses after training; results are reported for it. ``architecture``: for a single model, whether
    it is built like the proxies or like the private models. ``published``: the schema's published
    score takes the place of a model, and nothing is trained.

    The row checks itself: an unknown name, or a function that cannot be called as its contract
    says, raises ``ConfigError``."""

    summary: str
    learner: "str | MakeLearner"
    exchange: "str | Mixing"
    dp: bool = True
    pooled: bool = False
    keeps: Role = "proxy"
    architecture: Literal["proxy", "private"] = "proxy"
    published: bool = False

    def __post_init__(self) -> None:
        _check_part("learner", self.learner, LEARNERS, ("trainer", "private"))
        expected = ("masses", "present", "leaving", "channel")
        _check_part("exchange", self.exchange, EXCHANGES, expected)
        choice("kept model", self.keeps, ("private", "proxy", "received"))
        choice("architecture", self.architecture, ("proxy", "private"))
        if self.exchange == "masked" and self.learner not in LEARNERS:
            raise ConfigError(
                "A masked sum takes every step together with all clients, which a learner of your "
                "own does not know of. Take the learner 'single' or 'mutual', or another exchange."
            )

    @property
    def mutual(self) -> bool:
        """True if a client has a private model and a proxy."""
        own = self.learner not in LEARNERS
        return self.learner == "mutual" or (own and self.keeps == "private")

    @property
    def shares(self) -> bool:
        """True if models are exchanged."""
        return self.exchange != "none"

    def written(self) -> dict[str, Any]:
        """The row as plain values; a function is its name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        for part in ("learner", "exchange"):
            values[part] = name_of(values[part])
        return values


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
        "one model on local data only, with DP although nothing is shared", "single", "none"
    ),
    "joint": Method(
        "one model on everybody's data in one place, with DP", "single", "none", pooled=True
    ),
    "fedavg": Method(
        "one model, averaged through a hub each round, with DP", "single", "mean", keeps="received"
    ),
    "cwt": Method(
        "cyclical weight transfer: models travel around a ring, with DP", "single", "cycle"
    ),
    "avgpush": Method("one model, mixed by PushSum gossip, with DP", "single", "pushsum"),
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
    "proxysum": Method(
        "private model and one shared proxy, each step a masked sum over all, with DP",
        "mutual",
        "masked",
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
    "score": Method(
        "the published score that the schema states (start), unchanged: what everybody has already",
        "single",
        "none",
        dp=False,
        keeps="private",
        architecture="private",
        published=True,
    ),
}
"""The paper's methods, and three that the paper lacks: ``alone``, a model that is never shared and
needs no DP; ``proxysum``, in which clients hide in each other's noise; and ``pooled``, which shows
how much there is to win."""


def method(name: str) -> Method:
    """The row called ``name``."""
    return METHODS[choice("method", name, METHODS, error=ConfigError)]
