"""From a config to clients: the arguments with which each is assembled.

What a client gets depends on the config and its id alone, so any process can assemble any of them.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from torch import nn

from proxyfl import models
from proxyfl.data import Dataset
from proxyfl.data.examples import on_device
from proxyfl.errors import ConfigError
from proxyfl.federation import trainers
from proxyfl.federation.averaging import rounds_to_settle, tail_over
from proxyfl.federation.client import (
    DP,
    Client,
    Estimator,
    Part,
    assemble,
    seeded,
)
from proxyfl.federation.learners import Teacher
from proxyfl.federation.methods import Method
from proxyfl.federation.metrics import Judge
from proxyfl.losses import Balance, balance_for, class_shares
from proxyfl.models.estimators import is_estimator
from proxyfl.privacy.clipping.validation import checked_clipper
from proxyfl.privacy.guarantee import Unit
from proxyfl.privacy.ledger import Budget
from proxyfl.privacy.sampling import Sampling
from proxyfl.privacy.spending.account import Kept
from proxyfl.seeds import derive
from proxyfl.simulation.config import Config, Optimizer
from proxyfl.simulation.division import ClientData
from proxyfl.simulation.perclient import per_client


def evaluator(config: Config, dataset: Dataset, method: Method) -> Judge:
    """Judges models on the common test set, and where clients are sites on their own. A model for
    everybody has no site of its own."""
    of_sites = config.partition.kind == "site" and not method.pooled
    site = dataset.test_site if of_sites else None
    test = on_device(dataset.test, config.device)
    return Judge(test, config.measure, config.seed, site, config.device)


@dataclass(frozen=True)
class Assembly:
    """The clients of one method: their settings, each with its own value, and the clients."""

    config: Config
    method: Method
    dataset: Dataset
    clients: Sequence[ClientData]

    def client(self, i: int, ledgers: Path | None = None) -> Client:
        """Client ``i``, its ledger opened or continued in the folder ``ledgers``."""
        config, own = self.config, self.clients[i]
        private, proxy = self._models(i)
        teacher: Teacher = "current"
        if config.learning.teacher == "received":
            teacher = "received"
        tail = None
        if self.method.exchange != "none":
            tail = tail_over(config.exchange.average, self.training_rounds)
        return assemble(
            i,
            own.name,
            self.row,
            own.examples,
            classes=self.dataset.classes,
            batch_size=self.batch_size(i),
            dp=self.dp(i, ledgers),
            streams=seeded(config.seed, i),
            private=private,
            proxy=proxy,
            steps=self.steps(i),
            alpha=config.learning.alpha,
            beta=config.learning.beta,
            teacher=teacher,
            residual=config.models.residual,
            device=config.device,
            precision=config.precision,
            tail=tail,
        )

    @property
    def row(self) -> Method:
        """The method's row; without DP where the config switches it off."""
        if self.config.privacy.enabled:
            return self.method
        return replace(self.method, dp=False)

    @property
    def settling(self) -> int:
        """The number of last rounds in which proxies only mix."""
        if self.method.exchange == "none":
            return 0
        wanted = self.config.exchange.settle
        if wanted == "auto":
            return rounds_to_settle(len(self.clients), self.config.rounds)
        return int(wanted)

    @property
    def training_rounds(self) -> int:
        """The number of rounds in which proxies take steps."""
        return self.config.rounds - self.settling

    def batch_size(self, i: int) -> int:
        """The expected number of units (records or persons) in a batch of client ``i``."""
        batch_size: int = self._setting("learning.batch_size", i)
        dp = self.dp(i)
        counted = dp.units(self.clients[i].examples)
        units = dp.declared_examples or len(counted)
        if dp.sampling_rate is None and batch_size > units:
            raise ConfigError(
                f"learning.batch_size={batch_size} is larger than the {units} {dp.unit.plural} of "
                f"client {i}. Set it to {units} or less, or give the clients more data."
            )
        return batch_size

    def sampling(self, i: int) -> Sampling:
        """The sampling of client ``i``'s batches."""
        batch_size = self.batch_size(i)
        return self.dp(i).sampling(batch_size, self.clients[i].examples)

    def steps(self, i: int) -> int:
        """The number of steps of client ``i`` in a round: one pass over its data by default."""
        steps: int | None = self._setting("learning.steps_per_round", i)
        return steps or self.sampling(i).steps_per_pass

    def dp(self, i: int, ledgers: Path | None = None) -> DP:
        """The privacy settings of client ``i``."""
        settings = self.config.privacy
        limit: float | None = self._setting("privacy.budget", i)
        rate = None
        declared = None
        # Pooled data are nobody's own: their rate follows from their number, which no one declares.
        if not self.method.pooled:
            rate = self._setting("privacy.sampling_rate", i)
            declared = self._setting("privacy.examples", i)
        return DP(
            unit=Unit(settings.unit),
            max_per_group=settings.max_per_group,
            max_physical_batch_size=settings.max_physical_batch_size,
            sampling_rate=rate,
            declared_examples=declared,
            clip_norm=self._setting("privacy.clip_norm", i),
            noise_multiplier=self._setting("privacy.noise_multiplier", i),
            delta=self._setting("privacy.delta", i),
            budget=None if limit is None else Budget(limit, settings.accountant),
            ledger=None if ledgers is None else ledgers / f"{i:03d}.jsonl",
            account=self._kept(i, ledgers),
        )

    def _kept(self, i: int, ledgers: Path | None) -> Kept | None:
        """The place of client ``i``'s spending in the account, if there is one."""
        folder = self.config.privacy.account
        ids = self.clients[i].ids
        if folder is None or ids is None:
            return None
        study = "a rehearsal"
        if ledgers is not None:  # RUN/ledger/METHOD
            study = f"run {ledgers.parents[1].name}, {ledgers.name}"
        return Kept(Path(folder), ids, study)

    def check_models(self) -> None:
        """Build each architecture once and see that it can be trained as the method will."""
        first: dict[str, int] = {}
        for i in range(len(self.clients)):
            first.setdefault(self.private_spec(i), i)
        for i in first.values():
            private, proxy = self._models(i)
            for part in (private, proxy):
                if isinstance(part, Part):
                    part.optimizer.over(part.model)
            shared = proxy if proxy is not None else private
            if isinstance(shared, Part) and self.row.dp:
                checked_clipper(shared.model, self.dataset.shape)

    def about_model(self, client: Client, role: str) -> dict[str, str]:
        """The entries of a model's file about it, enough to build the model again."""
        mutual = self.method.learner == "mutual"
        private = role == "private" if mutual else self.single_is_private
        own = self.private_spec(client.id)
        about = {
            "role": role,
            "client": client.name,
            "architecture": own if private else self.config.models.proxy,
            "shape": json.dumps(self.dataset.shape),
            "classes": str(self.dataset.classes),
            "class_names": json.dumps(self.dataset.class_names),
            "epsilon": _release(self.method, client, role),
        }
        if self.dataset.feature_names:
            about["feature_names"] = json.dumps(self.dataset.feature_names)
            others = [self.config.data.label]
            if self.config.data.site:
                others.append(self.config.data.site)
            about["not_features"] = json.dumps(others)
        if self.dataset.schema:
            about["schema"] = self.dataset.schema
        corrects = is_estimator(own) or self.config.models.residual
        if mutual and private and corrects:
            about["residual_on"] = self.config.models.proxy
        return about

    @property
    def single_is_private(self) -> bool:
        """True if a single model is built like the private models: ``alone`` always, others by
        ``models.single``."""
        wanted = self.config.models.single
        if self.method.keeps == "private" or wanted is None:
            wanted = self.method.architecture
        return wanted == "private"

    def private_spec(self, i: int) -> str:
        """The architecture of client ``i``'s private model."""
        spec: str = self._setting("models.private", i)
        return spec

    def _setting(self, name: str, i: int) -> Any:
        """Client ``i``'s value of the setting ``name``."""
        setting = attrgetter(name)(self.config)
        # A pooled client is nobody in particular: it takes a per-client setting's first value.
        if self.method.pooled and isinstance(setting, tuple):
            return setting[0]
        return per_client(name, setting, i, len(self.clients))

    def _models(self, i: int) -> tuple[Part | Estimator | None, Part | None]:
        """The private model and the proxy; a single learner has but one of them."""
        fitted = is_estimator(self.private_spec(i))
        if self.method.learner == "mutual":
            proxy = self._balanced(i, self._proxy(), shared=True)
            if fitted:
                return self._estimator(i), proxy
            return self._balanced(i, self._private(i)), proxy
        if self.method.keeps == "private":
            if fitted:
                return self._estimator(i), None
            return self._balanced(i, self._single(i)), None
        return None, self._balanced(i, self._single(i), shared=True)

    def _balanced(self, i: int, part: Part, *, shared: bool = False) -> Part:
        """``part`` with the balance that the config asks for.

        Class counts of a client are private. A model that is trained with DP and shared takes
        publicly known shares instead."""
        way = self.config.learning.balance
        if way == "none":
            return part
        if shared and self.row.dp:
            balance = balance_for(way, self._public_shares(), public=True)
        else:
            balance = self._own_balance(i)
        return replace(part, balance=balance)

    def _own_balance(self, i: int) -> Balance:
        labels = self.clients[i].examples.labels
        shares = class_shares(labels, self.dataset.classes)
        return balance_for(self.config.learning.balance, shares, public=False)

    def _estimator(self, i: int) -> Estimator:
        if self.config.learning.beta and self.method.learner == "mutual":
            raise ConfigError(
                f"A private model that is fitted ({self.private_spec(i)}) teaches no proxy; got "
                f"learning.beta={self.config.learning.beta:g}. Set it to 0."
            )
        seed = derive(self.config.seed, "init", 1, i)
        return Estimator(self.private_spec(i), self._own_balance(i), seed)

    def _public_shares(self) -> Sequence[float]:
        shares = self.config.learning.prevalence or self.dataset.prevalence
        if not shares:
            raise ConfigError(
                f"learning.balance={self.config.learning.balance!r} needs publicly known class "
                "shares for a model that is shared under DP: a client's class counts are private. "
                "Give learning.prevalence, or label.prevalence in the schema."
            )
        if len(shares) != self.dataset.classes:
            raise ConfigError(
                f"Expected a share for each of {self.dataset.classes} classes in "
                f"learning.prevalence, got {len(shares)}."
            )
        return shares

    def _single(self, i: int) -> Part:
        if not self.single_is_private:
            return self._proxy()
        # Models that are to be averaged start from the same point.
        return self._private(i, common=self.method.exchange != "none")

    def _private(self, i: int, *, common: bool = False) -> Part:
        place = (0,) if common else (1, i)
        seed = derive(self.config.seed, "init", *place)
        model = self._model(self.private_spec(i), seed)
        return Part(model, _optimizer(self.config.private_optimizer))

    def _proxy(self) -> Part:
        # One seed for all: the clients agree on the initial proxy, or averages would mean little.
        seed = derive(self.config.seed, "init", 0)
        model = self._model(self.config.models.proxy, seed)
        learning = self.config.learning
        are_known = learning.prevalence or self.dataset.prevalence
        if learning.balance == "none" and are_known:
            models.set_prior(model, self._public_shares())
        return Part(model, _optimizer(self.config.proxy_optimizer))

    def _model(self, spec: str, seed: int) -> nn.Module:
        shape, classes = self.dataset.shape, self.dataset.classes
        return models.build(spec, shape=shape, classes=classes, seed=seed)


def _optimizer(settings: Optimizer) -> trainers.Optimizer:
    return trainers.Optimizer(**asdict(settings))


def _release(method: Method, client: Client, role: str) -> str:
    """Whether the model was released, and under which guarantee it was trained.

    What an exchange moves is released, whatever the institution calls it: the proxy, or the only
    model that there is."""
    shared = role == "proxy" or method.learner == "single"
    if not shared:
        return "never released"
    spent = (
        f"{client.ledger.epsilon()}; a simulation, whose noise can be recomputed"
    )
    if method.exchange != "none":
        return f"released under: {spent}"
    if not method.dp:
        return "never released"
    return f"never released; trained under: {spent}"
