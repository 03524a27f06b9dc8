"""From the manifest and site.toml to a client: data in the manifest's shape and classes, the two
models, real noise, a real ledger.

A site in test mode (``seed``) has seeded noise and a ledger that says so; its proxies can be
compared with a simulation bit for bit, and protect nobody.
"""

import dataclasses
import secrets
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from proxyfl import data, models
from proxyfl._examples import Examples
from proxyfl.data import Dataset
from proxyfl.data.tables.loading import load_tables
from proxyfl.data.tables.reading import Dialect
from proxyfl.errors import DataError, PrivacyError
from proxyfl.federation.averaging import tail_over
from proxyfl.federation.client import (
    DP,
    Client,
    Estimator,
    Part,
    assemble,
    real,
    seeded,
)
from proxyfl.federation.methods import METHODS
from proxyfl.losses import balance_for, class_shares
from proxyfl.models.estimators import is_estimator
from proxyfl.node.members.manifest import Manifest
from proxyfl.node.members.site import Site
from proxyfl.privacy.dpsgd import DPSGD
from proxyfl.privacy.guarantee import Unit
from proxyfl.privacy.ledger import Budget
from proxyfl.privacy.spending.account import Ids, Kept
from proxyfl.seeds import derive

LEDGER_FILE = "ledger.jsonl"


@dataclass(frozen=True)
class SiteData:
    """A site's own examples, numbered by the manifest's classes."""

    train: Examples
    test: Examples
    notes: tuple[str, ...] = ()
    """Remarks for the user on how they were read."""
    account: Kept | None = None
    """The account in which the site's spending stands beside that of other studies."""


@dataclass(frozen=True)
class Relabelled:
    """Examples whose classes are numbered as the manifest lists them."""

    examples: Examples
    labels: Tensor

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def groups(self) -> Tensor | None:
        """The person whom each example is about."""
        return self.examples.groups

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return self.examples.shape

    def take(self, rows: Tensor) -> Tensor:
        """The inputs of ``rows``."""
        return self.examples.take(rows)


def load(manifest: Manifest, site: Site, folder: Path) -> SiteData:
    """The site's examples; DataError if they are not of the manifest's shape and classes."""
    dataset = _dataset(manifest, site, folder)
    if dataset.shape != manifest.input.shape:
        raise DataError(
            f"{site.data.source}: examples have the shape {list(dataset.shape)}, the manifest says "
            f"{list(manifest.input.shape)}. Bring them into that shape."
        )
    numbers = _numbers(dataset, manifest, site)
    return SiteData(
        Relabelled(dataset.train, numbers[dataset.train.labels]),
        Relabelled(dataset.test, numbers[dataset.test.labels]),
        tuple(dataset.notes),
        _kept(dataset, manifest, site, folder),
    )


def _kept(
    dataset: Dataset, manifest: Manifest, site: Site, folder: Path
) -> Kept | None:
    """The place of the site's spending in the institution's account, if it keeps one."""
    if site.privacy.account is None:
        return None
    ids = Ids(*dataset.ids(dataset.train))
    study = f"federation {manifest.name}"
    return Kept(folder / site.privacy.account, ids, study)


def _dataset(manifest: Manifest, site: Site, folder: Path) -> Dataset:
    """The site's data as the manifest's schema or its own files say."""
    own = site.data
    if manifest.schema is not None:
        return load_tables(
            [folder / own.source],
            manifest.schema,
            tests=[folder / own.test] if own.test else [],
            dialect=Dialect(own.separator, own.decimal, own.encoding),
            faults=own.faults,
            test_fraction=own.test_fraction,
            seed=own.seed,
        )
    path = folder / own.source
    is_file = path.exists()
    return data.load(
        str(path) if is_file else own.source,
        label=own.label,
        # A named source or a factory has its own list, which ``_numbers`` compares.
        classes=manifest.input.classes if is_file else (),
        test_fraction=own.test_fraction,
        seed=own.seed,
        download=False,
    )


def client(
    manifest: Manifest,
    site: Site,
    examples: Examples,
    *,
    ledger: Path | None,
    seed: int | None = None,
    method: str = "proxyfl",
    account: Kept | None = None,
) -> Client:
    """The site as the round loop sees it. With ``method="alone"``, what it has without joining."""
    id = manifest.position(site.name)
    if seed is None:
        streams = real()
        # Nothing that this site does alone is shared, so nothing of it is secret to be drawn.
        own_seed = secrets.randbits(62)
    else:
        streams = seeded(seed, id)
        own_seed = derive(seed, "init", 1, id)
    dp = _dp(site, ledger, account)
    return assemble(
        id,
        site.name,
        METHODS[method],
        examples,
        classes=len(manifest.input.classes),
        batch_size=_batch_size(site, len(dp.units(examples))),
        dp=dp,
        streams=streams,
        private=_private(manifest, site, examples, own_seed),
        proxy=_proxy(manifest, site),
        steps=site.learning.steps_per_round,
        alpha=site.learning.alpha,
        beta=site.learning.beta,
        teacher="received" if site.learning.teacher == "received" else "current",
        residual=site.model.residual,
        device=site.resources.device,
        tail=tail_over(manifest.average, manifest.training_rounds),
    )


def affordable_steps(client: Client, wanted: int) -> int:
    """How many of ``wanted`` further steps the client's budget covers."""
    trainer = _trainer(client)
    return client.ledger.affordable_steps(
        trainer.sampling_rate, trainer.noise_multiplier, wanted
    )


def charge_in_full(client: Client, round: int) -> None:
    """Charge a round as if trained in full, as far as the budget goes."""
    trainer = _trainer(client)
    client.ledger.charge(
        round,
        affordable_steps(client, client.steps),
        trainer.sampling_rate,
        trainer.noise_multiplier,
    )


def _trainer(client: Client) -> DPSGD:
    trainer = client.learner.trainer
    if not isinstance(trainer, DPSGD):
        raise PrivacyError("A node shares nothing that was trained without DP.")
    return trainer


def follow_tail(client: Client, manifest: Manifest) -> None:
    """Average over the rounds that a new version of the manifest says."""
    tail = tail_over(manifest.average, manifest.training_rounds)
    if tail is not None and client.tail is not None:
        tail.restore(client.tail.state())
    client.tail = tail


def _dp(site: Site, ledger: Path | None, account: Kept | None) -> DP:
    asked = site.privacy
    budget = None
    if asked.budget is not None:
        budget = Budget(asked.budget, asked.accountant)
    return DP(
        unit=Unit(asked.unit),
        max_per_group=asked.max_per_group,
        max_physical_batch_size=asked.max_physical_batch_size,
        clip_norm=asked.clip_norm,
        noise_multiplier=asked.noise_multiplier,
        sampling_rate=asked.sampling_rate,
        declared_examples=asked.examples,
        delta=asked.delta,
        budget=budget,
        ledger=ledger,
        account=account,
    )


def _private(
    manifest: Manifest, site: Site, examples: Examples, seed: int
) -> Part | Estimator:
    """The private model, balanced by the site's own classes: it is never shared."""
    architecture = site.model.architecture
    shares = class_shares(examples.labels, len(manifest.input.classes))
    balance = balance_for(site.learning.balance, shares, public=False)
    if is_estimator(architecture):
        # Fitted anew at each start: with the same seed it is the same model.
        same = derive(manifest.proxy.seed, "init", 1)
        return Estimator(architecture, balance, same)
    model = _built(manifest, architecture, seed)
    return Part(model, site.private_optimizer, balance)


def _proxy(manifest: Manifest, site: Site) -> Part:
    balance = balance_for(manifest.proxy.balance, manifest.prevalence, public=True)
    return Part(initial_proxy(manifest), site.proxy_optimizer, balance)


def _batch_size(site: Site, units: int) -> int:
    """The site's batch size, which a declared sampling leaves as it is: it is public then."""
    if site.privacy.declared:
        return site.learning.batch_size
    return min(site.learning.batch_size, units)


def initial_proxy(manifest: Manifest) -> torch.nn.Module:
    """The proxy that all sites begin with."""
    seed = derive(manifest.proxy.seed, "init", 0)
    model = _built(manifest, manifest.proxy.architecture, seed)
    if manifest.prevalence and manifest.proxy.balance == "none":
        models.set_prior(model, manifest.prevalence)
    return model


def with_budget(site: Site, epsilon: float | None) -> Site:
    """The site with another budget."""
    privacy = dataclasses.replace(site.privacy, budget=epsilon)
    return dataclasses.replace(site, privacy=privacy)


def _built(manifest: Manifest, architecture: str, seed: int) -> torch.nn.Module:
    return models.build(
        architecture,
        shape=manifest.input.shape,
        classes=len(manifest.input.classes),
        seed=seed,
    )


def _numbers(dataset: Dataset, manifest: Manifest, site: Site) -> Tensor:
    """For each class of the data, its number in the manifest."""
    known = {name: number for number, name in enumerate(manifest.input.classes)}
    unknown = [name for name in dataset.class_names if name not in known]
    if unknown:
        raise DataError(
            f"{site.data.source}: the classes {unknown} are not in the manifest, which has "
            f"{list(manifest.input.classes)}. Rename or leave out those examples."
        )
    return torch.tensor([known[name] for name in dataset.class_names])
