"""State that lasts from one start of the program to the next: the client's, and its ledger's.

A state is one file per round, named by the store. The file is whole and on the disk before the
store's transaction names it; the one before is removed only afterwards. So whatever the store names
is there. No charge that the store has seen is forgotten.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from proxyfl._files import sync_folder, whole
from proxyfl.errors import PrivacyError, RunError
from proxyfl.federation.client import Client
from proxyfl.privacy.ledger import Charge, Ledger

FOLDER = "state"
_PREFIX = "round-"
_SUFFIX = ".safetensors"


def save(folder: Path, client: Client, round: int) -> str:
    """Write the client's state; return the name under which the store should know it."""
    name = f"{_PREFIX}{round:06d}{_SUFFIX}"
    path = folder / FOLDER / name
    state = {}
    for key, value in client.state().items():
        state[key] = value.contiguous()
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)  # the private model is in it
        with whole(path) as scratch:
            save_file(state, scratch)
        sync_folder(path.parent)
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"Cannot write the models to {path}: {error}. Nothing was released. Make room on the "
            "disk, then start the site again."
        ) from error
    return name


def restore(folder: Path, client: Client, name: str) -> int:
    """Continue from the state that the store names; return the round that it is of."""
    path = folder / FOLDER / name
    if not path.exists():
        raise RunError(
            f"The store names {path}, which is missing. Bring back the whole of the site's folder "
            "from one backup."
        )
    client.restore(load_file(path))
    return int(name.removeprefix(_PREFIX).removesuffix(_SUFFIX))


def forget_others(folder: Path, name: str) -> None:
    """Remove the states that the store no longer names."""
    for path in (folder / FOLDER).glob("*.safetensors"):
        if path.name != name:
            path.unlink(missing_ok=True)


def charges(ledger: Ledger) -> list[str]:
    """The ledger's charges, one line each, as the store keeps them."""
    return [json.dumps(charge.line()) for charge in ledger.charges]


def check_ledger(known_charges: Sequence[str], ledger: Ledger) -> None:
    """Refuses a ledger that lacks a charge that the store has seen. Charges are compared, not their
    text, to which a release may add."""
    known = [Charge.read(json.loads(entry)) for entry in known_charges]
    if list(ledger.charges[: len(known)]) != known:
        raise PrivacyError(
            f"The ledger {ledger.path} lacks charges that the store has seen, so what was spent "
            "is not known. Bring back the newer ledger."
        )
