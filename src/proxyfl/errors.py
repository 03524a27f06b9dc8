"""Every exception that this package raises on purpose.

    ProxyFLError
    ├── InputError            what a user gave cannot be used (also a ValueError; exit code 2)
    │   ├── ConfigError       a setting
    │   ├── DataError         a dataset, a file, a label, an image
    │   ├── ModelError        an architecture or a model file
    │   ├── TopologyError     a graph or a mixing matrix
    │   └── RunError          a run's folder
    ├── PrivacyError          a guard stopped something that would break a guarantee
    │   └── BudgetExhausted   the next step would exceed a client's privacy budget
    ├── WorkerDied            a process of a run ended; names it, its clients and the round
    └── TransportError        a message could not be moved
        ├── PeerTimeout       a peer stayed silent; names it
        └── PeerRefused       a peer answered that it does not take the message; says why

Messages say what was found, what was expected, and what to do next.
"""

__all__ = [
    "BudgetExhausted",
    "ConfigError",
    "DataError",
    "InputError",
    "ModelError",
    "PeerRefused",
    "PeerTimeout",
    "PrivacyError",
    "ProxyFLError",
    "RunError",
    "TopologyError",
    "TransportError",
    "WorkerDied",
]


class ProxyFLError(Exception):
    """The root of the tree: ``except ProxyFLError`` catches all that is ours and nothing else."""


class InputError(ProxyFLError, ValueError):
    """Input of the user that cannot be used."""


class ConfigError(InputError):
    """A setting is unknown, out of range, or contradicts another."""


class DataError(InputError):
    """A dataset is missing, corrupt, or does not fit what was asked of it."""


class ModelError(InputError):
    """An architecture does not exist, does not fit the data, or cannot be trained privately."""


class TopologyError(InputError):
    """A graph or mixing matrix is not one."""


class RunError(InputError):
    """A run's folder exists already, cannot be written, or holds no run."""


class PrivacyError(ProxyFLError):
    """A guard stopped something that would break a privacy guarantee."""


class BudgetExhausted(PrivacyError):
    """The next step would exceed a client's privacy budget."""


class WorkerDied(ProxyFLError):
    """A process that runs clients of a run ended before its work was done."""


class TransportError(ProxyFLError):
    """A message could not be moved."""


class PeerTimeout(TransportError):
    """A peer stayed silent past the time limit."""


class PeerRefused(TransportError):
    """A peer was reached and does not take what it was sent."""
