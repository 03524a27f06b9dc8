"""One client of a federation, as the round loop sees it. ``federation.assembly`` makes them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from proxyfl import params
from proxyfl._setonce import SetOnce
from proxyfl.federation.averaging import Tail
from proxyfl.federation.learners import Learner
from proxyfl.federation.prevalence import Balances
from proxyfl.federation.state import State
from proxyfl.gossip.pushsum import Mass
from proxyfl.privacy.ledger import Ledger


@dataclass
class Client(SetOnce, changing=("id", "weight", "tail")):
    """One institution as the round loop sees it.

    ``weight`` is its PushSum weight; its mass is that weight times the shared parameters.
    """

    id: int
    name: str
    learner: Learner
    ledger: Ledger
    steps: int
    global_seed: Callable[[int], int]
    weight: float = 1.0
    tail: Tail | None = None
    balances: Balances = field(default_factory=Balances)

    def mass(self) -> Mass:
        """The client's share of the network's total."""
        return Mass.of(params.flatten(self.learner.shared), self.weight)

    def take(self, mass: Mass) -> None:
        """Continue with ``mass``."""
        self.weight = mass.w
        self.learner.adopt(mass.theta)

    def receive(self, round: int, mass: Mass) -> None:
        """Continue with what the exchange of ``round`` gave."""
        self.take(mass)
        if self.tail is not None:
            self.tail.add(round, mass.theta)

    def settle(self, round: int) -> None:
        """Continue with the mean of the last proxies, if ``round`` is the one to do so."""
        mean = None if self.tail is None else self.tail.mean(round)
        if mean is not None:
            self.learner.adopt(mean)

    def state(self) -> State:
        """Returns everything that the next round depends on."""
        tail = {} if self.tail is None else self.tail.state()
        return self.learner.state() | tail

    def restore(self, state: State) -> None:
        """Continue from ``state``."""
        self.learner.restore(state)
        if self.tail is not None:
            self.tail.restore(state)
