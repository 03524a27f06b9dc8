"""``proxyfl models``."""

import json
import sys

import pytest

from proxyfl.cli.main import parser
from proxyfl.errors import ModelError
from proxyfl.models import MODELS


def run(*arguments):
    parsed = parser("models").parse_args(["models", *arguments])
    return parsed.run(parsed)


def test_json(capsys):
    """One JSON document with a row for each model: parameters, four bytes each, and that it may be
    a proxy."""
    assert run("--json", "--shape", "1x28x28") == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in found["models"]}
    assert list(rows) == list(MODELS)
    assert rows["mlp"]["parameters"] == 199_210
    assert rows["mlp"]["bytes_per_round"] == 4 * 199_210
    assert rows["mlp"]["proxy"] is True
    assert rows["vgg"]["parameters"] is None
    assert "at least 32x32" in rows["vgg"]["problem"]


def test_table(capsys, monkeypatch):
    """People get a table that says which models do not fit."""
    monkeypatch.setenv("COLUMNS", "160")
    assert run("--shape", "30", "--classes", "2") == 0
    lines = {
        line.split("│")[1].strip(): line
        for line in capsys.readouterr().out.splitlines()
        if "│" in line
    }
    assert "62" in lines["linear"]
    assert "yes" in lines["linear"]
    assert "does not fit" in lines["lenet5"]


def test_own_model(tmp_path, monkeypatch, capsys):
    """The user's own model is judged as a proxy, with the layer that forbids it."""
    (tmp_path / "own_cli_models.py").write_text(
        "from torch import nn\n"
        "def net(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(4, classes), nn.BatchNorm1d(classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert run("own_cli_models:net", "--shape", "4", "--classes", "2", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert (row["parameters"], row["proxy"]) == (14, False)
    assert "BatchNorm1d" in row["problem"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "1x28xq"], "--shape as whole numbers joined by x.* got '1x28xq'"),
        (["--shape", "1x0x3"], "got '1x0x3'"),
        (["--shape", ""], "got ''"),
        (["--classes", "0"], "--classes >= 1, got 0"),
        (["resnet99"], "Unknown model 'resnet99'"),
        (["no_such_module:f"], "no module 'no_such_module'"),
    ],
)
def test_bad_arguments(arguments, message):
    """A shape, a number of classes or a name that makes no sense is an error that shows it."""
    with pytest.raises(ModelError, match=message):
        run(*arguments)


def test_help_teaches(capsys):
    """The help has example command lines."""
    with pytest.raises(SystemExit) as ended:
        run("--help")
    assert ended.value.code == 0
    assert "proxyfl models --shape 3x80x100 --classes 8" in capsys.readouterr().out
