"""The parts of a federation, for a training loop, a learner or an exchange of your own.

    parameters   flatten, load_flat, size
    gossip       Mass, add, exponential, ring, complete, random_out, Topology, routes, Routes
    randomness   System (the operating system's), Seeded (repeatable; protects nobody)
    learning     Learner, Single, Mutual, Losses, Private, Batch
    exchange     MassChannel, Mixing, mean
    clients      assemble, Client, Study, Local, Input, Proxy, Streams, real, seeded

docs/guides/python.md shows them in use; ``tests/test_public_api.py`` pins the list. Names that are
not listed here or in ``proxyfl.__all__`` are internal and may change.
"""

from proxyfl.federation.assembly import Streams, assemble, real, seeded
from proxyfl.federation.client import Client
from proxyfl.federation.exchange import MassChannel, Mixing, mean
from proxyfl.federation.learners import Learner, Losses, MakeLearner, Mutual, Private, Single
from proxyfl.gossip.pushsum import Mass, add
from proxyfl.gossip.routes import Routes, routes
from proxyfl.gossip.topology import Topology, complete, exponential, random_out, ring
from proxyfl.params import flatten, load_flat, size
from proxyfl.privacy.dpsgd import Batch
from proxyfl.seeds import Randomness, Seeded, System
from proxyfl.settings import Input, Learning, Local, Model, Optimizer, Privacy, Proxy, Study

__all__ = [
    "Batch",
    "Client",
    "Input",
    "Learner",
    "Learning",
    "Local",
    "Losses",
    "MakeLearner",
    "Mass",
    "MassChannel",
    "Mixing",
    "Model",
    "Mutual",
    "Optimizer",
    "Privacy",
    "Private",
    "Proxy",
    "Randomness",
    "Routes",
    "Seeded",
    "Single",
    "Streams",
    "Study",
    "System",
    "Topology",
    "add",
    "assemble",
    "complete",
    "exponential",
    "flatten",
    "load_flat",
    "mean",
    "random_out",
    "real",
    "ring",
    "routes",
    "seeded",
    "size",
]
