"""The knowledge that the ranks of an MPI job share: who runs whom, and the plan of a run."""

import json
import tomllib
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxyfl.errors import ProxyFLError
from proxyfl.simulation.checkpoint import Checkpoint
from proxyfl.simulation.config import Config, from_tree, to_toml
from proxyfl.simulation.engines.serial import Task

_SHOWN = 6


@dataclass(frozen=True)
class Ranks:
    """The machine and the clients of each rank: every N-th client, as with workers."""

    names: Sequence[str]
    machines: Sequence[str]

    def clients_of(self, rank: int, clients: int) -> range:
        """Those of the first ``clients`` clients that run on ``rank``."""
        return range(rank, clients, len(self.machines))

    def describe(self, rank: int) -> str:
        """The rank with its machine and its clients, as a message names it."""
        described = f"rank {rank} on {self.machines[rank]}"
        own = self.clients_of(rank, len(self.names))
        clients = [self.names[client] for client in own]
        if not clients:
            return described
        shown = clients[:_SHOWN]
        if len(clients) > _SHOWN:
            shown.append(f"{len(clients) - _SHOWN} more")
        return f"{described}, which runs {', '.join(shown)},"


def reason(error: BaseException) -> str:
    """The words for ``error``: ours speaks for itself, others with their type and place."""
    if isinstance(error, ProxyFLError):
        return str(error)
    place = ""
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
    return f"{type(error).__name__}: {error}{place}."


@dataclass(frozen=True)
class Plan:
    """A run as rank 0 hands it to the other ranks, as JSON; the rest they work out for themselves.

    ``data`` is the fingerprint of rank 0's data, so that a rank with other files is found out.
    """

    config: Config
    out: Path | None
    tasks: Sequence[Task]
    data: int

    def encode(self) -> bytes:
        """The plan as JSON."""
        tasks = []
        for task in self.tasks:
            about: dict[str, Any] = {"method": task.method}
            if task.checkpoint is not None:
                about["path"] = str(task.checkpoint.path.absolute())
                about["round"] = task.checkpoint.round
            tasks.append(about)
        out = None if self.out is None else str(self.out.absolute())
        content = {
            "config": to_toml(self.config),
            "out": out,
            "tasks": tasks,
            "data": self.data,
        }
        return json.dumps(content).encode()

    @classmethod
    def decode(cls, text: bytes) -> "Plan":
        """The plan that ``encode`` wrote."""
        content = json.loads(text)
        tasks = []
        for about in content["tasks"]:
            checkpoint = None
            if "path" in about:
                # What else a checkpoint holds is rank 0's business.
                checkpoint = Checkpoint(Path(about["path"]), about["round"], 0, {})
            tasks.append(Task(about["method"], checkpoint))
        config = from_tree(tomllib.loads(content["config"]))
        out = None if content["out"] is None else Path(content["out"])
        return cls(config, out, tasks, content["data"])
