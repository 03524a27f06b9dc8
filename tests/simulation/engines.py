"""What engine tests share: a small run, and what it means for two runs to be equal."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from proxyfl.records.folder import read_metrics
from proxyfl.records.row import Row
from proxyfl.simulation.config import Config, from_tree
from proxyfl.simulation.run import Callback

SMALL: dict[str, Any] = {
    "methods": ["alone", "fedavg", "proxyfl"],
    "rounds": 4,
    "evaluate_every": 2,
    "checkpoint_every": 1,
    "partition": {"clients": 5, "examples": 40, "p_major": 0.5},
    "learning": {"batch_size": 20},
    "privacy": {"noise_multiplier": 8.0},  # the larger, the sooner a process has its first epsilon
}


class StopAt(Callback):
    """Cuts a run off after a round of a method."""

    def __init__(self, method: str, round: int) -> None:
        self.method, self.round = method, round

    def round_ended(self, name: str, round: int, rows: Sequence[Row]) -> None:
        """Raise as Ctrl-C would."""
        if (name, round) == (self.method, self.round):
            raise KeyboardInterrupt


def small(**changes: Any) -> Config:
    """A run of a second or two, with ``changes`` to its top-level settings."""
    return from_tree({**SMALL, **changes})


def rows(path: Path) -> list[dict[str, Any]]:
    """The metrics without how long things took."""
    return [
        {k: v for k, v in row.items() if not k.startswith("seconds_")} for row in read_metrics(path)
    ]


def assert_equal_runs(one: Path, other: Path) -> None:
    """Metrics, ledgers and every tensor of every model are the same, bit for bit."""
    assert rows(one) == rows(other)
    ledgers = sorted(p.relative_to(one) for p in (one / "ledger").rglob("*.jsonl"))
    assert ledgers == sorted(p.relative_to(other) for p in (other / "ledger").rglob("*.jsonl"))
    for path in ledgers:
        assert (one / path).read_bytes() == (other / path).read_bytes(), path
    models = sorted(p.relative_to(one) for p in (one / "models").rglob("*.safetensors"))
    assert models
    assert models == sorted(p.relative_to(other) for p in (other / "models").rglob("*.safetensors"))
    for path in models:
        a, b = load_file(one / path), load_file(other / path)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a), path
    assert _summary(one) == _summary(other)


def _summary(path: Path) -> Any:
    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if not str(k).startswith("seconds_")}
        return [plain(v) for v in value] if isinstance(value, list) else value

    return plain(json.loads((path / "summary.json").read_text()))
