"""A run's folder: what was asked, on what, what came out. Plain files that outlive this program.

    config.toml          the resolved settings; `proxyfl run RUN/config.toml` runs them again
    environment.json     versions, commit, machine
    metrics.jsonl        one line per method, client and round
    ledger/METHOD/       one append-only file per client: what its data has paid
    models/METHOD/       the final models as safetensors, with what is needed to load them again
    checkpoints/METHOD/  where an interrupted run goes on; gone when the method is over
    ended/METHOD.json    that a method is over, with its final records
    summary.json         final scores and costs, per method and client

The folder comes into being with its config already in it, or not at all. Metrics are flushed line
by line, so an interrupted run leaves readable records."""

import datetime
import fcntl
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from proxyfl import models
from proxyfl.errors import ModelError, RunError
from proxyfl.federation.learners import Residual
from proxyfl.simulation.config import Config, load, to_toml


def create(path: Path, config: Config, identity: str, data: int) -> Path:
    """Make the folder with its config and environment; it must not exist yet, or be an empty one.

    ``identity`` of the settings and checksum of the ``data`` are noted for ``resume`` to compare.
    """
    about = environment() | {"identity": identity, "data": data}
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunError(f"{path} exists already. Give another folder with --out, or remove it.")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as scratch:
            new = Path(scratch) / "run"
            new.mkdir()
            (new / "config.toml").write_text(to_toml(config), encoding="utf-8")
            (new / "environment.json").write_text(
                json.dumps(about, indent=2) + "\n", encoding="utf-8"
            )
            (new / "metrics.jsonl").touch()
            new.rename(path)
    except OSError as error:
        raise RunError(
            f"Cannot write the run's folder {path}: {error.strerror or error}. "
            "Nothing was run. Give a folder that can be written with --out."
        ) from error
    return path


def fresh(parent: Path, config: Config) -> Path:
    """A name for a new run below ``parent`` that is not taken: the time, and the data's name."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{stamp}-{Path(config.data.source).stem.replace(':', '-')}"
    taken = (parent / (name if n == 0 else f"{name}-{n}") for n in range(1000))
    return next(path for path in taken if not path.exists())


def environment() -> dict[str, Any]:
    """What the results may depend on besides the config."""
    packages = ("proxyfl", "torch", "numpy", "dp-accounting", "safetensors", "scikit-learn")
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in packages},
        "commit": _commit(),
        "simulation": True,
        "command": sys.argv,
    }


def check_environment(path: Path, identity: str) -> None:
    """Raise ``RunError`` unless the run can go on as it began: the same settings, the same
    releases."""
    began = _read_json(existing(path) / "environment.json")
    if began.get("identity") != identity:
        raise RunError(
            f"{path}/config.toml was changed after the run began. Put it back, or start a new run "
            f"with it."
        )
    before, now = began.get("packages", {}), environment()["packages"]
    for name in ("proxyfl", "torch", "numpy"):
        if before.get(name) != now[name]:
            raise RunError(
                f"{path} was begun with {name} {before.get(name)}, this is {name} {now[name]}: "
                f"the end would not be "
                "that of an uninterrupted run. Install that release, or start a new run."
            )


def check_data(path: Path, data: int) -> None:
    """Raise ``RunError`` unless the data is what the run began with."""
    if _read_json(path / "environment.json").get("data") != data:
        raise RunError(
            f"The data has changed since the run in {path} began. Put it back, or start a new run."
        )


def append_metrics(path: Path, rows: Sequence[Mapping[str, Any]]) -> int:
    """Add lines to ``metrics.jsonl``, flushed before it returns; the size of the file then."""
    with writing(path / "metrics.jsonl"), (path / "metrics.jsonl").open("ab") as file:
        file.write("".join(json.dumps(finite(row)) + "\n" for row in rows).encode())
        file.flush()
        return file.tell()


def metrics_size(path: Path) -> int:
    """How many bytes ``metrics.jsonl`` holds."""
    return (path / "metrics.jsonl").stat().st_size


def cut_metrics(path: Path, size: int) -> None:
    """Drop what was written to ``metrics.jsonl`` after its first ``size`` bytes: those rounds are
    done again."""
    with writing(path / "metrics.jsonl"), (path / "metrics.jsonl").open("r+b") as file:
        file.truncate(size)


def write_method(path: Path, name: str, content: Mapping[str, Any]) -> None:
    """Note that a method is over, with its final records."""
    write_json(subfolder(path, "ended") / f"{name}.json", content)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from running the same run: two writers would spoil each other's
    records."""
    with writing(path):
        file = (path / ".lock").open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"Another process is at work on the run in {path}. Wait for it or stop it."
            ) from None
        yield  # the operating system lifts the lock when this process ends, however it ends


def read_summary(path: Path) -> dict[str, Any]:
    """The contents of ``summary.json``."""
    return _read_json(existing(path) / "summary.json")


def read_method(path: Path, name: str) -> dict[str, Any] | None:
    """What ``write_method`` noted; None if the method is not over."""
    file = path / "ended" / f"{name}.json"
    return _read_json(file) if file.exists() else None


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of ``metrics.jsonl``; a torn last line (the run was killed while writing it) is
    passed over."""
    file = existing(path) / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                return
            raise RunError(f"{file}, line {number} is not JSON: {error}.") from error


def subfolder(path: Path, *names: str) -> Path:
    """A folder within the run's folder, made if need be."""
    below = path.joinpath(*names)
    with writing(below):
        below.mkdir(parents=True, exist_ok=True)
    return below


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file whole or not at all."""
    with writing(path), _whole(path) as scratch:
        scratch.write_text(json.dumps(finite(content), indent=1) + "\n", encoding="utf-8")


def existing(path: Path) -> Path:
    """``path`` if it holds a run."""
    if not (path / "config.toml").is_file():
        raise RunError(
            f"{path} holds no run: expected a config.toml in it. `proxyfl run` makes such folders."
        )
    return path


def read_config(path: Path) -> Config:
    """The settings of the run in ``path``."""
    return load(existing(path) / "config.toml")


def save_model(path: Path, model: nn.Module, about: Mapping[str, str]) -> None:
    """Write a model's weights with ``about``: architecture, shape, classes and whatever a reader
    should know."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {
        name: tensor.detach().cpu().clone().contiguous()
        for name, tensor in model.state_dict().items()
    }
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _whole(path) as scratch:
            try:
                save_file(tensors, scratch, metadata=dict(about))
            except SafetensorError as error:
                raise OSError(str(error)) from error  # what this library makes of a full disk


def load_model(path: Path) -> tuple[nn.Module, dict[str, str]]:
    """A model from its file, ready to predict, and what the file says about it."""
    try:
        with _model_file(path) as file:
            about: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
        shape = tuple(int(n) for n in json.loads(about["shape"]))
        classes = int(about["classes"])
        model = models.build(about["architecture"], shape=shape, classes=classes, seed=0)
        if "residual_on" in about:
            model = Residual(
                model, models.build(about["residual_on"], shape=shape, classes=classes, seed=0)
            )
        model.load_state_dict(tensors)
    except ModelError:
        raise  # says already what cannot be read or built
    except (KeyError, ValueError, RuntimeError) as error:
        raise ModelError(f"{path} is not a model file of this program: {error}") from error
    return model.eval(), about


def about_model(path: Path) -> dict[str, str]:
    """What a model's file says about it, without reading the weights."""
    with _model_file(path) as file:
        about: dict[str, str] = file.metadata() or {}
    return about


@contextmanager
def _model_file(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError as error:
        raise ModelError(f"There is no model file {path}. Did the run finish?") from error
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is damaged or no model file: {error}") from error


class writing:  # noqa: N801  # reads as a statement: with writing(path)
    """Turns the operating system's complaints into one that names the file and what to do."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, OSError):
            raise RunError(
                f"Cannot write {self.path}: {error.strerror or error}. What was recorded before "
                f"is intact. "
                "Make room, or give another folder with --out."
            ) from error


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A place to write what is to become ``path``: it does if all goes well, and is removed if
    not."""
    scratch = path.with_name(f".{path.name}.new")
    try:
        yield scratch
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def finite(value: Any) -> Any:
    """JSON has no infinity: an unbounded epsilon becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"Cannot read {path}: {error}.") from error
    return content


def _version(package: str) -> str | None:
    try:
        return torch.__version__ if package == "torch" else metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the source tree that this package runs from; None where it is installed from
    elsewhere."""
    try:
        found = subprocess.run(
            [
                "git",
                "-C",
                str(Path(__file__).parent),
                "describe",
                "--always",
                "--dirty",
                "--abbrev=12",
            ],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None
