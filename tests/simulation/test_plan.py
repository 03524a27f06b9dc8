"""The whole plan of a run is tried before anything is spent."""

import json
from pathlib import Path
from typing import Any

import pytest

from proxyfl.errors import TopologyError
from proxyfl.simulation.config import from_tree
from proxyfl.simulation.run import run

THREE = [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]]


@pytest.mark.parametrize(
    "late",
    [
        {"membership": {"schedule": [{"client": 1, "away": [8, 9]}]}},
        {"membership": {"absence": 0.2}},
        {"privacy": {"budget": [0.5, 9.0, 9.0]}},
    ],
    ids=["schedule", "absence", "budget"],
)
def test_a_topology_that_fails_later_is_refused(late: dict[str, Any], tmp_path: Path) -> None:
    """Matrices that fit everyone, but not the rounds in which someone is away or has left, are
    refused before the run's folder exists."""
    matrices = tmp_path / "mixing.json"
    matrices.write_text(json.dumps(THREE))
    tree: dict[str, Any] = {
        "methods": ["proxyfl"],
        "rounds": 12,
        "partition": {"clients": 3, "examples": 60},
        "learning": {"batch_size": 20},
        "exchange": {"topology": str(matrices), "self_weight": "none"},
    }
    with pytest.raises(TopologyError, match=r"for 3 clients, but [12] are present in round"):
        run(from_tree(tree | late), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
