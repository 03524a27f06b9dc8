"""A model in a file: its weights as safetensors, and in the header what builds it again.

Guarantees: a file is there whole or not at all; ``load`` gives a model that predicts the same bits;
equal models have equal files; a file that is missing, damaged or of another program is told apart
by the error.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from proxyfl import models
from proxyfl._entrypoint import Imports
from proxyfl._files import write_bytes
from proxyfl.errors import ModelError
from proxyfl.federation.home import Home, rebuilt
from proxyfl.federation.learners import Residual

_OF_A_FILE = Imports(
    here=True, remedy="If you know that code, and it is yours, say so with --trust {module}."
)


def save_model(path: Path, model: nn.Module, about: Mapping[str, str]) -> None:
    """Write a model's weights with ``about``: architecture, shape, classes and whatever a reader
    should know. Equal models with equal ``about`` give equal files, byte for byte."""
    from safetensors.torch import save

    tensors = {}
    for name, tensor in model.state_dict().items():
        tensors[name] = tensor.detach().cpu().clone().contiguous()
    metadata = dict(about)
    if isinstance(model, Home):
        metadata["home"] = json.dumps(model.about())
    write_bytes(path, _sorted(save(tensors, metadata=metadata)))


def _sorted(content: bytes) -> bytes:
    """A safetensors file with its metadata in order: the library writes them in any."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    about = header.pop("__metadata__", {})
    header = {"__metadata__": dict(sorted(about.items())), **header}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
    length = len(text).to_bytes(8, "little")
    return length + text + content[end:]


def load_model(
    path: Path, *, unpickle: bool = False, trust: Sequence[str] = ()
) -> tuple[nn.Module, dict[str, str]]:
    """A model from its file, ready to predict, and what the file says about it.

    An estimator that is no table of numbers is kept as a pickle, which runs code when it is opened;
    ``unpickle`` says that the file is trusted. An architecture that is code of its own
    (``package.module:factory``) runs only if ``trust`` lists its module or package: the file says
    which it is, and the file may be anybody's."""
    imports = replace(_OF_A_FILE, modules=tuple(trust))
    try:
        with _opened(path) as file:
            about: dict[str, str] = file.metadata() or {}
            tensors = {}
            names = file.keys()  # not a mapping, although it has keys
            for name in names:
                tensors[name] = file.get_tensor(name)
        model: nn.Module
        if "home" in about:
            model = _home(about, tensors, imports, unpickle=unpickle)
        else:
            model = _built(about, "architecture", imports)
            if "residual_on" in about:
                model = Residual(model, _built(about, "residual_on", imports))
            model.load_state_dict(tensors)
    except ModelError:
        raise  # says already what cannot be read or built
    except (KeyError, ValueError, RuntimeError) as error:
        raise ModelError(f"{path} is not a model file of this program: {error}") from error
    return model.eval(), about


def about_model(path: Path) -> dict[str, str]:
    """A model file's header, without reading the weights."""
    with _opened(path) as file:
        about: dict[str, str] = file.metadata() or {}
    return about


def _home(
    about: Mapping[str, str], tensors: Mapping[str, Tensor], imports: Imports, *, unpickle: bool
) -> Home:
    """What an institution kept: its estimator, the received proxy, or both."""
    proxy = None
    if "residual_on" in about:
        proxy = _built(about, "residual_on", imports)
    return rebuilt(json.loads(about["home"]), tensors, proxy, unpickle=unpickle)


def _built(about: Mapping[str, str], key: str, imports: Imports) -> nn.Module:
    """The model whose architecture stands under ``key``."""
    shape = tuple(map(int, json.loads(about["shape"])))
    classes = int(about["classes"])
    return models.build(about[key], shape=shape, classes=classes, seed=0, imports=imports)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError as error:
        raise ModelError(f"There is no model file {path}. Did the run finish?") from error
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is damaged, or is not a model file: {error}") from error
