"""An export of a site whose losses were balanced: its programs say the public prevalence."""

import csv
import dataclasses
import io
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from proxyfl.cli.main import main
from proxyfl.federation.modelfile import load_model
from proxyfl.federation.prevalence import BALANCED, PUBLIC
from proxyfl.node.members import site as sites
from proxyfl.node.members.site import Learning, Network, Site
from proxyfl.node.trial import free_ports
from tests.waiting import PATIENCE

from .federations import SEED, Running, change
from .test_tables import SCHEMA, Record, described, records, write_csv

CASES = 0.2
"""The public share of the dead. Half of north's own patients die."""


def patients(count: int, share: float, seed: int) -> list[Record]:
    """Patients of whom so many die; those of a class are alike everywhere."""
    pool = records(6 * count, seed)
    dead = [row for row in pool if row["died"] == "1"][: round(share * count)]
    alive = [row for row in pool if row["died"] == "0"][: count - len(dead)]
    rows = alive + dead
    random.Random(seed).shuffle(rows)
    return rows


def settings(site: Site, network: Network) -> Site:
    return dataclasses.replace(
        described(site, network),
        model=sites.Model("logistic"),
        learning=Learning(
            batch_size=20, steps_per_round=2, balance="prior", choose_for="own", beta=0.0
        ),
    )


@pytest.fixture(scope="module", params=[True, False], ids=["public", "unknown"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """North's export, after two rounds with south, with a public prevalence and without one."""
    folder = tmp_path_factory.mktemp("federation")
    stated = f"prevalence = [{1 - CASES}, {CASES}]\n" if request.param else ""
    marker = "[columns.age]"
    (folder / "schema.toml").write_text(SCHEMA.replace(marker, stated + "\n" + marker))
    ports = free_ports(4)
    cards = []
    for at, (name, share) in enumerate((("north", 0.5), ("south", CASES))):
        place = folder / name
        address = f"127.0.0.1:{ports[at]}"
        assert main(["node", "init", str(place), "--address", address]) == 0
        cards.append(str(place / f"{name}.card.toml"))
        write_csv(place / "patients.csv", patients(800, share, at))
        network = Network(
            listen=address, patience=PATIENCE, heartbeat=1.0, status_port=ports[2 + at]
        )
        change(place, lambda site, network=network: settings(site, network))
    new = ["federation", "new", str(folder), *cards, "--name", "stroke", "--rounds", "2"]
    terms = ["--schema", str(folder / "schema.toml"), "--measure", "auroc"]
    assert main([*new, *terms, *(["--balance", "prior"] if request.param else [])]) == 0
    made = Running()
    for name in ("north", "south"):
        assert main(["node", "accept", str(folder / name), str(folder / "manifest.toml")]) == 0
    for name in ("north", "south"):
        made.start(folder / name, SEED)
    made.join()
    assert set(made.ended.values()) == {"finished"}
    assert main(["node", "export", str(folder / "north"), str(folder / "out")]) == 0
    return folder


def test_an_export_says_the_public_prevalence(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On patients of the public prevalence predict.py's mean is the public share, although half of
    the site's own patients die; without a public share its columns name balanced classes. `proxyfl
    predict` says the same, and about.json what was added."""
    out = exported / "out"
    about = json.loads((out / "about.json").read_text())
    public = about["prevalence"] != []
    write_csv(exported / "new.csv", patients(2000, CASES, 9))
    script = [sys.executable, "-W", "ignore", str(out / "predict.py"), str(exported / "new.csv")]
    done = subprocess.run(script, check=True, capture_output=True, text=True, timeout=PATIENCE)
    header, *rows = csv.reader(io.StringIO(done.stdout))
    said = np.array(rows, dtype=float)
    capsys.readouterr()
    assert main(["predict", str(out), str(exported / "new.csv"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    own = [row["probabilities"] for row in document["predictions"]]
    np.testing.assert_allclose(said, own, atol=2e-4)
    if public:
        assert about["probabilities_for"] == document["probabilities_for"] == PUBLIC
        assert header == ["alive", "dead"]
        assert said[:, 1].mean() == pytest.approx(CASES, abs=0.03)
    else:
        assert about["probabilities_for"] == document["probabilities_for"] == BALANCED
        assert header == [f"alive ({BALANCED})", f"dead ({BALANCED})"]
        assert said[:, 1].mean() > CASES + 0.03


def test_every_program_has_the_shift(exported: Path) -> None:
    """The TorchScript and torch.export programs give the weights' logits plus what about.json says
    was added."""
    out = exported / "out"
    about = json.loads((out / "about.json").read_text())
    model, _ = load_model(out / "private.safetensors")
    x = torch.rand(5, *about["shape"]) * 2 - 1
    added = torch.tensor(about["added_to_the_logits_of_the_weights"] or [0.0, 0.0])
    with torch.no_grad():
        expected = model(x) + added
        found = [torch.export.load(out / "private.pt2").module()(x)]
        found.append(torch.jit.load(str(out / "private.pt"))(x[:1]).expand(5, -1))
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[1][0], expected[0], rtol=1e-4, atol=1e-4)
