"""From the manifest and site.toml to a client: data in the manifest's shape and classes, the two
models, real noise, a real ledger.

A site in test mode (``seed``) has seeded noise and a ledger that says so; its proxies can be
compared with a simulation bit for bit, and protect nobody.
"""

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from proxyfl import settings
from proxyfl._entrypoint import is_code
from proxyfl._examples import Examples
from proxyfl._files import short_hash
from proxyfl.data import Dataset, sources
from proxyfl.data.examples import Relabelled
from proxyfl.data.sources import SOURCES
from proxyfl.data.tables.databases import is_url
from proxyfl.data.tables.loading import load_tables
from proxyfl.data.tables.reading import Dialect
from proxyfl.errors import DataError, PrivacyError
from proxyfl.federation.assembly import assemble, real, seeded, tail_of
from proxyfl.federation.client import Client
from proxyfl.federation.methods import METHODS
from proxyfl.node.members import holdout
from proxyfl.node.members.manifest import Manifest
from proxyfl.node.members.site import Site
from proxyfl.node.members.study import METHOD, site_in_step, with_unit
from proxyfl.node.members.trust import Code, code_of
from proxyfl.node.proposal import Plan
from proxyfl.privacy import journal
from proxyfl.privacy.account import Kept
from proxyfl.privacy.dpsgd import DPSGD, check_trust
from proxyfl.privacy.guarantee import Gradients
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.sampling import cautious_delta
from proxyfl.privacy.units import Units

LEDGER_FILE = holdout.LEDGER_FILE


@dataclass(frozen=True)
class SiteData:
    """A site's own examples, numbered by the manifest's classes."""

    train: Examples
    test: Examples
    notes: tuple[str, ...] = ()
    """Remarks for the user on how they were read."""
    account: Kept | None = None
    """The account in which the site's spending stands next to that of other studies."""


def load(manifest: Manifest, site: Site, folder: Path, code: Code | None = None) -> SiteData:
    """The site's examples; DataError if they are not of the manifest's shape and classes.

    ``code`` is what may run for that, by default what the site's own settings allow."""
    dataset = _dataset(manifest, site, folder, code or code_of(site, folder))
    if dataset.shape != manifest.input.shape:
        raise DataError(
            f"{site.data.source}: examples have the shape {list(dataset.shape)}, the manifest says "
            f"{list(manifest.input.shape)}. Bring them into that shape."
        )
    train, test = dataset.train, dataset.test
    if dataset.task.is_classification != manifest.task.is_classification:
        raise DataError(
            f"{site.data.source}: its labels are for {dataset.task.kind}, and the manifest's task "
            f"is {manifest.task.kind}. Name the file that has this outcome in data.source."
        )
    if manifest.task.is_classification:
        numbers = _numbers(dataset, manifest, site)
        train = Relabelled(train, numbers[train.labels])
        test = Relabelled(test, numbers[test.labels])
    return SiteData(
        train, test, (*dataset.notes, *holdout.notes(folder)), _kept(manifest, site, folder)
    )


def is_table(manifest: Manifest, site: Site) -> bool:
    """True if the records are a table or the answer of a query, which are quick to compare."""
    return manifest.schema is not None or is_url(site.data.source)


def read_by(manifest: Manifest, site: Site, folder: Path) -> str:
    """A short checksum of what decides how records are read and divided, besides the records."""
    own = dataclasses.replace(site.data, changes="refuse")
    schema = "" if manifest.schema is None else manifest.schema.fingerprint
    key = holdout.key(folder).hex()
    return short_hash(repr((own, schema, manifest.input.classes, key)).encode())


def _kept(manifest: Manifest, site: Site, folder: Path) -> Kept | None:
    """The place of the site's spending in the institution's account, if it keeps one."""
    if site.privacy.account is None:
        return None
    populations = settings.populations(site.privacy.population)
    return Kept(folder / site.privacy.account, populations, f"federation {manifest.name}")


def _dataset(manifest: Manifest, site: Site, folder: Path, code: Code) -> Dataset:
    """The site's data as the manifest's schema or its own files say.

    Each person or record is held out by itself, by the site's secret: one more in the file changes
    nobody else's side, and so no more than one summand of any step."""
    own = site.data
    key = partial(holdout.key, folder)
    database = sources.parse_query(own.source, own.query, folder)
    if manifest.schema is not None:
        return load_tables(
            [folder / own.source if database is None else database],
            manifest.schema,
            tests=[folder / own.test] if own.test else [],
            dialect=Dialect(own.separator, own.decimal, own.encoding),
            faults=own.faults,
            test_fraction=own.test_fraction,
            key=key,
            per_record=_is_per_record(manifest, site, folder),
        )
    if database is not None:
        return sources.load(
            own.source,
            label=own.label,
            classes=manifest.input.classes,
            test_fraction=own.test_fraction,
            key=key,
            query=own.query,
            folder=folder,
        )
    path = folder / own.source
    # Whatever else it is, it is a file of the site's folder, never one of the current directory.
    is_file = path.exists() or not (own.source in SOURCES or is_code(own.source))
    return sources.load(
        str(path) if is_file else own.source,
        label=own.label,
        # A named source or a factory has its own list, which ``_numbers`` compares.
        classes=manifest.input.classes if is_file else (),
        dialect=Dialect(own.separator, own.decimal, own.encoding),
        test_fraction=own.test_fraction,
        key=key,
        download=False,
        imports=code.own,
    )


def _is_per_record(manifest: Manifest, site: Site, folder: Path) -> bool:
    """True if the site's promise is for each record, and not for a person with all of theirs."""
    begun = _unit_begun(folder / LEDGER_FILE)
    return with_unit(site, manifest, begun).privacy.unit == "record"


def client(
    manifest: Manifest,
    site: Site,
    examples: Examples,
    *,
    ledger: Path | None,
    seed: int | None = None,
    method: str = METHOD,
    account: Kept | None = None,
    code: Code | None = None,
) -> Client:
    """The site as the round loop sees it. With ``method="alone"``, what it has without joining.

    ``code`` is what names in the manifest and in site.toml may lead to; by default the installed
    modules that the site's settings allow."""
    id = manifest.position(site.name)
    site = with_unit(site, manifest, _unit_begun(ledger))
    masked = manifest.masked if method == METHOD else None
    if masked is not None:
        site = site_in_step(site, masked)
    streams = real()
    if seed is not None:
        streams = seeded(seed, (manifest.whole or manifest).position(site.name))
    delta = site.privacy.delta or _delta(site, examples, ledger)
    return assemble(
        manifest,
        dataclasses.replace(site, privacy=dataclasses.replace(site.privacy, delta=delta)),
        examples,
        METHODS[method if masked is None else manifest.method],
        streams,
        id=id,
        ledger=ledger,
        account=account,
        code=code or code_of(site, None),
        coalition=None if masked is None else masked.coalition,
        charge_each_step=masked is not None and ledger is not None,
        members=len(manifest.members),
    )


def affordable_steps(client: Client, wanted: int) -> int:
    """Counts the steps of ``wanted`` further steps the client's budget covers."""
    trainer = _trainer(client)
    return client.ledger.affordable_steps(
        trainer.sampling_rate, trainer.noise_multiplier, wanted, trainer.coalition
    )


def public_examples(client: Client) -> int:
    """The number of examples, or of persons, that the client's sampling rate tells."""
    trainer = _trainer(client)
    return round(trainer.batch_size / trainer.sampling_rate)


def plan(client: Client, manifest: Manifest, site: Site, folder: Path) -> Plan:
    """The steps that are left to the site, against all that its ledger in ``folder`` has been
    charged for. Nothing is charged or entered."""
    trainer = _trainer(client)
    path = folder / LEDGER_FILE
    ledger = client.ledger
    done = 0
    if path.exists():
        ledger = Ledger.read(path, budget=ledger.budget)
        done = max((charge.round + 1 for charge in ledger.charges), default=0)
        account = _kept(manifest, site, folder)
        if account is not None:
            ledger.page = account.look(ledger)
    left = max(0, manifest.training_rounds - done)
    return Plan(
        ledger,
        trainer.sampling_rate,
        trainer.noise_multiplier,
        client.steps,
        left,
        trainer.coalition,
    )


def gradients(client: Client, site: Site) -> Gradients:
    """Returns the way in which the client's gradients are computed; ModelError if untrusted."""
    way = _trainer(client).gradients
    check_trust(way, trusted=site.proxy.trust_unproven)
    return way


def record_in_full(client: Client, round: int, times: int = 1) -> None:
    """Put on the ledger that a lost copy has trained ``round`` in full, ``times`` over, with the
    present settings. What was spent is spent, whatever the budget."""
    trainer = _trainer(client)
    steps = times * client.steps
    client.ledger.record_spent(
        round, steps, trainer.sampling_rate, trainer.noise_multiplier, trainer.coalition
    )


def describe_round(client: Client) -> str:
    """Describes the cost of a round by the present settings, as ``record_in_full`` charges it."""
    trainer = _trainer(client)
    return (
        f"{client.steps} steps at sampling rate {trainer.sampling_rate:.4g} and noise multiplier "
        f"{trainer.noise_multiplier:g} (site.toml)"
    )


def _trainer(client: Client) -> DPSGD:
    trainer = client.learner.trainer
    if not isinstance(trainer, DPSGD):
        raise PrivacyError("A node shares nothing that was trained without DP.")
    return trainer


def follow_tail(client: Client, manifest: Manifest) -> None:
    """Average over the rounds that a new version of the manifest says."""
    tail = tail_of(manifest, METHODS[METHOD])
    if tail is not None and client.tail is not None:
        tail.restore(client.tail.state())
    client.tail = tail


def _delta(site: Site, examples: Examples, ledger: Path | None) -> float:
    """The delta of a site that states none: its ledger's, if it has begun, else 1/(10 n) rounded
    down to a power of ten, for the declared n or else the true one, which is public then."""
    if ledger is not None and ledger.exists():
        header, _, _ = journal.read(ledger)
        return float(header["delta"])
    return cautious_delta(site.privacy.examples or len(Units.of(examples, site.privacy)))


def _unit_begun(ledger: Path | None) -> str | None:
    """The unit of a ledger that has begun: what is protected cannot change within it."""
    if ledger is None or not ledger.exists():
        return None
    header, _, _ = journal.read(ledger)
    return str(header.get("unit", "record"))


def count_units(site: Site, manifest: Manifest, examples: Examples) -> int:
    """The number of examples, or of persons where they are the site's unit."""
    site = with_unit(site, manifest)
    return len(Units.of(examples, site.privacy))


def with_budget(site: Site, epsilon: float | None) -> Site:
    """The site with another budget."""
    privacy = dataclasses.replace(site.privacy, budget=epsilon)
    return dataclasses.replace(site, privacy=privacy)


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
