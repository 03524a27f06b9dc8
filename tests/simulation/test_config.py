"""Settings: from TOML and --set to one tree, and back; what is wrong is named."""

import dataclasses
import tomllib
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proxyfl import settings as shared
from proxyfl._settings import describe
from proxyfl.errors import ConfigError, TopologyError
from proxyfl.federation import trainers
from proxyfl.node.members.manifest import Manifest
from proxyfl.node.members.site import Site
from proxyfl.privacy.accounting import epsilon_of
from proxyfl.privacy.guarantee import Unit
from proxyfl.simulation import prepare as preparation
from proxyfl.simulation.config import (
    Config,
    Data,
    Exchange,
    Learning,
    Models,
    Optimizer,
    Partition,
    Privacy,
    from_tree,
    keys,
    load,
    to_toml,
)

OTHER = {
    "seed": "7",
    "methods": "fml,cwt",
    "rounds": "3",
    "measure": "macro_accuracy",
    "evaluate_every": "2",
    "device": "meta",
    "threads": "2",
    "data.source": "mnist",
    "data.directory": "some/where",
    "data.label": "diagnosis",
    "data.classes": "well,sick",
    "data.site": "ward",
    "data.test_fraction": "0.3",
    "data.download": "false",
    "partition.kind": "iid",
    "partition.clients": "2",
    "partition.classes": "3",
    "partition.examples": "10,20",
    "partition.p_major": "0.5",
    "partition.concentration": "2",
    "models.private": "mlp,cnn1",
    "models.proxy": "mlp",
    "models.residual": "false",
    "models.single": "private",
    "models.proxy_seed": "5",
    "learning.alpha": "0.1",
    "learning.beta": "0.2",
    "learning.teacher": "current",
    "learning.batch_size": "[5, 6]",
    "learning.steps_per_round": "4",
    "learning.weight": "0.5",
    "learning.choose_for": "own",
    "privacy.enabled": "false",
    "privacy.noise_multiplier": "1.5,2",
    "privacy.clip_norm": "0.7",
    "privacy.normalize": "true",
    "privacy.delta": "1e-6",
    "privacy.examples": "1000",
    "privacy.budget": "3,4.5",
    "privacy.accountant": "rdp",
    "privacy.unit": "group",
    "privacy.max_physical_batch_size": "16",
    "privacy.account": "some/accounts",
    "precision": "bfloat16",
    "learning.balance": "prior",
    "learning.prevalence": "0.25,0.75",
    "learning.proxy_balance": "weights",
    "data.schema": "schema.toml",
    "data.query": "select * from patients",
    "data.test": "tests/*.csv",
    "data.separator": "semicolon",
    "data.decimal": "comma",
    "data.encoding": "latin-1",
    "data.faults": "skip",
    "data.trust": "mine,yours",
    "checkpoint_every": "7",
    "membership.absence": "0.1",
    "membership.schedule": "[{client = 1, joins = 2, leaves = 9}, {client = 0, away = [3, 4]}]",
    "exchange.topology": "ring",
    "exchange.self_weight": "none",
    "exchange.degree": "3",
    "exchange.timeout": "5",
    "exchange.settle": "2",
    "exchange.rules": "sites",
    "exchange.colluders": "3",
    "exchange.quorum": "7",
    "exchange.kinds": "urban,rural",
    "data.synthetic.sites": "9",
    "data.synthetic.examples": "77",
    "data.synthetic.unequal": "0.5",
    "data.synthetic.prevalence": "0.1",
    "data.synthetic.signal": "0.7",
    "data.synthetic.columns": "6",
    "data.synthetic.binary": "0.2",
    "data.synthetic.relevant": "0.3",
    "data.synthetic.heterogeneity": "0.4",
    "data.synthetic.shift": "0.6",
    "data.synthetic.kinds": "2",
    "data.synthetic.likeness": "0.9",
    "data.synthetic.tests": "55",
    **{
        f"{which}_optimizer.{name}": value
        for which in ("private", "proxy")
        for name, value in {"learning_rate": "0.25", "weight_decay": "0.5"}.items()
    },
}


def value_of(config: Config, key: str):
    if key in config.each:
        return config.each[key]
    for part in key.split("."):
        config = getattr(config, part)
    return config


def test_no_setting_is_forgotten() -> None:
    """Every dotted key is changed by the table above, but for those of the optimizers that go
    together."""
    optimizers = {
        f"{which}_optimizer.{name}"
        for which in ("private", "proxy")
        for name in ("name", "momentum")
    }
    # which need normalize, a delta, groups, an account, a budget, rounds that settle, and the rules
    # of sites
    together = {
        "privacy.normalize_gamma",
        "privacy.sampling_rate",
        "privacy.max_per_group",
        "privacy.population",
        "privacy.budget_all_others",
        "exchange.average",
        "defence.rule",
        "defence.radius",
    }
    assert set(keys()) - optimizers - together == set(OTHER)


def test_settings_that_go_together_round_trip() -> None:
    """The sampling rate, which needs a delta, the most records of a group, which needs groups, a
    population, which needs an account, and averaging, which needs rounds that settle, survive being
    written and read."""
    config = load(
        None,
        [
            "privacy.sampling_rate=0.1",
            "privacy.delta=1e-4",
            "privacy.unit=group",
            "privacy.max_per_group=3",
            "privacy.account=accounts",
            "privacy.budget=1",
            "privacy.budget_all_others=9",
            "privacy.population=cardiology + stroke",
            "exchange.settle=auto",
            "exchange.average=0.5",
        ],
    )
    assert value_of(config, "privacy.sampling_rate") == 0.1
    assert value_of(config, "privacy.max_per_group") == 3
    assert value_of(config, "privacy.population") == "cardiology + stroke"
    assert value_of(config, "exchange.average") == 0.5
    assert from_tree(tomllib.loads(to_toml(config))) == config


@pytest.mark.parametrize("which", ["private", "proxy"])
def test_an_optimizer_and_its_momentum_round_trip(which: str) -> None:
    """The name and the momentum of an optimizer, which go together, survive being written and
    read."""
    config = load(None, [f"{which}_optimizer.name=sgd", f"{which}_optimizer.momentum=0.9"])
    assert value_of(config, f"{which}_optimizer.momentum") == 0.9
    assert from_tree(tomllib.loads(to_toml(config))) == config


@pytest.mark.parametrize("key", OTHER)
def test_every_key_round_trips(key: str, tmp_path: Path) -> None:
    """Set on the command line, each key changes just itself, and survives being written and
    read."""
    config = load(None, [f"{key}={OTHER[key]}"])
    assert value_of(config, key) != value_of(Config(), key)
    others = [k for k in keys() if k != key]
    assert all(value_of(config, k) == value_of(Config(), k) for k in others)
    (tmp_path / "c.toml").write_text(to_toml(config), encoding="utf-8")
    assert load(tmp_path / "c.toml") == config


def test_all_together_round_trip(tmp_path: Path) -> None:
    """All changed at once, through a file; and the defaults."""
    config = load(None, [f"{key}={value}" for key, value in OTHER.items()])
    for some in (config, Config()):
        (tmp_path / "c.toml").write_text(to_toml(some), encoding="utf-8")
        assert load(tmp_path / "c.toml") == some


@settings(max_examples=60)
@given(text=st.text(max_size=20), number=st.floats(1e-300, 1e300))
def test_any_text_and_number_round_trips(text: str, number: float) -> None:
    """Quotes, backslashes, line breaks and control characters in a text, and every positive float,
    come back."""
    config = Config(data=Data(label=text), exchange=Exchange(timeout=number))
    assert from_tree(tomllib.loads(to_toml(config))) == config


def test_nothing_as_a_value(tmp_path: Path) -> None:
    """A setting whose default is a number can be set to nothing, and stays nothing when read
    back."""
    config = Config(exchange=Exchange(topology="complete", self_weight=None))
    assert from_tree({"exchange": {"topology": "complete", "self_weight": "none"}}) == config
    (tmp_path / "c.toml").write_text(to_toml(config), encoding="utf-8")
    assert load(tmp_path / "c.toml").exchange.self_weight is None


def test_what_is_not_mentioned_keeps_its_default() -> None:
    """One key of an optimizer changes that key: the others stay those of this optimizer, not of
    any."""
    config = from_tree({"proxy_optimizer": {"weight_decay": 0}})
    assert config.proxy_optimizer == dataclasses.replace(Config().proxy_optimizer, weight_decay=0.0)
    assert config.proxy_optimizer.learning_rate == 0.1
    assert from_tree({}) == Config()


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("privacy.noise_multiplier=2", "privacy.noise_multiplier", 2.0),
        (" rounds = 7 ", "rounds", 7),
        ("methods=alone", "methods", ("alone",)),
        ("methods=alone,fml", "methods", ("alone", "fml")),
        ('methods=["alone", "fml"]', "methods", ("alone", "fml")),
        ("models.private=mlp, cnn1", "models.private", ("mlp", "cnn1")),
        ("models.private=my.module:net", "models.private", "my.module:net"),
        ("data.source=a=b.csv", "data.source", "a=b.csv"),
        ('data.label="1"', "data.label", "1"),
        ("models.residual=false", "models.residual", False),
        ("privacy.delta=0.1,0.2", "privacy.delta", (0.1, 0.2)),
    ],
)
def test_forms_of_set(text: str, key: str, expected) -> None:
    """Numbers, words, lists with and without brackets, blanks, and an equals sign in the value."""
    assert value_of(load(None, [text]), key) == expected


def test_set_goes_over_the_file(tmp_path: Path) -> None:
    """--set changes what the file says, and the last one counts."""
    (tmp_path / "c.toml").write_text("rounds = 3\n[privacy]\ndelta = 0.1\n")
    config = load(tmp_path / "c.toml", ["rounds=4", "rounds=5", "privacy.clip_norm=2"])
    assert (config.rounds, config.privacy.delta, config.privacy.clip_norm) == (5, 0.1, 2.0)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "round=3",
            r"Unknown key 'round'. Did you mean 'rounds'\? Known: seed, methods, rounds,.*exchange",
        ),
        (
            "privacy.noise=3",
            r"Unknown key 'noise' in \[privacy\]. .*Known: enabled, noise_multiplier, clip_norm",
        ),
        ("zzz=3", r"Unknown key 'zzz'. Known: seed"),
        ("privcy.delta=0.1", r"Unknown key 'privcy'. Did you mean 'privacy'\?"),
        ("rounds.more=3", "Expected .*rounds"),
        ("privacy=3", "Expected a table for 'privacy', got 3"),
        ("rounds", r"Expected --set key=value, got 'rounds'. For example --set privacy"),
        ("rounds=2.5", "Expected a whole number for rounds, got 2.5"),
        ("rounds=true", "Expected a whole number for rounds, got True"),
        ("rounds=ten", "Expected a whole number for rounds, got 'ten'"),
        ("rounds=0", "rounds >= 1, got rounds=0"),
        ("seed=-1", "seed >= 0, got seed=-1"),
        ("learning.alpha=much", "Expected a number for learning.alpha, got 'much'"),
        ("learning.alpha=1.1", "0 <= learning.alpha <= 1, got learning.alpha=1.1"),
        ("learning.alpha=nan", "finite number for learning.alpha"),
        ("learning.beta=-0.1", "0 <= learning.beta <= 1, got learning.beta=-0.1"),
        ("learning.teacher=future", "Unknown learning.teacher 'future'. Known: current, received"),
        ("learning.batch_size=5,0", "learning.batch_size >= 1, got learning.batch_size=0"),
        ("learning.batch_size=5,x", "Expected a whole number for learning.batch_size, got 'x'"),
        ("learning.steps_per_round=0", "learning.steps_per_round >= 1"),
        ("privacy.delta=1", "0 < privacy.delta < 1, got privacy.delta=1"),
        ("privacy.delta=0", "0 < privacy.delta < 1"),
        ("privacy.noise_multiplier=0", "0 < privacy.noise_multiplier"),
        ("privacy.noise_multiplier=1,-1", "got privacy.noise_multiplier=-1"),
        ("privacy.clip_norm=inf", "finite number for privacy.clip_norm"),
        ("privacy.enabled=1", "Expected true or false for privacy.enabled, got 1"),
        ("partition.kind=random", "Unknown partition.kind 'random'. Known: majority"),
        ("partition.clients=0", "partition.clients >= 1"),
        ("partition.examples=0", "partition.examples >= 1"),
        ("partition.p_major=80", "0 <= partition.p_major <= 1, got partition.p_major=80"),
        ("partition.concentration=0", "0 < partition.concentration"),
        ("data.test_fraction=1", "0 < data.test_fraction < 1"),
        ("models.single=both", "Unknown models.single 'both'. Known: private, proxy"),
        ("models.proxy=mlp,cnn1", r"Expected a text for models.proxy, got \['mlp', 'cnn1'\]"),
        ("exchange.self_weight=1", r"In \[exchange\]: Expected 0 <= self_weight < 1"),
        ("exchange.degree=0", r"In \[exchange\]: Expected a whole number degree >= 1"),
        ("exchange.timeout=0", "0 < exchange.timeout"),
        (
            "proxy_optimizer.name=lbfgs",
            r"In \[proxy_optimizer\]: Unknown optimizer name 'lbfgs'. Known: adam, sgd",
        ),
        (
            "private_optimizer.learning_rate=0",
            r"In \[private_optimizer\]: Expected 0 < learning_rate <= 10000.0, got",
        ),
        ("private_optimizer.momentum=0.5", "momentum=0.5 is for sgd"),
        ("methods=[]", "at least one method"),
        ("methods=fml,fml", "each method once in methods, got fml more than once"),
        ("threads=0", "threads >= 1"),
        ("threads=1000000", "threads <= 1024, got threads=1000000"),
        ("evaluate_every=0", "evaluate_every >= 1"),
    ],
)
def test_wrong_settings(override: str, message: str) -> None:
    """Each is named with its value, what was expected and, where it helps, what is known."""
    with pytest.raises(ConfigError, match=message):
        load(None, [override])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"rounds = 3 4\n", "is not valid TOML: .*line 1"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"rounds = 1\nrounds = 2\n", "is not valid TOML"),
    ],
)
def test_a_broken_file(content: bytes, message: str, tmp_path: Path) -> None:
    """A file that is no TOML is named, with the place."""
    (tmp_path / "broken.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"broken.toml {message}"):
        load(tmp_path / "broken.toml")


def test_a_missing_file(tmp_path: Path) -> None:
    """A file that is not there, or is a folder, is named with the reason."""
    with pytest.raises(
        ConfigError, match=r"No config file .*none\.toml \(looked from .*\)\. No TOML file is there"
    ):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="got the folder"):
        load(tmp_path)


def test_a_table_where_a_value_belongs() -> None:
    """A table under a key that holds a value is an error, and so is a value under a table's
    name."""
    with pytest.raises(ConfigError, match="Expected a whole number for rounds"):
        from_tree({"rounds": {"a": 1}})
    with pytest.raises(ConfigError, match=r"Expected a table for 'data', got \[1\]"):
        from_tree({"data": [1]})


def test_per_client_values() -> None:
    """One value serves all; a list serves each his own, and must have one for each."""
    same = from_tree({"learning": {"batch_size": 3}})
    assert [same.of_client(i, 2).learning.batch_size for i in range(2)] == [3, 3]
    own = from_tree({"learning": {"batch_size": [3, 4]}, "privacy": {"budget": [1, 2.5]}})
    assert [own.of_client(i, 2).learning.batch_size for i in range(2)] == [3, 4]
    assert own.of_client(1, 2).privacy.budget == 2.5
    with pytest.raises(
        ConfigError,
        match=r"one value or 3 values \(one per client\) for learning.batch_size, got 2",
    ):
        own.of_client(0, 3)


def test_lists_that_cannot_be() -> None:
    """Every value of a list is checked as a single one is; lists of unequal length, empty ones, and
    lists where all clients share a value are refused at once."""
    for tree, words in (
        ({"learning": {"batch_size": [3, 0]}}, "Expected a whole number learning.batch_size >= 1"),
        ({"learning": {"batch_size": [3, "a"]}}, "Expected a whole number for learning.batch_size"),
        ({"privacy": {"budget": [1, 2], "delta": [0.1] * 3}}, "as many values as there are"),
        ({"privacy": {"budget": []}}, "one value for each client in privacy.budget, got none"),
        ({"exchange": {"timeout": [1, 2]}}, "Expected a number for exchange.timeout"),
        ({"privacy": {"sampling_rate": [0.1, 0.2]}}, "privacy.delta must be set"),
    ):
        with pytest.raises(ConfigError, match=words):
            from_tree(tree)
    with pytest.raises(ConfigError, match=r"finite number for privacy\.clip_norm"):
        Privacy(clip_norm=(1.0, 2.0))  # type: ignore[arg-type]


def test_parts_can_be_made_in_python() -> None:
    """The dataclasses check themselves, so a config made in Python is as safe as one from a
    file."""
    for wrong in (
        lambda: Learning(beta=2),
        lambda: Partition(clients=0),
        lambda: Privacy(delta=1.0),
        lambda: Optimizer(learning_rate=-1),
        lambda: Models(single="all"),
        lambda: Config(rounds=0),
    ):
        with pytest.raises(ConfigError):
            wrong()


def test_names_agree_with_their_homes() -> None:
    """The names that settings take are those that training and accounting know."""
    model = torch.nn.Linear(1, 1)
    made = {
        type(trainers.optimizer_over(Optimizer(name), model)).__name__.lower()
        for name in shared.OPTIMIZERS
    }
    assert made == set(shared.OPTIMIZERS)
    for accountant in shared.ACCOUNTANTS:
        assert epsilon_of([], delta=1e-5, accountant=accountant) == 0
    assert tuple(Unit) == shared.UNITS


def test_every_setting_is_documented() -> None:
    """Each setting has a sentence of its own below it, which docs/reference/settings.md shows."""
    for kind in (Config, Site, Manifest):
        undocumented = [setting.key for setting in describe(kind) if not setting.text]
        assert undocumented in ([], ["members"])


def test_a_file_with_an_error_is_named(tmp_path: Path) -> None:
    """What is wrong in a file names the file; what is wrong in --set does not."""
    path = tmp_path / "c.toml"
    path.write_text("[privacy]\nnoise = 1\n")
    with pytest.raises(ConfigError, match=r"c.toml: Unknown key 'noise' in \[privacy\]"):
        load(path)
    path.write_text("rounds = 3\n")
    with pytest.raises(ConfigError, match=r"^Expected 0 < privacy.delta"):
        load(path, ["privacy.delta=0"])


def test_the_defaults_are_the_demos() -> None:
    """The demo has a guarantee that holds end to end and a comparison with ``alone``."""
    config = Config()
    assert config.learning.beta == 0
    assert "alone" in config.methods
    assert (config.models.proxy, config.models.residual, config.exchange.self_weight) == (
        "linear",
        True,
        0.5,
    )


@pytest.mark.parametrize("topology", ["cycle", "exponential"])
def test_a_default_is_no_mistake(topology: str) -> None:
    """A topology that takes no self weight is given none by default; one that was asked for is
    refused."""
    made = from_tree({"exchange": {"topology": topology}})
    preparation.topology_of(made)
    asked = from_tree({"exchange": {"topology": topology, "self_weight": 0.3}})
    if topology == "exponential":
        preparation.topology_of(asked)
        return
    with pytest.raises(TopologyError, match=r"'cycle' takes no self_weight. Leave it out"):
        preparation.topology_of(asked)
