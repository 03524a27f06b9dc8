"""Local learning with a private model that is fitted, not trained step by step.

``Fitted`` trains the proxy as ``Single`` does. Its private model is made whenever it is asked for:
an estimator fitted on the client's own examples, with the received proxy or without
(``home.choosing``). It teaches the proxy nothing, so the proxy's guarantee is end-to-end.

Guarantees: the private model depends on the client's own examples, the proxy that the round began
with, and the seed; so a resumed run keeps the same one. It is never shared.
"""

from torch import Tensor, nn

from proxyfl import params
from proxyfl._examples import Examples
from proxyfl.errors import ConfigError
from proxyfl.federation.home.choosing import choose
from proxyfl.federation.home.model import Home
from proxyfl.federation.learners import Losses, Trainer, frozen_copy, mean_of
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
        proxy: nn.Module | None = None,
        trainer: Trainer | None = None,
        balance: Balance = NO_BALANCE,
    ) -> None:
        self.spec = spec
        self.proxy = proxy
        self.received = None if proxy is None else frozen_copy(proxy)
        self._trainer = trainer
        self._examples = examples
        self._classes = classes
        self._seed = seed
        self._balance = balance
        self._private: Home | None = None

    @property
    def trainer(self) -> Trainer:
        """What trains the proxy; ConfigError for a client that has none."""
        if self._trainer is None:
            raise ConfigError(f"{self.spec} is fitted; nothing trains it in steps.")
        return self._trainer

    @property
    def shared(self) -> nn.Module:
        if self.proxy is None:
            raise ConfigError(
                f"A client with {self.spec} and no proxy shares nothing."
            )
        return self.proxy

    def train(self, round: int, steps: int) -> Losses:
        self._private = None
        if self._trainer is None or self.received is None or self.proxy is None:
            return Losses()
        # as in ``Mutual``: what the exchange gave is what the round begins with
        self.received.load_state_dict(self.proxy.state_dict())
        self._trainer.begin_round(round, steps)
        losses = []
        for _ in range(steps):
            losses.append(self._trainer.step(self._trainer.draw()))
        return Losses(proxy=mean_of(losses))

    def adopt(self, theta: Tensor) -> None:
        params.load_flat(self.shared, theta)

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
        if self.proxy is not None:
            found["proxy"] = self.proxy
        return found

    def state(self) -> State:
        if self._trainer is None:
            return {}
        return pack(
            models=self._models(),
            optimizers={"proxy optimizer": self._trainer.optimizer},
            streams=self._trainer.state(),
        )

    def restore(self, state: State) -> None:
        self._private = None
        if self._trainer is None:
            return
        streams = unpack(
            state,
            models=self._models(),
            optimizers={"proxy optimizer": self._trainer.optimizer},
        )
        self._trainer.restore(streams)

    def _models(self) -> dict[str, nn.Module]:
        found: dict[str, nn.Module] = {"proxy": self.shared}
        if self.received is not None:
            found["received"] = self.received
        return found
