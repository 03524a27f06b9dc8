"""Decentralized federated learning through proxy models.

    from proxyfl import Config, run

    result = run(Config(rounds=20))             # eight clients on scikit-learn's digits
    print(result.gain("proxyfl", client=0))     # accuracy gained over training alone

What is listed in ``__all__`` is the public interface (docs/guides/python.md shows each in use).
Names are loaded when first used, so that ``import proxyfl`` costs nothing."""

# Type checkers take it for true. The one of ``typing`` would take longer to load than all of this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from proxyfl._examples import Examples as Examples
    from proxyfl.data.dataset import Dataset as Dataset
    from proxyfl.data.examples import InMemory as InMemory
    from proxyfl.data.tables.frames import from_table as from_table
    from proxyfl.errors import ProxyFLError as ProxyFLError
    from proxyfl.federation.methods import METHODS as METHODS
    from proxyfl.federation.methods import Method as Method
    from proxyfl.gossip.pushsum import Mass as Mass
    from proxyfl.privacy.calibration import noise_for as noise_for
    from proxyfl.privacy.calibration import steps_for as steps_for
    from proxyfl.privacy.dpsgd import DPSGD as DPSGD
    from proxyfl.privacy.guarantee import Epsilon as Epsilon
    from proxyfl.privacy.guarantee import Kind as Kind
    from proxyfl.privacy.ledger import Budget as Budget
    from proxyfl.privacy.ledger import Ledger as Ledger
    from proxyfl.records.frames import load as load
    from proxyfl.records.run import Run as Run
    from proxyfl.settings import DP as DP
    from proxyfl.simulation.config import Config as Config
    from proxyfl.simulation.run import Callback as Callback
    from proxyfl.simulation.run import run as run

_HOMES = {
    "DP": "proxyfl.settings",
    "DPSGD": "proxyfl.privacy.dpsgd",
    "METHODS": "proxyfl.federation.methods",
    "Budget": "proxyfl.privacy.ledger",
    "Callback": "proxyfl.simulation.run",
    "Config": "proxyfl.simulation.config",
    "Dataset": "proxyfl.data.dataset",
    "Epsilon": "proxyfl.privacy.guarantee",
    "Examples": "proxyfl._examples",
    "InMemory": "proxyfl.data.examples",
    "Kind": "proxyfl.privacy.guarantee",
    "Ledger": "proxyfl.privacy.ledger",
    "Mass": "proxyfl.gossip.pushsum",
    "Method": "proxyfl.federation.methods",
    "ProxyFLError": "proxyfl.errors",
    "Run": "proxyfl.records.run",
    "from_table": "proxyfl.data.tables.frames",
    "load": "proxyfl.records.frames",
    "noise_for": "proxyfl.privacy.calibration",
    "run": "proxyfl.simulation.run",
    "steps_for": "proxyfl.privacy.calibration",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    import importlib

    if name not in _HOMES:
        raise AttributeError(
            f"module 'proxyfl' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
