"""From a config to the objects of a run: data dealt out, models built, ledgers opened.

What a client gets depends on the config and its id alone, so any process can build any subset of
the clients."""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from proxyfl import data, models
from proxyfl.data import Dataset, partition
from proxyfl.errors import ConfigError, DataError
from proxyfl.federation.learners import Learner, Mutual, Single, Trainer, optimizer
from proxyfl.federation.methods import Method
from proxyfl.federation.metrics import Score, evaluate
from proxyfl.federation.precision import computing_in
from proxyfl.federation.rounds import Client
from proxyfl.federation.trainers import PlainSGD
from proxyfl.privacy.dpsgd import DPSGD
from proxyfl.privacy.guarantee import Kind, kind_of
from proxyfl.privacy.ledger import Budget, Ledger
from proxyfl.seeds import Seeded, derive, numpy_stream
from proxyfl.simulation.config import Config, Optimizer, per_client

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Site:
    """One client's data: its name, its examples, and which rows of the training set they are."""

    name: str
    x: Tensor
    y: Tensor
    rows: Indices


def load_data(config: Config) -> Dataset:
    """The dataset that the config names."""
    settings = config.data
    return data.load(
        settings.source,
        directory=settings.directory,
        label=settings.label,
        site=settings.site,
        test_fraction=settings.test_fraction,
        seed=config.seed,
        download=settings.download,
    )


def deal(config: Config, dataset: Dataset, hosted: Collection[int] | None = None) -> list[Site]:
    """Deal the training examples out to the clients. With ``hosted``, only those clients' examples
    are copied."""
    settings, labels = config.partition, dataset.train_y.numpy()
    generator = numpy_stream(config.seed, "partition")
    examples = _common_size(settings.examples, settings.clients)
    if examples is not None and settings.kind in ("dirichlet", "site"):
        raise ConfigError(
            f'partition.examples={examples} does not go with partition.kind="{settings.kind}", '
            f"which deals out all "
            'examples. Leave it out, or use "majority" or "iid".'
        )
    deals: dict[str, Callable[[], list[Indices]]] = {
        "majority": lambda: partition.majority(
            labels,
            clients=settings.clients,
            examples=examples,
            p_major=settings.p_major,
            generator=generator,
        ),
        "iid": lambda: partition.iid(
            labels, clients=settings.clients, examples=examples, generator=generator
        ),
        "dirichlet": lambda: partition.dirichlet(
            labels,
            clients=settings.clients,
            concentration=settings.concentration,
            generator=generator,
        ),
        "site": lambda: _by_site(dataset),
    }
    parts = deals[settings.kind]()
    if isinstance(settings.examples, tuple):  # a shuffled prefix keeps the mixture of classes
        parts = [
            np.sort(generator.permutation(p)[:n])
            for p, n in zip(parts, settings.examples, strict=True)
        ]
    by_site = settings.kind == "site"
    names = [dataset.site_names[i] if by_site else f"client-{i}" for i in range(len(parts))]
    held = [rows if hosted is None or i in hosted else rows[:0] for i, rows in enumerate(parts)]
    examples_of = [(dataset.train_x[rows], dataset.train_y[rows]) for rows in held]
    return [
        Site(name, x, y, rows) for name, (x, y), rows in zip(names, examples_of, parts, strict=True)
    ]


def pooled(sites: Sequence[Site]) -> Site:
    """All clients' data in one place, as ``joint`` has it."""
    rows = np.concatenate([site.rows for site in sites])
    return Site("joint", torch.cat([s.x for s in sites]), torch.cat([s.y for s in sites]), rows)


def clients_for(
    config: Config,
    method: Method,
    dataset: Dataset,
    sites: Sequence[Site],
    hosted: Iterable[int],
    *,
    ledgers: Path | None = None,
) -> list[Client]:
    """The clients of one method that this process hosts. Ledgers are opened, or continued, in
    ``ledgers``."""
    builder = _Builder(config, method, dataset, len(sites))
    return [builder.client(i, sites[i], ledgers) for i in hosted]


def evaluator(config: Config, dataset: Dataset) -> Callable[[nn.Module], Score]:
    """Scores a model on the common test set."""
    x, y = dataset.test_x.to(config.device), dataset.test_y.to(config.device)
    return partial(evaluate, x=x, y=y)


def about_model(
    config: Config, method: Method, dataset: Dataset, clients: int, client: Client, role: str
) -> dict[str, str]:
    """What the file of a model of one of ``clients`` clients says about it, enough to build the
    model again."""
    builder = _Builder(config, method, dataset, clients)
    mutual = method.learner == "mutual"
    private = role == "private" if mutual else builder.single_is_private
    about = {
        "role": role,
        "client": client.name,
        "architecture": builder.private_spec(client.id) if private else config.models.proxy,
        "shape": json.dumps(dataset.shape),
        "classes": str(dataset.classes),
        "class_names": json.dumps(dataset.class_names),
        "epsilon": _release(method, client, role),
    }
    return about | (
        {"residual_on": config.models.proxy}
        if mutual and private and config.models.residual
        else {}
    )


def _release(method: Method, client: Client, role: str) -> str:
    """Whether the model left the house, and under which guarantee it was trained."""
    if role != "proxy":
        return "never released"
    word = "never released; trained" if method.exchange == "none" else "released"
    return f"{word} under: {client.ledger.epsilon()}"


@dataclass(frozen=True)
class _Builder:
    """Builds the clients of one method."""

    config: Config
    method: Method
    dataset: Dataset
    clients: int

    def client(self, i: int, site: Site, ledgers: Path | None) -> Client:
        config = self.config
        x, y = site.x.to(config.device), site.y.to(config.device)
        batch_size = self._batch_size(i, len(x))
        ledger = self._ledger(i, site, ledgers)
        trainer_for = partial(self._trainer, i, x, y, batch_size, ledger)
        steps = self._setting("learning.steps_per_round", config.learning.steps_per_round, i)
        return Client(
            id=i,
            name=site.name,
            learner=self._learner(i, trainer_for),
            ledger=ledger,
            steps=steps or max(1, len(x) // batch_size),
            global_seed=lambda round: derive(config.seed, "global", i, round),
        )

    def _setting(self, name: str, setting: Any, i: int) -> Any:
        # A pooled client is nobody in particular: it takes a per-client setting's first value.
        if self.method.pooled and isinstance(setting, tuple):
            return setting[0]
        return per_client(name, setting, i, self.clients)

    def _batch_size(self, i: int, examples: int) -> int:
        batch_size: int = self._setting("learning.batch_size", self.config.learning.batch_size, i)
        if batch_size > examples:
            raise ConfigError(
                f"learning.batch_size={batch_size} is larger than the {examples} examples of "
                f"client {i}. "
                f"Set it to {examples} or less, or give the clients more data."
            )
        return batch_size

    @property
    def kind(self) -> Kind:
        """What the method's epsilon is a statement about."""
        taught = self.method.learner == "mutual"
        return kind_of(
            dp=self.method.private and self.config.privacy.enabled,
            teacher_weight=self.config.learning.beta if taught else 0.0,
        )

    def _ledger(self, i: int, site: Site, folder: Path | None) -> Ledger:
        delta = self._setting("privacy.delta", self.config.privacy.delta, i) or 1 / max(
            2, len(site.y)
        )
        path = (
            folder / f"{i:03d}.jsonl" if folder is not None and self.kind is not Kind.NONE else None
        )
        promise: dict[str, Any] = {"delta": delta, "kind": self.kind, "simulated": True}
        budget = self._budget(i)
        if path is None:
            return Ledger(site.name, budget=budget, **promise)
        return Ledger.at(path, site.name, budget=budget, **promise)

    def _budget(self, i: int) -> Budget | None:
        limit: float | None = self._setting("privacy.budget", self.config.privacy.budget, i)
        return None if limit is None else Budget(limit, self.config.privacy.accountant)

    def _trainer(
        self,
        i: int,
        x: Tensor,
        y: Tensor,
        batch_size: int,
        ledger: Ledger,
        model: nn.Module,
        settings: Optimizer,
        beta: float,
    ) -> Trainer:
        config, seed = self.config, self.config.seed
        common: dict[str, Any] = {
            "classes": self.dataset.classes,
            "batch_size": batch_size,
            "teacher_weight": beta,
            "ledger": ledger,
            "batches": Seeded(seed, "batches", i),
        }
        if ledger.kind is Kind.NONE:
            return PlainSGD(self._without_dp(model), _optimizer(settings, model), x, y, **common)
        return DPSGD(
            model,
            _optimizer(settings, model),
            x,
            y,
            **common,
            clip_norm=self._setting("privacy.clip_norm", config.privacy.clip_norm, i),
            noise_multiplier=self._setting(
                "privacy.noise_multiplier", config.privacy.noise_multiplier, i
            ),
            noise=Seeded(seed, "noise", i),
        )

    def _learner(
        self, i: int, trainer_for: Callable[[nn.Module, Optimizer, float], Trainer]
    ) -> Learner:
        config, learning = self.config, self.config.learning
        if self.method.learner == "single":
            model, settings = self._single_model(i)
            own = self.method.keeps == "private"
            return Single(
                model, trainer_for(model, settings, 0.0), role="private" if own else "proxy"
            )
        private, proxy = self._without_dp(self.private_model(i)), self.proxy_model()
        return Mutual(
            private,
            _optimizer(config.private_optimizer, private),
            proxy,
            trainer_for(proxy, config.proxy_optimizer, learning.beta),
            classes=self.dataset.classes,
            alpha=learning.alpha,
            teacher="received" if learning.teacher == "received" else "current",
            residual=config.models.residual,
        )

    def _single_model(self, i: int) -> tuple[nn.Module, Optimizer]:
        if not self.single_is_private:
            return self.proxy_model(), self.config.proxy_optimizer
        common = (
            self.method.exchange != "none"
        )  # models that are to be averaged start from the same point
        return self.private_model(i, common=common), self.config.private_optimizer

    @property
    def single_is_private(self) -> bool:
        """Whether a single model is built like the private models: ``alone`` always, others by
        ``models.single``."""
        override = None if self.method.keeps == "private" else self.config.models.single
        return (override or self.method.architecture) == "private"

    def private_spec(self, i: int) -> str:
        """The architecture of client i's private model."""
        spec: str = self._setting("models.private", self.config.models.private, i)
        return spec

    def private_model(self, i: int, *, common: bool = False) -> nn.Module:
        return self._model(
            self.private_spec(i), derive(self.config.seed, "init", *((0,) if common else (1, i)))
        )

    def proxy_model(self) -> nn.Module:
        # One seed for all: the clients agree on the initial proxy, or averages would mean little.
        return self._model(self.config.models.proxy, derive(self.config.seed, "init", 0))

    def _model(self, spec: str, seed: int) -> nn.Module:
        model = models.build(
            spec, shape=self.dataset.shape, classes=self.dataset.classes, seed=seed
        )
        return model.to(self.config.device)

    def _without_dp(self, model: nn.Module) -> nn.Module:
        """``model`` laid out for plain training: channels last, which saves an eighth to a third of
        a step's time.

        Not for DP-SGD, whose flat buffer of gradients has the default layout, and whose clipping is
        in float32."""
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # untyped in torch
        return computing_in(self.config.precision, model)


def _optimizer(settings: Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    return optimizer(
        settings.name,
        model,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        momentum=settings.momentum,
    )


def _common_size(examples: int | tuple[int, ...] | None, clients: int) -> int | None:
    """The number that is dealt to all, before those who are to have fewer give some back."""
    if not isinstance(examples, tuple):
        return examples
    if len(examples) != clients:
        raise ConfigError(
            f"Expected one value or {clients} for partition.examples, got {len(examples)}."
        )
    return max(examples)


def _by_site(dataset: Dataset) -> list[Indices]:
    if dataset.site is None:
        raise DataError(
            'partition.kind="site" needs a site column; name it with data.site (tables and .npz '
            "files)."
        )
    return partition.by_site(dataset.site.numpy())
