"""Divides a config's data among the clients.

The division depends on the config alone, so that every process divides alike. An epsilon compares
datasets of one client after the division, which is public (``data.partition``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from proxyfl._entrypoint import ALL, Code
from proxyfl.data import Dataset, partition, sources
from proxyfl.data.examples import Absent, Examples, Subset
from proxyfl.data.tables.reading import Dialect
from proxyfl.errors import ConfigError, DataError
from proxyfl.node.members.files import is_real
from proxyfl.privacy.guarantee import Unit
from proxyfl.privacy.units import Units
from proxyfl.seeds import numpy_stream
from proxyfl.simulation.config import Config


@dataclass(frozen=True)
class ClientData:
    """One client's name, its rows of the training examples, and those examples."""

    name: str
    rows: Tensor
    examples: Examples

    def __len__(self) -> int:
        return len(self.rows)

    def without_inputs(self) -> "ClientData":
        """The same client without its data: counts and name, so that no example is kept alive."""
        return replace(self, examples=Absent.like(self.examples))


def federation_folder(config: Config) -> Path | None:
    """The folder of a real federation, or of one real site, that the config's ``data.source`` is;
    None if it is something else."""
    source = config.data.source
    if not isinstance(source, str):
        return None
    folder = Path(source).expanduser()
    return folder if is_real(folder) else None


def code_of(config: Config) -> Code:
    """The code that names in the config may lead to: any, unless it is about others' files."""
    folder = federation_folder(config)
    if folder is None:
        return ALL
    from proxyfl.simulation import sites

    return sites.code_of(folder, config)


def load_data(config: Config) -> Dataset:
    """The dataset that the config names."""
    settings = config.data
    folder = federation_folder(config)
    if folder is not None:
        from proxyfl.simulation import sites  # which needs cryptography

        return sites.load_sites(folder, sites.code_of(folder, config))
    return sources.load(
        settings.source,
        directory=settings.directory,
        label=settings.label,
        site=settings.site,
        classes=settings.class_names,
        schema=settings.schema,
        tests=settings.test,
        dialect=Dialect(settings.separator, settings.decimal, settings.encoding),
        faults=settings.faults,
        test_fraction=settings.test_fraction,
        seed=config.seed,
        download=settings.download,
        synthetic=settings.synthetic,
        query=settings.query,
    )


def split(config: Config, dataset: Dataset) -> list[ClientData]:
    """Divide the training examples among the clients. No input is read or copied."""
    parts = _parts(config, dataset)
    by_site = config.partition.kind == "site"
    clients = []
    for i, part in enumerate(parts):
        rows = torch.from_numpy(part)
        name = dataset.site_names[i] if by_site else f"client-{i}"
        examples = Subset(dataset.train, rows)
        clients.append(ClientData(name, rows, examples))
    return clients


def pooled(clients: Sequence[ClientData], train: Examples) -> ClientData:
    """All clients' examples in one place, as ``joint`` has them."""
    rows = torch.cat([client.rows for client in clients])
    return ClientData("joint", rows, Subset(train, rows))


def _parts(config: Config, dataset: Dataset) -> list[partition.Indices]:
    """The rows of each client."""
    settings = config.partition
    labels = dataset.train.labels.numpy()
    examples = settings.examples
    if settings.kind in ("dirichlet", "site") and examples is not None:
        raise ConfigError(
            f'partition.examples={examples} does not go with partition.kind="{settings.kind}", '
            'which divides all examples. Leave it out, or use "majority" or "iid".'
        )
    if settings.kind == "site":
        return _by_site(dataset)
    if settings.kind != "iid" and not dataset.task.is_classification:
        raise ConfigError(
            f'partition.kind="{settings.kind}" divides examples by their class, and the task is '
            f'{dataset.task.kind}. Use "site" or "iid".'
        )
    if not dataset.task.is_classification:
        labels = np.zeros(len(labels), dtype=np.int64)  # as if all were of one class
    if not config.protects_persons:
        return _divide(config, labels)
    return _divide_persons(config, Units(dataset.train, Unit.GROUP), labels)


def _divide_persons(
    config: Config, units: Units, labels: partition.Indices
) -> list[partition.Indices]:
    """Divide persons as records are, each with the class of their first record, so that all records
    of a person are at one client."""
    person = units.numbers().numpy()
    _, first = np.unique(person, return_index=True)
    parts_of_rows = []
    for part in _divide(config, labels[first]):
        parts_of_rows.append(np.flatnonzero(np.isin(person, part)))
    return parts_of_rows


def _divide(config: Config, labels: partition.Indices) -> list[partition.Indices]:
    """Which of the units with these labels each client has, by the stream ``partition``."""
    settings = config.partition
    generator = numpy_stream(config.seed, "partition")
    if settings.kind == "dirichlet":
        return partition.dirichlet(
            labels,
            clients=settings.clients,
            concentration=settings.concentration,
            generator=generator,
        )
    divide: Callable[..., list[partition.Indices]] = partition.iid
    if settings.kind == "classes":
        divide = partial(partition.by_class, classes=settings.classes)
    elif settings.kind == "majority":
        divide = partial(partition.majority, p_major=settings.p_major)
    divide = partial(divide, labels, clients=settings.clients, generator=generator)
    if "partition.examples" not in config.each:
        return divide(examples=settings.examples)
    wanted = []
    for i in range(settings.clients):
        wanted.append(config.of_client(i, settings.clients).partition.examples or len(labels))
    own = []
    parts = divide(examples=max(wanted))
    for part, size in zip(parts, wanted, strict=True):
        # A shuffled prefix keeps the mixture of classes.
        shuffled = generator.permutation(part)
        own.append(np.sort(shuffled[:size]))
    return own


def _by_site(dataset: Dataset) -> list[partition.Indices]:
    if dataset.site is None:
        raise DataError(
            'partition.kind="site" needs the site of each example; name it with data.site (the '
            "column of a table, or an array)."
        )
    return partition.by_site(dataset.site.numpy())
