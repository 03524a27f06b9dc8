"""Settings of the exchange: the graph, how a run ends, and who takes part in which round."""

from dataclasses import dataclass

from proxyfl._validate import choice, number, whole
from proxyfl.errors import ConfigError
from proxyfl.federation.membership import Attendance


@dataclass(frozen=True)
class Exchange:
    """The graph of the PushSum methods (see ``proxyfl topology``)."""

    topology: str = "exponential"
    """A name, a .json or .npy file of matrices, or your own `package.module:function`."""
    self_weight: float | None = 0.5
    """Share of its mass that a client keeps; the default holds where the topology takes one."""
    degree: int | None = None
    """Receivers per client and round of the topology `random`; absent: 1."""
    settle: int | str = 0
    """Last rounds in which proxies only mix, which costs no privacy; `auto`: as many as spread
    what everyone knows, and one more."""
    average: float = 0.0
    """Share of the training rounds, counted from their end, whose proxies each client averages
    before they settle; 0: none."""
    timeout: float = 600.0
    """Seconds to wait for a peer."""

    def __post_init__(self) -> None:
        if isinstance(self.settle, str):
            choice("exchange.settle", self.settle, ("auto",))
        else:
            whole("exchange.settle", self.settle, at_least=0)
        number("exchange.average", self.average, at_least=0, at_most=1)
        if self.average and not self.settle:
            raise ConfigError(
                f"exchange.average={self.average:g} needs rounds in which the averaged proxies "
                'mix. Set exchange.settle="auto".'
            )
        if self.self_weight is not None:
            number("exchange.self_weight", self.self_weight, at_least=0, below=1)
        if self.degree is not None:
            whole("exchange.degree", self.degree)
        number("exchange.timeout", self.timeout, above=0)

    def weight_if(self, taken: bool) -> float | None:
        """The self weight; none if it is the default and the topology takes none."""
        if not taken and self.self_weight == Exchange.self_weight:
            return None
        return self.self_weight


@dataclass(frozen=True)
class Membership:
    """Attendance: who takes part in which round."""

    absence: float = 0.0
    """Probability that a client misses a round."""
    schedule: tuple[Attendance, ...] = ()
    """Clients that join late, are away or leave: one table per client, for example
    `{client = 3, joins = 20, leaves = 80, away = [30, 35]}`."""

    def __post_init__(self) -> None:
        number("membership.absence", self.absence, at_least=0, below=1)
