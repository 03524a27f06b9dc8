"""A simulation and a real site refuse the same settings in the same words."""

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch

from proxyfl import _settings
from proxyfl.data import Dataset
from proxyfl.errors import ConfigError
from proxyfl.node import assembly
from proxyfl.node.members import manifest as manifests
from proxyfl.node.members.identity import Identity
from proxyfl.node.members.manifest import Input, Manifest, Proxy
from proxyfl.node.members.site import Site
from proxyfl.simulation.config import Config, from_tree
from proxyfl.simulation.prepare import prepare

BAD_LOCAL: dict[str, Any] = {
    "data.test_fraction": 0.0,
    "data.faults": "ignore",
    "learning.alpha": 1.5,
    "learning.beta": -0.1,
    "learning.teacher": "other",
    "learning.batch_size": 0,
    "learning.steps_per_round": 0,
    "learning.balance": "even",
    "private_optimizer.name": "lion",
    "private_optimizer.learning_rate": -0.1,
    "private_optimizer.momentum": 0.9,
    "proxy_optimizer.weight_decay": -1.0,
    "privacy.noise_multiplier": 0.0,
    "privacy.clip_norm": -1.0,
    "privacy.unit": "patient",
    "privacy.max_per_group": 2,
    "privacy.max_physical_batch_size": 0,
    "privacy.delta": 1.0,
    "privacy.sampling_rate": 1.5,
    "privacy.examples": 0,
    "privacy.budget": 0.0,
    "privacy.accountant": "moments",
    "privacy.population": "cardiology",
}
"""Keys that a run's file and site.toml share, each with a value that makes no sense."""

ELSEWHERE = {"threads": 0, "precision": "float16"}
"""Keys of a run that stand below ``resources`` in site.toml."""


def words_of(build: Callable[[], object]) -> str | None:
    """The words of a refusal, without the table that it stands in and the institution's name; None
    if nothing is refused."""
    try:
        build()
    except ConfigError as error:
        words = re.sub(r"^In \[\w+\]: ", "", str(error))
        return re.sub(r"client-0|north", "NAME", words)
    return None


def sentence(build: Callable[[], object]) -> str:
    """The words of a refusal, which must come."""
    words = words_of(build)
    assert words is not None, "nothing was refused"
    return words


def tree(settings: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        _settings.put(nested, key, value)
    return nested


@pytest.mark.parametrize("key", BAD_LOCAL)
def test_a_wrong_value_is_refused_in_the_same_words(key: str) -> None:
    """One check and one sentence for a run's file and for site.toml."""
    wrong = tree({"privacy.unit": "record", key: BAD_LOCAL[key]})
    simulated = sentence(lambda: from_tree(wrong))
    real = sentence(lambda: _settings.build(Site, {"name": "north", **wrong}))
    assert simulated == real


ODD = (-1, 0, 1.5, -0.5, math.nan, math.inf, True, "text", "", 3, 10**9)
"""Values of every type and sign: at least one of them makes no sense for any setting."""

ASIDE: dict[str, dict[str, Any]] = {
    "privacy.unit": {"privacy.unit": "record"},
    "privacy.budget_all_others": {"privacy.budget": 1.0},  # a site has a budget by default
    "defence.radius": {"exchange.rules": "sites"},  # as a site has
}
"""Key -> the settings without which the two sides differ in another setting, not in this one."""

LISTED = ("data.source", "data.test")
"""A run takes several of these, one for each client, and its sentence says so."""


def shared_keys(cls: type, above: str = "") -> dict[str, type]:
    """The settings of a file, by their keys."""
    leaves: dict[str, type] = {}
    for field in dataclasses.fields(cls):
        kind = get_type_hints(cls)[field.name]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            leaves |= shared_keys(kind, f"{above}{field.name}.")
        else:
            leaves[above + field.name] = kind
    return leaves


SHARED = sorted(shared_keys(Config).keys() & shared_keys(Site).keys())


@pytest.mark.parametrize("key", SHARED)
def test_every_shared_setting_has_one_check(key: str) -> None:
    """Whatever value stands for any setting that a run and a site share: both take it, or both
    refuse it in the same words."""
    refused = 0
    for value in ODD:
        around = {name: fixed for name, fixed in ASIDE.get(key, {}).items() if name != key}
        for_run = tree({"privacy.unit": "record", **around, key: value})
        for_site = {name: table for name, table in for_run.items() if name != "exchange"}
        words = []
        for build in (
            lambda made=for_run: from_tree(made),
            lambda made=for_site: _settings.build(Site, {"name": "north", **made}),
        ):
            words.append(words_of(build))
        if key in LISTED:
            words = [each and each.replace("a text or a list of texts", "a text") for each in words]
            if value == "":  # `preflight` and `run` ask a site for its data
                continue
        assert words[0] == words[1], value
        refused += words[0] is not None
    assert refused, "no value was refused"


@pytest.mark.parametrize("key", ELSEWHERE)
def test_resources_are_refused_in_the_same_words(key: str) -> None:
    """Threads and precision have one check, under two keys."""
    simulated = sentence(lambda: from_tree({key: ELSEWHERE[key]}))
    wrong = {"name": "north", "resources": {key: ELSEWHERE[key]}}
    assert simulated == sentence(lambda: _settings.build(Site, wrong))


@pytest.mark.parametrize(
    "end", [{"settle": 5}, {"settle": -1}, {"average": 0.5}, {"settle": 2, "average": 2.0}]
)
def test_an_end_that_cannot_be_is_refused_in_the_same_words(end: dict[str, Any]) -> None:
    """A run and a manifest of five rounds settle by the same rules."""
    simulated = sentence(lambda: from_tree({"rounds": 5, "exchange": end}))
    real = sentence(lambda: manifests.parse({"name": "f", "rounds": 5, **end}, source=""))
    assert simulated == real.removeprefix(": ")


UNFIT: dict[str, dict[str, Any]] = {
    "a batch larger than the data": {"learning.batch_size": 60},
    "a batch larger than the declared data": {"privacy.examples": 15},
    "an estimator that teaches": {"learning.beta": 0.5, "model": "logistic"},
    "persons that nobody names": {"privacy.unit": "group"},
    "a balance without public shares": {"balance": "weights"},
    "shares of other classes": {"prevalence": [0.2, 0.3, 0.5]},
    "shares that are too many": {"prevalence": [0.9, 0.9]},
}


@pytest.mark.parametrize("case", UNFIT)
def test_settings_that_do_not_fit_are_refused_in_the_same_words(case: str, tmp_path: Path) -> None:
    """What only shows with the data in hand is found by one assembly. A site clamps no batch."""
    settings = {"learning.batch_size": 20} | UNFIT[case]
    model = settings.pop("model", "mlp")
    shared = {name: settings.pop(name) for name in ("balance", "prevalence") if name in settings}
    x, y = torch.randn(40, 3), torch.arange(40) % 2
    dataset = Dataset("made up", x, y, x, y, 2, ("0", "1"))

    def simulated() -> None:
        run = {"methods": ["proxyfl"], "partition.kind": "iid", "partition.clients": 1}
        learning = {f"learning.{name}": value for name, value in shared.items()}
        prepare(
            from_tree(tree({**settings, **run, **learning, "models.private": model})),
            dataset=dataset,
        )

    def real() -> None:
        proxy = _settings.build(Proxy, shared)
        form = Input(dataset.shape, dataset.class_names)
        member = Identity.create(tmp_path, "north").card("127.0.0.1:7000")
        agreed = Manifest("f", input=form, proxy=proxy, members=(member,))
        own = {"name": "north", **tree({**settings, "model.architecture": model})}
        site = _settings.build(Site, own)
        assembly.client(agreed, site, dataset.train, ledger=None)

    assert sentence(simulated) == sentence(real)
