"""Models in files: there whole or not at all, and loaded again bit for bit."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from proxyfl.errors import ModelError, RunError
from proxyfl.federation.learners import Residual
from proxyfl.federation.modelfile import about_model, load_model, save_model
from proxyfl.models import build

X = torch.sin(torch.arange(5 * 64.0)).view(5, 1, 8, 8)
ABOUT = {
    "architecture": "mlp",
    "shape": "[1, 8, 8]",
    "classes": "10",
    "class_names": json.dumps(list("0123456789")),
}


def leftovers(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir())


def test_a_full_disk_while_a_model_is_saved(tmp_path: Path) -> None:
    """A file that the system cuts short is an error that names it, and no half of it is left."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Python ignores the signal, so that writing fails
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(RunError, match=r"Cannot write .*m.safetensors.*intact"):
            save_model(tmp_path / "m.safetensors", build("mlp", shape=(4,), classes=2, seed=0), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("residual", [True, False])
def test_a_model_comes_back(residual: bool, tmp_path: Path) -> None:
    """A saved model predicts the same bits when loaded, residual or not, and says what it is."""
    model: nn.Module = build("mlp", shape=(1, 8, 8), classes=10, seed=1)
    about = dict(ABOUT)
    if residual:
        model = Residual(model, build("linear", shape=(1, 8, 8), classes=10, seed=2))
        about["residual_on"] = "linear"
    save_model(tmp_path / "m.safetensors", model, about)
    loaded, said = load_model(tmp_path / "m.safetensors")
    assert said == about_model(tmp_path / "m.safetensors") == about
    assert not loaded.training
    assert torch.equal(loaded(X), model.eval()(X))
    assert leftovers(tmp_path) == ["m.safetensors"]


def test_shared_weights_and_buffers_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of the user's with BatchNorm and a weight used twice is saved and loaded like any
    other."""
    (tmp_path / "own_folder_model.py").write_text(
        "from torch import nn\n"
        "def net(shape, classes):\n"
        "    a, b = nn.Linear(64, 64), nn.Linear(64, 64)\n"
        "    b.weight = a.weight\n"
        "    return nn.Sequential(nn.Flatten(), a, nn.BatchNorm1d(64), b, nn.Linear(64, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    model = build("own_folder_model:net", shape=(1, 8, 8), classes=10, seed=0)
    model(X)  # moves the running statistics
    save_model(tmp_path / "m.safetensors", model, ABOUT | {"architecture": "own_folder_model:net"})
    again, _ = load_model(tmp_path / "m.safetensors", trust=["own_folder_model"])
    assert torch.equal(again(X), model.eval()(X))


@pytest.mark.parametrize("key", ["architecture", "residual_on"])
def test_a_model_file_that_names_code_runs_nothing_untrusted(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may be anybody's, and what its header names may lie in the current directory."""
    mark = tmp_path / "mark"
    (tmp_path / f"header_{key}.py").write_text(f"open({str(mark)!r}, 'w')\ndef net(*_): 0\n")
    monkeypatch.chdir(tmp_path)
    model = build("linear", shape=(1, 8, 8), classes=10, seed=1)
    save_model(tmp_path / "m.safetensors", model, ABOUT | {key: f"header_{key}:net"})
    with pytest.raises(ModelError, match=f"--trust header_{key}"):
        load_model(tmp_path / "m.safetensors")
    assert not mark.exists()
    with pytest.raises(ModelError, match=r"Expected a torch\.nn\.Module"):
        load_model(tmp_path / "m.safetensors", trust=[f"header_{key}"])
    assert mark.exists()


def test_files_that_are_no_models(tmp_path: Path) -> None:
    """A missing file, a damaged one, one without a description and one of another architecture are
    each told apart."""
    path = tmp_path / "m.safetensors"
    with pytest.raises(ModelError, match="There is no model file"):
        load_model(path)
    path.write_bytes(b"no tensors here")
    with pytest.raises(ModelError, match="damaged, or is not a model file"):
        load_model(path)
    model = build("linear", shape=(1, 8, 8), classes=10, seed=1)
    save_model(path, model, {})
    with pytest.raises(ModelError, match="not a model file of this program"):
        load_model(path)
    save_model(path, model, ABOUT)
    with pytest.raises(ModelError, match="not a model file of this program"):
        load_model(path)
    save_model(path, model, ABOUT | {"architecture": "gone.module:net"})
    with pytest.raises(ModelError, match="no module 'gone'"):
        load_model(path, trust=["gone"])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="damaged, or is not a model file"):
        load_model(path)


def test_equal_models_have_equal_files(tmp_path: Path) -> None:
    """The same model with the same metadata gives the same bytes, in whatever order it is told."""
    model = build("mlp", shape=(4,), classes=2, seed=0)
    about = {f"key-{i}": str(i) for i in range(20)}
    contents = set()
    for turn in range(4):
        told = dict(list(about.items())[:: 1 if turn % 2 else -1])
        save_model(tmp_path / "m.safetensors", model, told)
        contents.add((tmp_path / "m.safetensors").read_bytes())
    assert len(contents) == 1
    assert about_model(tmp_path / "m.safetensors") == about
