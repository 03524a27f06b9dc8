"""A learner's state between two starts of the program: one file per round, named by the store.

The file is whole and on the disk before the store's transaction names it; the one before is removed
only afterwards. So whatever the store names is there.
"""

from pathlib import Path

from safetensors.torch import load_file, save_file

from proxyfl._files import sync_folder, whole
from proxyfl.errors import RunError
from proxyfl.federation.learners import Learner

FOLDER = "state"


def save(folder: Path, learner: Learner, round: int) -> str:
    """Write the learner's state; return the name under which the store should know it."""
    kept = folder / FOLDER
    kept.mkdir(exist_ok=True)
    name = f"round-{round:06d}.safetensors"
    state = {key: value.contiguous() for key, value in learner.state().items()}
    with whole(kept / name) as scratch:
        save_file(state, scratch)
    sync_folder(kept)
    return name


def restore(folder: Path, learner: Learner, name: str) -> None:
    """Continue from the state that the store names."""
    path = folder / FOLDER / name
    if not path.exists():
        raise RunError(
            f"The store names {path}, which is missing. Bring back the whole of the site's folder "
            "from one backup."
        )
    learner.restore(load_file(path))


def forget_others(folder: Path, name: str) -> None:
    """Remove the states that the store no longer names."""
    for path in (folder / FOLDER).glob("*.safetensors"):
        if path.name != name:
            path.unlink(missing_ok=True)
