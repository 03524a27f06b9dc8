"""What sites may agree on beyond the graph, and private models that are fitted."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from proxyfl import _settings
from proxyfl.cli.main import main
from proxyfl.errors import ConfigError
from proxyfl.federation.home import Home
from proxyfl.federation.modelfile import load_model
from proxyfl.models.estimators import candidates
from proxyfl.node import assembly
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members import site as sites
from proxyfl.node.members.identity import Identity
from proxyfl.node.members.manifest import Input, Manifest, Proxy
from proxyfl.node.members.site import Site
from proxyfl.node.observe import status
from proxyfl.node.programs import write_programs
from proxyfl.node.trial import Layout
from proxyfl.privacy.ledger import Ledger
from tests.waiting import PATIENCE

from .federations import Running, change, predicted, quick, running, trial
from .test_node import final_proxy

ROUNDS = 5
SETTLE = 2
CLASSES = Input((1,), ("a", "b"))


def with_estimator(site: Site) -> Site:
    """The site with an estimator that is fitted, and its own remedy for uneven classes."""
    return replace(
        site,
        model=replace(site.model, architecture="logistic"),
        learning=replace(site.learning, balance="weights"),
    )


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Three sites, one of them with an estimator, that average and settle. The first was stopped
    and started again within the rounds that are averaged."""
    folder = tmp_path_factory.mktemp("settled")
    layout = trial.lay_out(folder, sites=3, rounds=ROUNDS, template=quick(patience=PATIENCE))
    shares = (0.1,) * 10
    terms = replace(
        layout.manifest,
        settle=SETTLE,
        average=0.7,
        proxy=replace(layout.manifest.proxy, balance="prior", prevalence=shares),
    )
    layout = trial.accept_everywhere(layout, terms)
    change(layout.sites[1], with_estimator)
    others = [place.name for place in layout.sites[1:]]
    with running(layout, only=others) as made:
        first = Running()
        first.start(layout.sites[0], rounds=2)
        first.join()
        made.start(layout.sites[0])
        made.join()
        assert set(made.ended.values()) == {"finished"}
    return layout


def test_sites_that_average_and_settle_equal_the_simulation(settled: Layout) -> None:
    """The proxies are the simulation's bit for bit, also at the site that was started again while
    it gathered the mean."""
    expected = predicted(settled.folder)
    for place, outcome in zip(settled.sites, expected, strict=True):
        assert torch.equal(final_proxy(place), outcome.proxy), place.name
    last = status.rows(settled.sites[1])[-1]
    assert last["private_accuracy"] == expected[1].joined
    assert last["keeps"] is not None


def test_settling_costs_no_privacy(settled: Layout) -> None:
    """In the last rounds no site takes a step, and its ledger says so."""
    for place in settled.sites:
        steps = [row["steps"] for row in status.rows(place)]
        assert steps == [2] * (ROUNDS - SETTLE) + [0] * SETTLE
        assert Ledger.read(place / assembly.LEDGER_FILE).steps == sum(steps)
        epsilons = [row["epsilon_pld"] for row in status.rows(place)]
        assert epsilons[-1] == epsilons[ROUNDS - SETTLE - 1]


def test_an_exported_estimator_predicts_as_the_sites_own(settled: Layout) -> None:
    """Its file, and its program on batches of any size, give what the site's own model says."""
    place = settled.sites[1]
    out = settled.folder / "out"
    assert main(["node", "export", str(place), str(out)]) == 0
    settings, folder = sites.read(place)
    data = assembly.load(settled.manifest, settings, folder)
    inputs = data.test.take(torch.arange(len(data.test)))
    model, about = load_model(out / "private.safetensors")
    assert isinstance(model, Home)
    said = model(inputs)
    program = torch.export.load(out / "private.pt2").module()
    # its logits are for the public prevalence, here the same of every class
    torch.testing.assert_close(program(inputs).softmax(1), said.softmax(1))
    torch.testing.assert_close(program(inputs[:3]).softmax(1), said[:3].softmax(1))
    right = (said.argmax(1) == data.test.labels).float().mean().item()
    assert right == pytest.approx(status.rows(place)[-1]["private_accuracy"])
    assert about["architecture"] == "logistic"
    assert json.loads((out / "about.json").read_text())["keeps"] == model.name


def test_boosted_trees_become_programs(tmp_path: Path) -> None:
    """Both forms hold them, alone or with a proxy, also where a class was never seen; an estimator
    that no program can hold is told apart."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(90, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    inputs = torch.from_numpy(x)
    torch.manual_seed(0)
    proxy = torch.nn.Linear(4, 3)
    for spec, classes, received in (
        ("trees", 2, None),
        ("trees", 3, proxy),
        ("logistic", 3, proxy),
    ):
        own = candidates(spec)[0].fit(x, y, classes, None, 0)
        weights = (1.0, 0.0) if received is None else (0.5, 0.5)
        home = Home(spec, own, received, weights, torch.zeros(classes))
        out = tmp_path / f"{spec}-{classes}"
        out.mkdir()
        paths, _ = write_programs(home, inputs, out)
        assert {path.suffix for path in paths} >= {".pt2", ".onnx"}
        program = torch.export.load(out / "private.pt2").module()
        torch.testing.assert_close(program(inputs), home(inputs))
        torch.testing.assert_close(program(inputs[:3]), home(inputs[:3]))
    own = candidates("sklearn.naive_bayes:GaussianNB")[0].fit(x, y, 2, None, 0)
    foreign = Home("nb", own, None, (1.0, 0.0), torch.zeros(2))
    paths, notes = write_programs(foreign, inputs, tmp_path)
    assert not paths
    assert "pickle" in notes[0]


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"settle": 9, "rounds": 9}, "leaves none"),
        ({"settle": 2, "rounds": manifests.MOST_ROUNDS}, "which rounds are the last"),
        ({"average": 0.5}, "needs last rounds"),
        ({"proxy": Proxy(balance="prior")}, "publicly known share"),
        ({"proxy": Proxy(prevalence=(0.5, 0.2, 0.3))}, "each of 2 classes"),
        ({"proxy": Proxy(prevalence=(0.5, 0.2))}, "add up to 1"),
    ],
)
def test_terms_that_make_no_sense_are_refused(terms: dict[str, object], said: str) -> None:
    """The manifest says what was found and what to do."""
    with pytest.raises(ConfigError, match=said):
        Manifest("f", input=CLASSES, **terms)  # type: ignore[arg-type]  # a test's own words


def test_new_terms_survive_the_file_and_change_the_hash(tmp_path: Path) -> None:
    """`federation new` writes what was asked, `auto` as a number; members sign all of it."""
    cards = []
    for name in ("a", "b", "c"):
        path = tmp_path / f"{name}.card.toml"
        card = Identity.create(tmp_path / name, name).card("")
        path.write_text(_settings.to_toml(card))
        cards.append(str(path))
    words = ["--shape", "1", "--classes", "x,y", "--rounds", "20"]
    more = ["--settle", "auto", "--average", "0.5", "--balance", "weights"]
    found = str(tmp_path / "heart")
    command = ["federation", "new", found, *cards, *words, *more]
    assert main([*command, "--prevalence", "0.9,0.1"]) == 0
    agreed = manifests.read(tmp_path / "heart")
    assert (agreed.settle, agreed.average, agreed.training_rounds) == (3, 0.5, 17)
    assert agreed.proxy.prevalence == (0.9, 0.1)
    assert replace(agreed, settle=2).digest != agreed.digest
