"""`proxyfl run --federation`: a real federation's folder is simulated by an ordinary run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import proxyfl
from proxyfl.cli.main import main
from proxyfl.data.examples import InMemory
from proxyfl.errors import ConfigError
from proxyfl.federation.state import State
from proxyfl.node import trial
from proxyfl.node.members.site import Site
from proxyfl.node.trial import Layout
from proxyfl.settings import Defence, Model, Optimizer
from proxyfl.simulation import federation
from proxyfl.simulation.config import Config, to_toml
from proxyfl.simulation.prepare import prepare
from proxyfl.simulation.run import resume, run
from proxyfl.simulation.sites import SiteRules
from tests.node.federations import change, quick
from tests.simulation.engines import StopAt, assert_equal_runs

ROUNDS = 4


def differ(site: Site) -> Site:
    """South has a model, optimizers, batches and a defence of its own, and declares its size."""
    if site.name != "south":
        return replace(site, defence=Defence("clip", 0.5))
    return replace(
        site,
        model=Model("linear", residual=False),
        proxy_optimizer=Optimizer("sgd", learning_rate=0.5, momentum=0.5),
        learning=replace(site.learning, batch_size=30, steps_per_round=4),
        privacy=replace(site.privacy, examples=400, delta=1e-5),
        defence=Defence("none"),
    )


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Three sites that differ in all that a site decides; the third joins late."""
    folder = tmp_path_factory.mktemp("federation")
    layout = trial.lay_out(folder, sites=3, rounds=ROUNDS, template=quick(), joins={2: 1})
    for place in layout.sites:
        change(place, differ)
    return layout


def config_of(layout: Layout, **changes: object) -> Config:
    overrides = [f"{key}={value}" for key, value in changes.items()]
    return federation.config_of(layout.folder, overrides=["checkpoint_every=1", *overrides])


@pytest.fixture(scope="module")
def whole(layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The federation's run without interruption, in one process."""
    path = tmp_path_factory.mktemp("whole") / "run"
    run(config_of(layout), out=path)
    return path


def test_a_federation_becomes_a_config(layout: Layout) -> None:
    """The manifest's terms and each site's own decisions stand there by the keys of a run."""
    config = federation.config_of(layout.folder)
    assert (config.rounds, config.methods) == (ROUNDS, ("alone", "proxyfl"))
    assert config.exchange.rules == "sites"
    assert [(stay.client, stay.joins) for stay in config.membership.schedule] == [(2, 1)]
    north, south, east = config.locals(layout.manifest.names())
    assert (north.name, south.name, east.name) == ("north", "south", "east")
    assert south.model == Model("linear", residual=False)
    assert north.model.residual
    assert south.proxy_optimizer == Optimizer("sgd", learning_rate=0.5, momentum=0.5)
    assert (south.privacy.examples, south.privacy.delta) == (400, 1e-5)
    assert (north.privacy.examples, north.privacy.delta) == (None, 1e-4)
    assert [each.rule for each in config.defences(3)] == ["clip", "none", "clip"]


def test_each_client_has_its_sites_own_records(layout: Layout) -> None:
    """Training and test parts are the sites', in the manifest's order."""
    prepared = prepare(config_of(layout))
    assert [client.name for client in prepared.clients] == ["north", "south", "east"]
    assert isinstance(prepared.dataset.train, InMemory)
    sizes = [len(client) for client in prepared.clients]
    assert sum(sizes) == len(prepared.dataset.train)
    assert prepared.dataset.test_site is not None
    assert prepared.dataset.test_site.unique().tolist() == [0, 1, 2]


def test_workers_and_resume_change_nothing(layout: Layout, whole: Path, tmp_path: Path) -> None:
    """Two processes, a stop and a start again give the same metrics, ledgers and models, bit for
    bit."""
    run(config_of(layout), out=tmp_path / "two", workers=2)
    assert_equal_runs(whole, tmp_path / "two")
    with pytest.raises(KeyboardInterrupt):
        run(config_of(layout), out=tmp_path / "cut", callbacks=[StopAt("proxyfl", 1)])
    resume(tmp_path / "cut", workers=2)
    assert_equal_runs(whole, tmp_path / "cut")


def test_a_resumed_defence_remembers(
    layout: Layout, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above would fail if the defence began anew: here it does, and the end differs."""

    def forget(self: SiteRules, client: object, state: State) -> None:
        assert "exchange/guard" in state

    with pytest.raises(KeyboardInterrupt):
        run(config_of(layout), out=tmp_path / "cut", callbacks=[StopAt("proxyfl", 1)])
    monkeypatch.setattr(SiteRules, "restore", forget)
    resume(tmp_path / "cut")
    with pytest.raises(AssertionError):
        assert_equal_runs(whole, tmp_path / "cut")


def test_the_sites_defence_acts(layout: Layout, whole: Path, tmp_path: Path) -> None:
    """Without the defence of the sites the proxies are others."""
    run(config_of(layout, **{"defence.rule": "none"}), out=tmp_path / "run")
    with pytest.raises(AssertionError):
        assert_equal_runs(whole, tmp_path / "run")


def test_the_command_is_that_of_an_ordinary_run(
    layout: Layout, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--out, --workers, --set and --json act, and `report`, `table` and `load` read the run."""
    out = tmp_path / "run"
    words = ["run", "--federation", str(layout.folder), "--out", str(out), "--workers", "2"]
    assert main([*words, "--set", "rounds=2", "--set", "seed=3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["out"] == str(out)
    assert [about["name"] for about in document["clients"]] == ["north", "south", "east"]
    (loaded,) = proxyfl.load(out)
    assert loaded.finished
    assert loaded.rows[-1]["private_own_intervals"]["accuracy"] is not None
    assert main(["report", str(out), "--out", str(tmp_path / "page.html")]) == 0
    assert main(["table", str(out)]) == 0
    assert "proxyfl" in capsys.readouterr().out


def test_the_config_is_printed_and_runs_by_itself(
    layout: Layout, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--print-config gives a file that describes the same run."""
    assert main(["run", "--federation", str(layout.folder), "--print-config"]) == 0
    file = tmp_path / "study.toml"
    file.write_text(capsys.readouterr().out)
    assert main(["run", str(file), "--print-config"]) == 0
    assert to_toml(federation.config_of(layout.folder), complete=True) == capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["demo.toml", "--federation", "study"], "takes every setting from study"),
        (["--federation", "study", "--data-dir", "data"], "Leave it out"),
        (["--trust", "mine"], "is for --federation"),
        (["--federation", "study", "--set", "rounds=-1"], "rounds"),
    ],
)
def test_options_that_cannot_act_are_refused(
    words: list[str],
    said: str,
    layout: Layout,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is ignored in silence."""
    monkeypatch.chdir(layout.folder.parent)
    given = [layout.folder.name if word == "study" else word for word in words]
    assert main(["run", *given]) == 2
    assert said.replace("study", layout.folder.name) in " ".join(capsys.readouterr().err.split())


def test_a_missing_site_is_named(layout: Layout, tmp_path: Path) -> None:
    """A simulation needs the settings of all members."""
    (tmp_path / "manifest.toml").write_text((layout.folder / "manifest.toml").read_text())
    with pytest.raises(ConfigError, match=r"No site\.toml for north, south, east"):
        federation.config_of(tmp_path)


def test_a_defence_needs_the_rules_of_sites() -> None:
    """A defence that would do nothing is refused."""
    with pytest.raises(ConfigError, match=r'exchange\.rules = "sites"'):
        Config(defence=Defence("median"))
