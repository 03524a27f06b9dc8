"""The clients of a simulated method, each by ``federation.assembly``.

What a client gets depends on the config and its id alone, so any process can assemble any of them.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from proxyfl._entrypoint import Code
from proxyfl._files import short_hash
from proxyfl.data import Dataset
from proxyfl.data.examples import on_device
from proxyfl.errors import ConfigError
from proxyfl.federation.assembly import (
    Part,
    Parts,
    assemble,
    parts_of,
    sampling_of,
    seeded,
    steps_of,
)
from proxyfl.federation.client import Client
from proxyfl.federation.masked import Plan
from proxyfl.federation.methods import Method
from proxyfl.federation.metrics import Judge
from proxyfl.federation.trainers import optimizer_over
from proxyfl.gossip.routes import by_kind
from proxyfl.models.estimators import is_estimator
from proxyfl.privacy.account import Kept
from proxyfl.privacy.coalition import Coalition
from proxyfl.privacy.masks import Keys
from proxyfl.privacy.perexample.validation import checked_clipper
from proxyfl.privacy.sampling import Sampling
from proxyfl.privacy.shares import Share
from proxyfl.settings import EVERY, Local, Study, populations
from proxyfl.simulation.config import Config, to_toml
from proxyfl.simulation.division import ClientData, code_of


def evaluator(config: Config, dataset: Dataset, method: Method) -> Judge:
    """Judges models on the common test set, and where clients are sites on their own. A model for
    everybody has no site of its own."""
    of_sites = config.partition.kind == "site" and not method.pooled
    site = dataset.test_site if of_sites else None
    test = on_device(dataset.test, config.device)
    return Judge(test, config.measure, config.seed, site, config.device, dataset.task)


@dataclass(frozen=True)
class Assembly:
    """The clients of one method: what they agree on, what each decides, and its data.

    ``method`` is the row as the config has it (``prepare.row_of``)."""

    config: Config
    study: Study
    method: Method
    dataset: Dataset
    clients: Sequence[ClientData]
    locals: Sequence[Local]

    def client(self, i: int, ledgers: Path | None = None) -> Client:
        """Client ``i``, its ledger opened or continued in the folder ``ledgers``."""
        return assemble(
            self.study,
            self.locals[i],
            self.clients[i].examples,
            self.method,
            seeded(self.config.seed, i),
            id=i,
            ledger=None if ledgers is None else ledgers / f"{i:03d}.jsonl",
            account=self.account(i, ledgers),
            coalition=self.coalition,
            members=self._count_of_kind(i),
            code=self.code,
        )

    @property
    def code(self) -> Code:
        """The code that names in the config may lead to."""
        return code_of(self.config)

    @property
    def settling(self) -> int:
        """The number of last rounds in which proxies only mix."""
        return self.study.settle if self.method.shares else 0

    @property
    def training_rounds(self) -> int:
        """The number of rounds in which proxies take steps."""
        return self.study.rounds - self.settling

    def sampling(self, i: int) -> Sampling:
        """The sampling of client ``i``'s batches."""
        return sampling_of(self.locals[i], self.clients[i].examples)

    def steps(self, i: int) -> int:
        """The number of steps of client ``i`` in a round."""
        return steps_of(self.locals[i], self.sampling(i))

    def account(self, i: int, ledgers: Path | None = None) -> Kept | None:
        """The place of client ``i``'s spending in the account, if there is one."""
        privacy = self.locals[i].privacy
        if privacy.account is None:
            return None
        study = "a rehearsal"
        if ledgers is not None:  # RUN/ledger/METHOD
            study = f"run {ledgers.parents[1].name}, {ledgers.name}"
        return Kept(Path(privacy.account), populations(privacy.population), study)

    def check_models(self) -> None:
        """Build each architecture once and see that it can be trained as the method will."""
        first: dict[str, int] = {}
        for i, local in enumerate(self.locals):
            first.setdefault(local.model.architecture, i)
        for i in first.values():
            parts = self._parts(i)
            for part in (parts.private, parts.proxy):
                if isinstance(part, Part):
                    optimizer_over(part.optimizer, part.model)
            shared = parts.proxy or parts.private
            if isinstance(shared, Part) and self.method.dp:
                checked_clipper(shared.model, self.dataset.shape)

    def _parts(self, i: int) -> Parts:
        streams = seeded(self.config.seed, i)
        examples = self.clients[i].examples
        return parts_of(self.study, self.locals[i], examples, self.method, streams, self.code)

    def _count_of_kind(self, i: int) -> int:
        """The number of clients that train a proxy together with client ``i``."""
        kinds = self.config.exchange.kinds
        if self.method.pooled or not kinds:
            return len(self.clients)
        return kinds.count(kinds[i])

    @property
    def coalition(self) -> Coalition | None:
        """The terms of the method's masked sum; None if it has none."""
        if self.method.exchange != "masked":
            return None
        groups = by_kind(range(len(self.clients)), self.config.exchange.kinds)
        quorum = self.config.exchange.quorum or min(len(group) for group in groups)
        colluders = self.config.exchange.colluders
        return Coalition(quorum // 2 if colluders is None else colluders, quorum)

    def masked_sum(self) -> Plan:
        """The plan that the clients of a masked sum agree on; ConfigError if the settings allow
        none."""
        coalition = self.coalition
        if coalition is None or not self.method.dp:
            raise ConfigError(
                "A masked sum hides shares of noise, and privacy.enabled is false. Set it to true, "
                "or take a method with another exchange."
            )
        everyone = range(len(self.clients))
        privacy = [local.privacy for local in self.locals]
        common: dict[str, set[float]] = {
            "privacy.noise_multiplier": {each.noise_multiplier for each in privacy},
            "privacy.clip_norm": {each.clip_norm for each in privacy},
            "learning.steps_per_round": {self.steps(i) for i in everyone},
        }
        for key, values in common.items():
            if len(values) > 1:
                raise ConfigError(
                    f"In a masked sum all clients take the same steps with the same noise; got "
                    f"{key} from {min(values):g} to {max(values):g}. Set one {key} for all."
                )
        plan = Plan(
            federation=self.study.name,
            manifest=short_hash(to_toml(self.config).encode()),
            names=[client.name for client in self.clients],
            batch_sizes=[self.sampling(i).batch_size for i in everyone],
            steps=self.steps(0),
            coalition=coalition,
            kinds=self.config.exchange.kinds,
        )
        share = Share(privacy[0].noise_multiplier, privacy[0].clip_norm, coalition)
        share.check_range(sum(plan.batch_sizes), len(plan.names))
        Keys("a client", seed=b"")  # says what to install, if that is missing
        return plan

    def about_model(self, client: Client, role: str) -> dict[str, str]:
        """The entries of a model's file about it, enough to build the model again."""
        mutual = self.method.mutual
        private = role == "private" if mutual else self.method.architecture == "private"
        own = self.locals[client.id].model.architecture
        about = {
            "role": role,
            "client": client.name,
            "architecture": own if private else self.study.proxy.architecture,
            "shape": json.dumps(self.dataset.shape),
            "classes": str(self.dataset.classes),
            "class_names": json.dumps(self.dataset.class_names),
            "epsilon": _release(self.method, client, role),
        }
        if not self.dataset.task.is_classification:
            about["task"] = json.dumps(asdict(self.dataset.task))
        if self.dataset.feature_names:
            about["feature_names"] = json.dumps(self.dataset.feature_names)
            others = [self.config.data.label]
            if self.config.data.site:
                others.append(self.config.data.site)
            about["not_features"] = json.dumps(others)
        if self.dataset.schema:
            about["schema"] = self.dataset.schema
        corrects = is_estimator(own, self.code.own) or self.locals[client.id].model.residual
        if mutual and private and corrects:
            about["residual_on"] = self.study.proxy.architecture
        return about


def pooled_population(locals: Sequence[Local]) -> str | None:
    """The populations that pooled records are about: those of all institutions."""
    names = {name for local in locals for name in populations(local.privacy.population)}
    return None if EVERY in names else "+".join(sorted(names))


def _release(method: Method, client: Client, role: str) -> str:
    """States if the model was released, and under which guarantee it was trained.

    What an exchange moves is released, whatever the institution calls it: the proxy, or the only
    model that there is."""
    shared = role == "proxy" or not method.mutual
    if not shared:
        return "never released"
    spent = f"{client.ledger.epsilon()}; a simulation, whose noise can be recomputed"
    if method.shares:
        return f"released under: {spent}"
    if not method.dp:
        return "never released"
    return f"never released; trained under: {spent}"
