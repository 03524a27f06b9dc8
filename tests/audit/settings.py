"""The cheap setting of the audit's tests: two clients, a linear proxy, one step of SGD a round."""

from proxyfl.simulation import config as configs
from proxyfl.simulation.config import Config

SMALL = (
    "methods=avgpush",
    "partition.clients=2",
    "partition.examples=179",
    "learning.steps_per_round=1",
    "proxy_optimizer.name=sgd",
    "proxy_optimizer.learning_rate=0.5",
)


def small(*overrides: str, rounds: int = 30, seed: int = 0) -> Config:
    """The setting, changed by ``overrides``."""
    return configs.load(None, [*SMALL, f"rounds={rounds}", f"seed={seed}", *overrides])
