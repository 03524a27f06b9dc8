"""Local learning with a private model that is fitted, not trained step by step.

``Fitted`` trains the proxy as ``Single`` does. Its private model is made whenever it is asked for:
an estimator fitted on the client's own examples, with the received proxy or without
(``home.choosing``). It teaches the proxy nothing, so the proxy's guarantee is end-to-end.

Guarantees: the private model depends on the client's own examples, the proxy that the round began
with, and the seed; so a resumed run keeps the same one. It is never shared.
"""

from torch import Tensor, nn

from proxyfl._examples import Examples
from proxyfl.errors import ConfigError
from proxyfl.federation.home.choosing import choose
from proxyfl.federation.home.model import Home
from proxyfl.federation.learners import Losses, Single, Trainer, frozen_copy
from proxyfl.federation.methods import Role
from proxyfl.federation.state import State, pack, unpack
from proxyfl.losses import NO_BALANCE, Balance


class Fitted:
    """A client with an estimator as private model, and a proxy; or, for ``alone``, no proxy."""

    def __init__(
        self,
        spec: str,
        examples: Examples,
        *,
        classes: int,
        seed: int,
        trainer: Trainer | None = None,
        balance: Balance = NO_BALANCE,
    ) -> None:
        self.spec = spec
        self.received: nn.Module | None = None
        self._single: Single | None = None
        if trainer is not None:
            self.received = frozen_copy(trainer.model)
            self._single = Single(trainer)
        self._examples = examples
        self._classes = classes
        self._seed = seed
        self._balance = balance
        self._private: Home | None = None

    @property
    def trainer(self) -> Trainer:
        return self._proxy.trainer

    @property
    def shared(self) -> nn.Module:
        return self._proxy.shared

    @property
    def _proxy(self) -> Single:
        """The proxy and its training; ConfigError for a client that has none."""
        if self._single is None:
            raise ConfigError(
                f"A client with {self.spec} and no proxy shares nothing."
            )
        return self._single

    def train(self, round: int, steps: int) -> Losses:
        self._private = None
        if self._single is None or self.received is None:
            return Losses()
        # as in ``Mutual``: what the exchange gave is what the round begins with
        self.received.load_state_dict(self._single.shared.state_dict())
        return self._single.train(round, steps)

    def adopt(self, theta: Tensor) -> None:
        self._proxy.adopt(theta)

    def models(self) -> dict[Role, nn.Module]:
        if self._private is None:
            self._private = choose(
                self.spec,
                self._examples,
                self._classes,
                received=self.received,
                balance=self._balance,
                seed=self._seed,
            )
        found: dict[Role, nn.Module] = {"private": self._private}
        if self._single is not None:
            found |= self._single.models()
        return found

    def state(self) -> State:
        if self._single is None or self.received is None:
            return {}
        return self._single.state() | pack({"received": self.received})

    def restore(self, state: State) -> None:
        self._private = None
        if self._single is None or self.received is None:
            return
        self._single.restore(state)
        unpack(state, {"received": self.received})
