"""The private model for use elsewhere, with its certificate."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from proxyfl.cli.main import main
from proxyfl.node import assembly, keeping
from proxyfl.node.members import site as sites
from proxyfl.node.supervisor import Node
from proxyfl.node.trial import Layout
from tests.waiting import PATIENCE

from .federations import SEED, quick, running, trial


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Two sites that have done two rounds, and the first one's model in out/."""
    folder = tmp_path_factory.mktemp("federation")
    layout = trial.lay_out(folder, sites=2, rounds=2, template=quick(patience=60.0))
    with running(layout) as made:
        made.join()
    assert main(["node", "export", str(layout.sites[0]), str(folder / "out")]) == 0
    return layout


def own_predictions(layout: Layout) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """The site's own private model, all of its test inputs, and what it says of them."""
    settings, folder = sites.read(layout.sites[0])
    with Node(settings, folder, seed=SEED) as node:
        keeping.restore(folder, node.client, node.books.position().learner)
        model = node.client.learner.models()["private"].eval()
        inputs = node.data.test.take(torch.arange(len(node.data.test)))
    with torch.no_grad():
        return model, inputs, model(inputs)


RUNS = {
    "pt2": "said = torch.export.load(path).module()(inputs).detach()",
    "onnx": "import onnxruntime; s = onnxruntime.InferenceSession(path); "
    "said = torch.from_numpy(s.run(None, {s.get_inputs()[0].name: inputs.numpy()})[0])",
    "pt": "said = torch.jit.load(path)(inputs).detach()",
}


@pytest.mark.parametrize("form", RUNS)
def test_the_program_predicts_what_the_model_does(finished: Layout, form: str) -> None:
    """Each program, loaded in a process without this package, gives the site's own logits."""
    if form == "onnx":
        pytest.importorskip("onnxruntime")
    _, inputs, expected = own_predictions(finished)
    out = finished.folder / "out"
    torch.save(inputs, finished.folder / "inputs.pt")
    code = (
        "import sys, torch\n"
        f"path = {str(out / f'private.{form}')!r}\n"
        f"inputs = torch.load({str(finished.folder / 'inputs.pt')!r})\n"
        f"{RUNS[form]}\n"
        f"torch.save(said, {str(finished.folder / 'said.pt')!r})\n"
        "assert not any(name.startswith('proxyfl') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=PATIENCE)
    said = torch.load(finished.folder / "said.pt")
    assert torch.equal(said.argmax(1), expected.argmax(1))
    torch.testing.assert_close(said, expected, rtol=1e-4, atol=1e-4)


def test_the_weights_are_the_models(finished: Layout) -> None:
    """Loaded into a model of the same architecture they give the same logits, bit for bit."""
    model, inputs, expected = own_predictions(finished)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    model.load_state_dict(load_file(finished.folder / "out" / "private.safetensors"))
    with torch.no_grad():
        assert torch.equal(model(inputs), expected)


@pytest.mark.parametrize("form", ["certificate.md", "certificate.json"])
def test_the_certificate_holds(finished: Layout, form: str) -> None:
    """`proxyfl certificate --check` compares it with the site's ledger; a changed one fails."""
    site, path = str(finished.sites[0]), finished.folder / "out" / form
    assert main(["certificate", site, "--check", str(path)]) == 0
    forged = finished.folder / form
    forged.write_text(path.read_text().replace("zero-out", "add-or-remove"))
    assert forged.read_text() != path.read_text()
    assert main(["certificate", site, "--check", str(forged)]) == 1


def test_what_is_secret_is_its_owners_alone(finished: Layout) -> None:
    """Whoever else works on the machine reads neither keys nor models: not in the site's folder,
    not where an operator widened its mode, and not in what was exported."""
    place = finished.sites[0]
    secret = [place, place / keeping.FOLDER, finished.folder / "out"]
    secret += [place / name for name in ("key.pem", "store.sqlite")]
    for path in secret:
        assert path.stat().st_mode & 0o077 == 0, path.name


def test_what_is_exported_says_what_it_is(finished: Layout) -> None:
    """about.json has classes, shape and the warning; a folder that exists is left alone."""
    about = json.loads((finished.folder / "out" / "about.json").read_text())
    assert about["classes"] == list("0123456789")
    assert about["shape"] == list(finished.manifest.input.shape)
    assert "without DP" in about["warning"]
    site = str(finished.sites[0])
    assert main(["node", "export", site, str(finished.folder / "out")]) == 2
    assert (finished.sites[0] / assembly.LEDGER_FILE).exists()


def test_predict_takes_a_site_and_an_export(
    finished: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both give the site's own classes for new examples, without naming the site."""
    _, inputs, expected = own_predictions(finished)
    np.save(finished.folder / "new.npy", inputs.numpy())
    classes = [str(place) for place in expected.argmax(1).tolist()]
    for source in (finished.sites[0], finished.folder / "out"):
        capsys.readouterr()
        line = ["predict", str(source), str(finished.folder / "new.npy"), "--json"]
        assert main(line) == 0
        document = json.loads(capsys.readouterr().out)
        assert [row["class"] for row in document["predictions"]] == classes
        assert document["model"]["client"] == "north"
    line = ["predict", str(finished.folder / "out"), str(finished.folder / "new.npy")]
    assert main([*line, "--model", "proxy"]) == 2
    assert "holds one model, the site's private one" in capsys.readouterr().err
