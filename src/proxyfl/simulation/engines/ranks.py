"""What the ranks of an MPI job know of each other: who hosts whom, and the plan of a run."""

import json
import tomllib
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from proxyfl.data.examples import checksum
from proxyfl.errors import ProxyFLError
from proxyfl.federation.membership import Presence
from proxyfl.simulation.checkpoint import Checkpoint
from proxyfl.simulation.config import Config, from_tree, to_toml
from proxyfl.simulation.engines.serial import Task
from proxyfl.simulation.prepare import Prepared

_SHOWN = 6


@dataclass(frozen=True)
class Ranks:
    """Which rank runs on which machine and hosts which clients: every N-th, as with workers."""

    names: Sequence[str]
    machines: Sequence[str]

    def hosted(self, rank: int, clients: int) -> range:
        """Those of the first ``clients`` clients that live on ``rank``."""
        return range(rank, clients, len(self.machines))

    def describe(self, rank: int) -> str:
        """The rank with its machine and its clients, as a message names it."""
        described = f"rank {rank} on {self.machines[rank]}"
        clients = [self.names[client] for client in self.hosted(rank, len(self.names))]
        if not clients:
            return described
        shown = clients[:_SHOWN]
        if len(clients) > _SHOWN:
            shown.append(f"{len(clients) - _SHOWN} more")
        return f"{described}, which hosts {', '.join(shown)},"


def reason(error: BaseException) -> str:
    """What to say of ``error``: ours speaks for itself, others with their type and place."""
    if isinstance(error, ProxyFLError):
        return str(error)
    place = ""
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
    return f"{type(error).__name__}: {error}{place}."


@dataclass(frozen=True)
class Plan:
    """A run as rank 0 hands it to the other ranks, as JSON.

    ``checksums`` are those of each client's data, so that a rank with other files is found out.
    """

    config: Config
    out: Path | None
    tasks: Sequence[Task]
    presences: Mapping[str, Sequence[Presence]]
    checksums: Sequence[int]

    @classmethod
    def of(cls, prepared: Prepared, tasks: Sequence[Task], out: Path | None) -> "Plan":
        """The plan of a run that rank 0 has prepared."""
        presences = {task.method: prepared.presences[task.method] for task in tasks}
        checksums = [checksum(client.examples) for client in prepared.clients]
        return cls(prepared.config, out, tasks, presences, checksums)

    def encode(self) -> bytes:
        """The plan as JSON."""
        tasks = [_task_as_dict(task) for task in self.tasks]
        presences = {
            method: [asdict(presence) for presence in rounds]
            for method, rounds in self.presences.items()
        }
        content = {
            "config": to_toml(self.config),
            "out": None if self.out is None else str(self.out.absolute()),
            "tasks": tasks,
            "presences": presences,
            "checksums": list(self.checksums),
        }
        return json.dumps(content).encode()

    @classmethod
    def decode(cls, text: bytes) -> "Plan":
        """The plan that ``encode`` wrote."""
        content = json.loads(text)
        presences = {
            method: [_presence(about) for about in rounds]
            for method, rounds in content["presences"].items()
        }
        return cls(
            config=from_tree(tomllib.loads(content["config"])),
            out=None if content["out"] is None else Path(content["out"]),
            tasks=[_task(about) for about in content["tasks"]],
            presences=presences,
            checksums=content["checksums"],
        )


def _task_as_dict(task: Task) -> dict[str, Any]:
    if task.checkpoint is None:
        return {"method": task.method}
    path = str(task.checkpoint.path.absolute())
    return {"method": task.method, "path": path, "round": task.checkpoint.round}


def _task(about: Mapping[str, Any]) -> Task:
    if "path" not in about:
        return Task(about["method"])
    # Records and their length are rank 0's business.
    checkpoint = Checkpoint(Path(about["path"]), about["round"], 0, {})
    return Task(about["method"], checkpoint)


def _presence(about: Mapping[str, Any]) -> Presence:
    return Presence(
        present=tuple(about["present"]),
        expected=about["expected"],
        leaving={int(client): why for client, why in about["leaving"].items()},
        fewer_steps={int(client): steps for client, steps in about["fewer_steps"].items()},
    )
