"""The table of methods: what each row says is what its clients do."""

import pytest

from proxyfl.errors import ConfigError
from proxyfl.federation import exchange
from proxyfl.federation.methods import METHODS, method
from proxyfl.gossip import topology


def test_the_table() -> None:
    """The paper's seven methods and our four, with learner, exchange, DP and pooling as in
    the design."""
    found = {name: (m.learner, m.exchange, m.dp, m.pooled) for name, m in METHODS.items()}
    assert found == {
        "alone": ("single", "none", False, False),
        "regular": ("single", "none", True, False),
        "joint": ("single", "none", True, True),
        "fedavg": ("single", "mean", True, False),
        "cwt": ("single", "cycle", True, False),
        "avgpush": ("single", "pushsum", True, False),
        "fml": ("mutual", "mean", True, False),
        "proxyfl": ("mutual", "pushsum", True, False),
        "proxysum": ("mutual", "masked", True, False),
        "pooled": ("single", "none", False, True),
        "score": ("single", "none", False, False),
    }


def test_what_is_kept() -> None:
    """Where there is a private model it is what an institution keeps; ``alone``, ``pooled`` and
    ``score`` do without DP."""
    unshared = ("alone", "pooled", "score")
    for name, row in METHODS.items():
        assert (row.keeps == "private") == (row.learner == "mutual" or name in unshared)
        assert row.dp or row.exchange == "none", f"{name} shares a model without DP"


@pytest.mark.parametrize("name", METHODS)
def test_every_exchange_exists(name: str) -> None:
    """Each row's exchange can be made; the masked sum has tests of its own."""
    if METHODS[name].exchange not in ("none", "masked"):
        made = exchange.mixing(METHODS[name].exchange, topology.exponential())
        assert callable(made)


def test_by_name() -> None:
    """A row is found by its name; an unknown name is an error that lists the known ones."""
    assert method("proxyfl") is METHODS["proxyfl"]
    with pytest.raises(
        ConfigError, match=r"Unknown method 'fedprox'. Known: alone, regular, .*proxyfl"
    ):
        method("fedprox")
