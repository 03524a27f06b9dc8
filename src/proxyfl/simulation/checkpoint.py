"""Checkpoints: one file per client and a manifest, complete or not there at all.

    RUN/checkpoints/METHOD/000017/
        003.safetensors     client 3 after round 17: models, optimizers, streams, weight and
                            the receipt of its ledger
        manifest.json       written last: which files belong to it, with their checksums

Because there is a file per client, a run can be resumed with another number of workers or ranks.
The last two are kept, so that there is one to fall back to when the newest is damaged.

Guarantees: a manifest names only files that were whole when it was written; ``newest`` checks every
checksum again and passes over, with a warning that says why, whatever does not fit; ``restore``
refuses a client whose ledger lost a charge that had been made when the checkpoint was written."""

import json
import shutil
import warnings
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from proxyfl._files import Document, finite, write_bytes
from proxyfl.errors import RunError
from proxyfl.federation.client import Client
from proxyfl.federation.state import State

VERSION = 3
KEPT = 2


class Memory(Protocol):
    """State that an exchange keeps of each client from round to round, besides its mass."""

    def restore(self, client: Client, state: State) -> None:
        """Continue from ``state``, with a client that has been restored."""


class CheckpointWarning(UserWarning):
    """A checkpoint was passed over; an older one is used."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: after ``round``, with ``metrics_bytes`` of metrics written by then."""

    path: Path
    round: int
    metrics_bytes: int

    def restore(self, clients: Iterable[Client], memory: Memory | None = None) -> None:
        """Put ``clients`` back to where they were, and the memory of their exchange if it has
        one."""
        for client in clients:
            path = self.path / _name(client.id)
            try:
                with safe_open(path, framework="pt") as file:
                    about = file.metadata() or {}
                    names = file.keys()  # of an object that is no mapping
                    state = {key: file.get_tensor(key) for key in names}
                client.ledger.demand(about["receipt"])
                client.restore(state)
                client.weight = float.fromhex(about["weight"])
                if memory is not None:
                    memory.restore(client, state)
            except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
                raise RunError(
                    f"The checkpoint {path} does not fit this run ({error}). Start a new run."
                ) from error


def write_client(folder: Path, round: int, client: Client, memory: State) -> tuple[str, int]:
    """Write one client's file of round ``round`` below ``folder``; return its name and checksum for
    the manifest. ``memory`` is what its exchange remembers."""
    path = folder / _round(round) / _name(client.id)
    about = {
        "client": client.name,
        "round": str(round),
        "weight": float(client.weight).hex(),
        "receipt": client.ledger.receipt(),
    }
    content = save(client.state() | memory, metadata=about)
    write_bytes(path, content, lasting=False)
    return path.name, zlib.crc32(content)


def commit(
    folder: Path, round: int, files: Mapping[str, int], *, metrics_bytes: int, identity: str
) -> None:
    """Declare the files of round ``round`` a checkpoint of the run ``identity``; drop all but the
    last two."""
    manifest = {
        "version": VERSION,
        "identity": identity,
        "round": round,
        "metrics_bytes": metrics_bytes,
        "files": dict(sorted(files.items())),
    }
    text = json.dumps(finite(manifest))
    path = folder / _round(round) / "manifest.json"
    write_bytes(path, text.encode(), lasting=False)
    # Workers may be some rounds ahead: what they have written beyond this round is not complete
    # yet, and stays.
    complete = [path for path in folder.iterdir() if path.name <= _round(round)]
    for old in sorted(complete)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def clear(folder: Path) -> None:
    """Remove the checkpoints of a method that is over."""
    shutil.rmtree(folder, ignore_errors=True)


def newest(folder: Path, *, identity: str) -> Checkpoint | None:
    """The newest checkpoint below ``folder`` that is whole and belongs to the run ``identity``, if
    there is one."""
    if not folder.is_dir():
        return None
    for path in sorted(folder.iterdir(), reverse=True):
        if not (path / "manifest.json").exists():
            continue  # interrupted before it was complete: not a checkpoint yet
        try:
            return _read_checked(path, identity)
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = str(error)
            if not isinstance(error, ValueError):
                reason = f"{type(error).__name__}: {error}"
            warnings.warn(
                f"The checkpoint {path} cannot be used ({reason}). Going back to the one before.",
                CheckpointWarning,
                stacklevel=2,
            )
    return None


def _read_checked(path: Path, identity: str) -> Checkpoint:
    manifest: Document = json.loads((path / "manifest.json").read_text())
    if manifest["version"] != VERSION:
        raise ValueError(f"version {manifest['version']}, expected {VERSION}")
    if manifest["identity"] != identity:
        raise ValueError("it belongs to a run with other settings")
    for name, checksum in manifest["files"].items():
        if zlib.crc32((path / name).read_bytes()) != checksum:
            raise ValueError(f"{name} is truncated or damaged")
    return Checkpoint(path, int(manifest["round"]), int(manifest["metrics_bytes"]))


def _round(round: int) -> str:
    return f"{round:06d}"


def _name(client: int) -> str:
    return f"{client:03d}.safetensors"
