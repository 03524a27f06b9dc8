"""Scores of a client's kept model in groups of its own test persons, in a run's or site's folder.

The models are read from ``models/``, the test part is loaded again, and both stay where they are.
``federation.subgroups`` has the definitions.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from proxyfl import measures
from proxyfl.data.examples import Subset
from proxyfl.data.tables import schema as schemas
from proxyfl.data.tables.values import groups_of, takes_bands
from proxyfl.errors import ConfigError, RunError
from proxyfl.federation import modelfile
from proxyfl.federation.methods import METHODS
from proxyfl.federation.metrics import predict
from proxyfl.federation.prevalence import Meaning
from proxyfl.federation.subgroups import Subgroup, judge_groups
from proxyfl.node.members import site as sites
from proxyfl.records import folder
from proxyfl.simulation import federation
from proxyfl.simulation.config import of_run, with_method
from proxyfl.simulation.prepare import Prepared, fingerprint, prepare

PRIVATE = (
    "This is about the patients of {client} without any noise, and no epsilon covers it. It is for "
    "whoever may see the records. Nothing was sent or written."
)
COMMON = "Sites are not known in this run: groups are those of the common test set."
NO_ALONE = (
    "There is no model of alone to compare with. Put alone into methods; a real site keeps one "
    "once it has ended under this release."
)
BY_CHANCE = "Of 40 groups without any difference, one is warned of by chance."


@dataclass(frozen=True)
class Subgroups:
    """The groups of one client's test persons, by each column that was asked for."""

    client: str
    method: str
    measure: str
    by: dict[str, list[Subgroup]]
    notes: list[str]

    def warnings(self) -> list[str]:
        """A sentence for each group whose measure falls by joining by more than its interval."""
        sentences = []
        for column, groups in self.by.items():
            for each in groups:
                if each.falls:
                    assert each.gain is not None
                    assert each.gain.value is not None
                    assert each.gain.interval is not None
                    low, high = each.gain.interval
                    sentences.append(
                        f"{column} {each.name}: joining makes {measures.title_of(self.measure)} "
                        f"worse by {-each.gain.value:.3f} (95 % interval {-high:.3f} to "
                        f"{-low:.3f}). Do not use the joined model for this group without knowing "
                        "why."
                    )
        return sentences

    def document(self) -> dict[str, Any]:
        """All of it as plain data."""
        groups = []
        for column, each_of in self.by.items():
            groups += [{"column": column, **asdict(one), "falls": one.falls} for one in each_of]
        return {
            "client": self.client,
            "method": self.method,
            "measure": self.measure,
            "groups": groups,
            "warnings": self.warnings(),
            "notes": self.notes,
        }


def subgroups(
    path: Path,
    by: Sequence[str],
    *,
    client: str | None = None,
    bands: Sequence[float] = (),
    method: str | None = None,
    measure: str | None = None,
    unpickle: bool = False,
    trust: Sequence[str] = (),
) -> Subgroups:
    """Judges the model that a client keeps, and the one it has alone, in groups of the client's own
    test part by each column in ``by``. ``bands`` are the cut points of a column of numbers.

    The result is private: see the module ``federation.subgroups``."""
    is_site = (path / sites.FILE).is_file()
    config = federation.config_of(path) if is_site else of_run(path)
    chosen = _method(path, config.methods, method)
    prepared = prepare(with_method(config, "alone"))
    if not is_site:
        folder.check_data(path, fingerprint(prepared))
    schema = _schema(path, prepared)
    _check_bands(schema, by, bands)
    task = prepared.dataset.task
    judged_by = measures.measure_for(measure or prepared.config.measure, task.kind)
    names = [each.name for each in prepared.clients]
    number = _position(path, names, client)

    notes = [PRIVATE.format(client=names[number])]
    test = prepared.dataset.test
    site = prepared.dataset.test_site
    if site is not None and (is_site or config.partition.kind == "site"):
        test = Subset(test, torch.nonzero(site == number).flatten())
    else:
        notes.append(COMMON)
    if not len(test):
        raise RunError(f"{path}: {names[number]} has no test examples. Name another client.")

    kept = "private" if METHODS[chosen].keeps == "private" else "proxy"
    models = []
    for name, role in ((chosen, kept), ("alone", "private")):
        file = path / "models" / name / f"{number:03d}-{role}.safetensors"
        if file.is_file():
            model, about = modelfile.load_model(file, unpickle=unpickle, trust=trust)
            models.append(predict(model, test, task=task, meaning=Meaning.read(about)))
        elif name == chosen:
            raise RunError(
                f"{path} holds no {role} model of {names[number]} for {chosen}. Has it ended?"
            )
    alone = models[1] if len(models) == 2 else None
    if chosen == "alone":
        alone = None
    elif alone is None:
        notes.append(NO_ALONE)

    x = test.take(torch.arange(len(test))).flatten(1).numpy()
    persons = None if test.groups is None else test.groups.numpy()
    compared = {}
    for column in by:
        cuts = bands if column in _of_numbers(schema, by) else ()
        group = groups_of(schema, x, column, cuts)
        compared[column] = judge_groups(
            models[0],
            alone,
            group,
            persons,
            test.labels.numpy(),
            measure=judged_by,
            task=task,
            seed=config.seed,
        )
    result = Subgroups(names[number], chosen, judged_by, compared, notes)
    if result.warnings():
        notes.append(BY_CHANCE)
    return result


def _method(path: Path, methods: Sequence[str], wanted: str | None) -> str:
    if wanted is not None:
        if wanted not in methods:
            raise RunError(f"{path} has no method {wanted!r}. It has: {', '.join(methods)}.")
        if METHODS[wanted].pooled:
            raise RunError(
                f"{wanted} trains one model on the records of all clients, so there is no "
                "client's model to judge."
            )
        return wanted
    joining = [name for name in methods if name != "alone" and not METHODS[name].pooled]
    if not joining and "alone" not in methods:
        raise RunError(
            f"{path} has no model that belongs to one client. It has: {', '.join(methods)}."
        )
    return joining[-1] if joining else "alone"


def _position(path: Path, names: Sequence[str], client: str | None) -> int:
    if client is None and len(names) == 1:
        return 0
    if client is not None and client in names:
        return names.index(client)
    if client is not None and client.isdecimal() and int(client) < len(names):
        return int(client)
    which = "Name one with --client." if client is None else f"There is no {client!r}."
    raise RunError(f"{path}: {which} Its clients: {', '.join(names)}.")


def _schema(path: Path, prepared: Prepared) -> schemas.Schema:
    if not prepared.dataset.schema:
        raise RunError(
            f"{path}: groups need a table with a schema, which says what a column holds. Draft one "
            "with: proxyfl schema draft --help"
        )
    return schemas.parse(tomllib.loads(prepared.dataset.schema))


def _check_bands(schema: schemas.Schema, by: Sequence[str], bands: Sequence[float]) -> None:
    """Refuse cut points that no column, or more than one, would take."""
    numbers = _of_numbers(schema, by)
    if bands and len(numbers) != 1:
        raise ConfigError(
            "--bands are the cut points of one column of numbers, got "
            f"{', '.join(numbers) or 'none'} with --by. Ask for one such column at a time."
        )


def _of_numbers(schema: schemas.Schema, by: Sequence[str]) -> list[str]:
    """The columns that cut points can divide. One that does not exist is refused later, by name."""
    known = [name for name in by if name in schema.features]
    return [name for name in known if takes_bands(schema.features[name])]
