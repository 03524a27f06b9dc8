"""``proxyfl predict``: a client's model on new examples."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from proxyfl.cli.commands.predict import model_file
from proxyfl.cli.main import main
from proxyfl.data.sources import load
from proxyfl.errors import RunError
from proxyfl.federation.modelfile import load_model

DIGITS = load("digits")
X = DIGITS.test_x[:6]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on sites whose names are numbers, markup and words."""
    here = tmp_path_factory.mktemp("predict")
    site = np.array(["7", "[north]", "south"])[np.arange(150) % 3]
    np.savez(
        here / "d.npz", x=DIGITS.train_x[:150].numpy(), y=DIGITS.train_y[:150].numpy(), site=site
    )
    sets = [
        "methods=alone,proxyfl",
        "rounds=1",
        f"data.source={here / 'd.npz'}",
        "data.site=site",
        "partition.kind=site",
        "partition.clients=3",
        "learning.batch_size=10",
    ]
    arguments = [part for one in sets for part in ("--set", one)]
    assert main(["run", *arguments, "--out", str(here / "run"), "--json", "--workers", "1"]) == 0
    return here / "run"


def predict(capsys: pytest.CaptureFixture[str], run: Path, source: Path, *arguments: str) -> dict:
    capsys.readouterr()
    assert main(["predict", str(run), str(source), "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def expected(path: Path, x: torch.Tensor = X) -> list[list[float]]:
    return load_model(path)[0](x).softmax(1).tolist()


def test_arrays(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From .npz and .npy: the private model's probabilities, its class by name, and what the model
    is."""
    np.savez(tmp_path / "new.npz", x=X.numpy())
    np.save(tmp_path / "new.npy", X.numpy())
    wanted = expected(finished / "models" / "proxyfl" / "002-private.safetensors")
    for name in ("new.npz", "new.npy"):
        found = predict(capsys, finished, tmp_path / name, "--client", "south")
        assert (found["model"]["client"], found["model"]["method"], found["model"]["role"]) == (
            "south",
            "proxyfl",
            "private",
        )
        np.testing.assert_allclose(
            [p["probabilities"] for p in found["predictions"]], wanted, atol=1e-6
        )
        assert [p["class"] for p in found["predictions"]] == [
            str(int(np.argmax(row))) for row in wanted
        ]


def test_a_pooled_model_must_be_asked_for(finished: Path, tmp_path: Path) -> None:
    """A model of everybody's records is never taken for a site's own, neither as client 0 nor as
    the only one of its method."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(
        config.replace('["alone", "proxyfl"]', '["alone", "proxyfl", "pooled"]')
    )
    pooled = run / "models" / "pooled" / "000-private.safetensors"
    pooled.parent.mkdir()
    shutil.copy(run / "models" / "alone" / "000-private.safetensors", pooled)
    assert model_file(run, "0", None, "private") == run / "models" / "proxyfl" / pooled.name
    with pytest.raises(RunError, match="name one with --client"):
        model_file(run, None, None, "private")
    assert model_file(run, None, "pooled", "private") == pooled


def test_one_example(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An array of one example's shape is one example."""
    np.save(tmp_path / "one.npy", X[0].numpy())
    assert len(predict(capsys, finished, tmp_path / "one.npy", "--client", "0")["predictions"]) == 1


def test_an_image(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A grey picture of the right size is scaled to [0, 1] and predicted."""
    pixels = (X[0, 0] * 255).round().byte().numpy()
    Image.fromarray(pixels).save(tmp_path / "scan.png")
    (found,) = predict(capsys, finished, tmp_path / "scan.png", "--client", "2")["predictions"]
    x = torch.from_numpy(pixels / np.float32(255))[None, None].float()
    (wanted,) = expected(finished / "models" / "proxyfl" / "002-private.safetensors", x)
    np.testing.assert_allclose(found["probabilities"], wanted, atol=1e-6)


def test_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model of a table's rows predicts from a CSV without labels."""
    rows = [
        "age,dose,label",
        *(f"{i % 7},{i % 3},{'ill' if i % 7 > 3 else 'well'}" for i in range(60)),
    ]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    sets = [
        "methods=proxyfl",
        "rounds=1",
        f"data.source={tmp_path / 't.csv'}",
        "partition.clients=2",
        "partition.kind=iid",
        "partition.examples=24",
        "models.private=tabular",
        "learning.batch_size=10",
    ]
    arguments = [part for one in sets for part in ("--set", one)]
    assert (
        main(["run", *arguments, "--out", str(tmp_path / "run"), "--json", "--workers", "1"]) == 0
    )
    (tmp_path / "new.csv").write_text("age,dose\n1,2\n6,0\n")
    found = predict(capsys, tmp_path / "run", tmp_path / "new.csv", "--client", "1")
    assert {p["class"] for p in found["predictions"]} <= {"ill", "well"}
    assert len(found["predictions"]) == 2


def test_which_model(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By number or name, a name before a number; the last method unless one is given; the proxy if
    asked for."""
    np.save(tmp_path / "new.npy", X.numpy())

    def about(*arguments: str) -> tuple[str, str, str]:
        model = predict(capsys, finished, tmp_path / "new.npy", *arguments)["model"]
        return model["client"], model["method"], model["role"]

    assert about("--client", "1") == ("[north]", "proxyfl", "private")
    assert about("--client", "7") == ("7", "proxyfl", "private")
    assert about("--client", "[north]", "--method", "alone") == ("[north]", "alone", "private")
    assert about("--client", "0", "--model", "proxy") == ("7", "proxyfl", "proxy")


def test_for_people(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json: a table, with the client's name as it is."""
    np.save(tmp_path / "new.npy", X.numpy())
    capsys.readouterr()
    assert main(["predict", str(finished), str(tmp_path / "new.npy"), "--client", "[north]"]) == 0
    out = capsys.readouterr().out
    assert "[north], private model" in out
    assert out.count("│") == 4 * len(X)


def write(path: Path, values) -> Path:
    np.save(path, values)
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: d / "none.npy", "No such file"),
        (
            lambda d: write(d / "a.npy", np.zeros((3, 9, 9))),
            r"expected one or more examples of shape \(1, 8, 8\)",
        ),
        (
            lambda d: write(d / "a.npy", np.zeros((2, 1, 1, 8, 8))),
            r"got an array of shape \(2, 1, 1, 8, 8\)",
        ),
        (lambda d: write(d / "a.npy", np.zeros((0, 1, 8, 8))), "one or more examples"),
        (lambda d: write(d / "a.npy", np.float32(3)), r"got an array of shape \(\)"),
        (lambda d: write(d / "a.npy", np.full((1, 1, 8, 8), np.nan)), "expected finite numbers"),
    ],
)
def test_wrong_input(
    make, message: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing file, another shape, no example or NaN: exit code 2 and a message that says what
    was expected."""
    assert main(["predict", str(finished), str(make(tmp_path)), "--client", "0"]) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize("kind", ["npz", "csv", "png"])
def test_damaged_input(
    kind: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is not what its name says is named: exit code 2."""
    (tmp_path / f"bad.{kind}").write_bytes(b"\x00\xff nothing of the kind")
    assert main(["predict", str(finished), str(tmp_path / f"bad.{kind}"), "--client", "0"]) == 2
    assert f"bad.{kind}" in capsys.readouterr().err


def test_an_image_of_the_wrong_size(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An image of another size or in colour is refused with both shapes."""
    Image.new("RGB", (8, 8)).save(tmp_path / "colour.png")
    assert main(["predict", str(finished), str(tmp_path / "colour.png"), "--client", "0"]) == 2
    err = capsys.readouterr().err
    assert "(1, 8, 8)" in err
    assert "(1, 3, 8, 8)" in err


def test_what_is_not_there(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A client or method that the run does not have lists what it has; a folder without a run says
    so."""
    x = str(write(tmp_path / "new.npy", X.numpy()))
    for wrong in (
        ["--client", "west"],
        ["--client", "9"],
        ["--client", "0", "--method", "fml"],
        ["--client", "²"],
    ):
        assert main(["predict", str(finished), x, *wrong]) == 2
        assert "proxyfl private: 7, [north], south" in capsys.readouterr().err
    assert main(["predict", str(tmp_path), x, "--client", "0"]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_without_a_client_the_run_must_have_only_one(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody is chosen in silence: the message lists the clients."""
    np.save(tmp_path / "new.npy", X.numpy())
    assert main(["predict", str(finished), str(tmp_path / "new.npy")]) == 2
    message = capsys.readouterr().err
    assert "models of 3 clients: name one with --client" in message
    assert "7, [north], south" in message
