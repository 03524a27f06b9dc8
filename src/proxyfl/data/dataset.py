"""A dataset: training and test examples, and where each training example comes from."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from proxyfl.data import holdout
from proxyfl.data.examples import Examples, InMemory, Subset, chunks
from proxyfl.data.holdout import KEY_OF_SEED_0, Key
from proxyfl.errors import DataError
from proxyfl.losses import objective_of
from proxyfl.settings import Synthetic
from proxyfl.tasks import Task, classification


@dataclass(frozen=True, init=False, eq=False)
class Dataset:
    """Training and test examples with their classes; ``site`` says which institution a training
    example is from.

    It is made of tensors (``train_x``, ``train_y``, ``test_x``, ``test_y``: float32 inputs
    (N, *shape) and int64 labels) or of any other ``Examples`` (``train``, ``test``), which need not
    fit into memory.

    Guarantees, checked when one is made:
        * training and test part are non-empty, of one shape, and have a label for each example;
        * every value is finite, every label within 0 .. classes - 1, every site within
          ``site_names``;
        * no person (``Examples.groups``) is in both parts.

    With a ``task`` other than classification, labels are that task's (``proxyfl.tasks``): finite
    numbers, events of 0 or 1, no time below 0. ``classes`` is then the number of outputs, and
    ``class_names`` has their names.

    Tables say more. ``test_site`` is the site of each test example, so that each site is also
    judged on its own. ``schema`` is the text of the table's schema, ``prevalence`` the publicly
    known share of each class, ``published`` the coefficients and the intercept of a published
    score, and ``notes`` say what a user should know of how the files were read.
    """

    name: str
    train: Examples
    test: Examples
    classes: int
    class_names: tuple[str, ...]
    site: Tensor | None
    site_names: tuple[str, ...]
    test_site: Tensor | None
    feature_names: tuple[str, ...]
    schema: str
    prevalence: tuple[float, ...]
    published: tuple[float, ...]
    notes: tuple[str, ...]
    task: Task

    def __init__(
        self,
        name: str,
        train_x: Tensor | None = None,
        train_y: Tensor | None = None,
        test_x: Tensor | None = None,
        test_y: Tensor | None = None,
        classes: int = 0,
        class_names: Sequence[str] = (),
        site: Tensor | None = None,
        site_names: Sequence[str] = (),
        *,
        train: Examples | None = None,
        test: Examples | None = None,
        test_site: Tensor | None = None,
        feature_names: Sequence[str] = (),
        schema: str = "",
        prevalence: Sequence[float] = (),
        published: Sequence[float] = (),
        notes: Sequence[str] = (),
        task: Task | None = None,
    ) -> None:
        if task is None:
            task = classification(class_names)
        elif not class_names:
            classes, class_names = task.outputs, task.output_names
        vars(self).update(
            name=name,
            train=_part(name, "train", train, train_x, train_y),
            test=_part(name, "test", test, test_x, test_y),
            classes=classes,
            class_names=tuple(class_names),
            site=site,
            site_names=tuple(site_names),
            test_site=test_site,
            feature_names=tuple(feature_names),
            schema=schema,
            prevalence=tuple(prevalence),
            published=tuple(published),
            notes=tuple(notes),
            task=task,
        )
        self._check()

    def _check(self) -> None:
        if len(self.class_names) != self.classes or self.classes < 1:
            raise DataError(
                f"{self.name}: expected one name for each class, got classes={self.classes} and "
                f"{len(self.class_names)} names. Name every class once."
            )
        _check_part(f"{self.name}, training part", self.train, self.task)
        _check_part(f"{self.name}, test part", self.test, self.task)
        if self.test.shape != self.train.shape:
            raise DataError(
                f"{self.name}: expected training and test examples of one shape, got "
                f"{self.train.shape} and {self.test.shape}. Prepare both in the same way."
            )
        _check_persons(self.name, self.train.groups, self.test.groups)
        if self.site is not None:
            where = f"{self.name}, sites"
            _check_ids(where, "site", self.site, len(self.train), len(self.site_names))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return self.train.shape

    @property
    def train_x(self) -> Tensor:
        """All training inputs at once, for data that fit into memory."""
        return _all_inputs(self.train)

    @property
    def train_y(self) -> Tensor:
        """The training labels."""
        return self.train.labels

    @property
    def test_x(self) -> Tensor:
        """All test inputs at once, for data that fit into memory."""
        return _all_inputs(self.test)

    @property
    def test_y(self) -> Tensor:
        """The test labels."""
        return self.test.labels

    def described(self, *, feature_names: Sequence[str]) -> Self:
        """The same dataset with a name for each feature."""
        return self._with(feature_names=tuple(map(str, feature_names)))

    def holding(self, train: Examples, test: Examples) -> Self:
        """The same dataset in a process that holds only these parts. Nothing is checked again."""
        return self._with(train=train, test=test, site=None)

    def _with(self, **changes: Any) -> Self:
        other = copy.copy(self)
        vars(other).update(changes)
        return other


@dataclass(frozen=True)
class Asked:
    """The options of a source besides its place; ``sources.load`` explains each."""

    label: str = "label"
    site: str | None = None
    classes: Sequence[str] = ()
    faults: str = "refuse"
    test_fraction: float = 0.2
    seed: int = 0
    key: Key = KEY_OF_SEED_0
    synthetic: Synthetic = field(default_factory=Synthetic)


def hold_out(
    name: str,
    examples: Examples,
    class_names: Sequence[str],
    *,
    test_fraction: float,
    key: Key,
    site: Tensor | None = None,
    site_names: Sequence[str] = (),
) -> Dataset:
    """A dataset whose test part is held out by ``key``, each person or record by itself
    (``data.holdout``).

    Where examples have groups, persons are held out, each with all of their examples."""
    if isinstance(examples, InMemory) and len(examples):
        _check_finite(name, examples)  # else a part that such values leave empty is reported
    train, test = divide_rows(name, examples, class_names, test_fraction, key, site=site)
    return of_rows(name, examples, class_names, train, test, site=site, site_names=site_names)


def divide_rows(
    name: str,
    examples: Examples,
    class_names: Sequence[str],
    test_fraction: float,
    key: Key,
    *,
    site: Tensor | None = None,
    person_names: Sequence[str] = (),
    records: Sequence[str] = (),
) -> tuple[Tensor, Tensor]:
    """The rows of the training and of the test part of ``hold_out``, each sorted: the order of the
    file is kept.

    ``person_names`` has the name of each group; without it a number names itself. ``records`` are
    fingerprints of the examples, if they are known already."""
    groups = examples.groups
    lengths = {"label": examples.labels, "site": site, "group": groups}
    for what, values in lengths.items():
        if values is not None and len(values) != len(examples):
            raise DataError(
                f"{name}: expected a {what} for each example, got {len(examples)} examples and "
                f"{len(values)} {what}s. Give one for each."
            )
    if groups is None:
        names = records or holdout.fingerprints(examples)
        return holdout.divide(name, names, test_fraction, key(), unit="records")
    persons = [person_names[i] if person_names else person_number(i) for i in groups.tolist()]
    return holdout.divide(name, persons, test_fraction, key(), unit="persons")


def person_number(group: int) -> str:
    """The name of a person whom the data only number. Zeros in front, so that names sort as the
    numbers do."""
    return f"{group:09d}"


def of_rows(
    name: str,
    examples: Examples,
    class_names: Sequence[str],
    train: Tensor,
    test: Tensor,
    *,
    site: Tensor | None = None,
    site_names: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Dataset:
    """A dataset whose training and test parts are rows of ``examples``. ``site`` is of all of
    them."""
    return Dataset(
        name,
        train=Subset(examples, train),
        test=Subset(examples, test),
        classes=len(class_names),
        class_names=class_names,
        site=None if site is None else site[train],
        site_names=site_names,
        test_site=None if site is None else site[test],
        notes=notes,
    )


def _part(
    name: str, part: str, examples: Examples | None, x: Tensor | None, y: Tensor | None
) -> Examples:
    """One part of a dataset, from examples or from two tensors."""
    if examples is not None and x is None and y is None:
        return examples
    if examples is not None or x is None or y is None:
        raise DataError(
            f"{name}: expected either {part} or {part}_x and {part}_y; give {part}=InMemory(x, y) "
            f"or {part}_x=x, {part}_y=y."
        )
    return InMemory(x, y)


def _all_inputs(examples: Examples) -> Tensor:
    if isinstance(examples, InMemory):
        return examples.x
    return examples.take(torch.arange(len(examples)))


def _check_part(where: str, examples: Examples, task: Task) -> None:
    if isinstance(examples, InMemory):
        for what, values in (("inputs", examples.x), ("labels", examples.labels)):
            if not isinstance(values, Tensor):
                raise DataError(
                    f"{where}: expected tensors, got {what} of type {type(values).__name__}. "
                    "Wrap them: torch.as_tensor(values)."
                )
    if isinstance(examples, InMemory) and examples.x.dtype != torch.float32:
        raise DataError(
            f"{where}: expected float32 examples, got {examples.x.dtype}. Convert them with "
            "x.float()."
        )
    if not len(examples) or not examples.shape or 0 in examples.shape:
        raise DataError(
            f"{where}: expected examples (N, ...) with N >= 1, got an array of shape "
            f"{(len(examples), *examples.shape)}."
        )
    _check_finite(where, examples)
    if task.is_classification:
        _check_ids(where, "label", examples.labels, len(examples), task.outputs)
    else:
        _check_targets(where, examples.labels, len(examples), task)
    if examples.groups is not None and len(examples.groups) != len(examples):
        raise DataError(
            f"{where}: expected a group for each of {len(examples)} examples, got "
            f"{len(examples.groups)}. Give one for each, or none at all."
        )


def _check_finite(where: str, examples: Examples) -> None:
    before = 0
    for inputs in chunks(examples):
        # Both extremes are NaN if any value is; this reads the chunk once and allocates nothing.
        lowest, highest = inputs.aminmax()
        if not (lowest.isfinite() and highest.isfinite()):
            row, *place = (~inputs.isfinite()).nonzero()[0].tolist()
            value = inputs[(row, *place)].item()
            raise DataError(
                f"{where}: expected finite values, got {value} in example {before + row} at "
                f"{tuple(place)}. Remove such examples, or put a constant that is known "
                "beforehand: a statistic of the records is a look that no epsilon covers."
            )
        before += len(inputs)


def _check_targets(where: str, labels: Tensor, length: int, task: Task) -> None:
    if labels.dtype != torch.float32 or len(labels) != length:
        raise DataError(
            f"{where}: expected a float32 label for each of {length} examples of the task "
            f"{task.kind}, got {labels.dtype} of shape {tuple(labels.shape)}."
        )
    try:
        objective_of(task).check(labels, task.outputs)
    except DataError as problem:
        raise DataError(f"{where}: {problem}") from problem


def _check_persons(name: str, train: Tensor | None, test: Tensor | None) -> None:
    if train is None or test is None:
        return
    both = torch.unique(train)
    both = both[torch.isin(both, test)]
    if len(both):
        raise DataError(
            f"{name}: {len(both)} persons are in the training and in the test part, the first "
            f"is group {int(both[0])}. Put all examples of a person on one side."
        )


def _check_ids(where: str, what: str, ids: Tensor, length: int, bound: int) -> None:
    if ids.dtype != torch.int64 or ids.ndim != 1:
        raise DataError(
            f"{where}: expected each {what} as one int64, got {ids.dtype} of shape "
            f"{tuple(ids.shape)}."
        )
    if len(ids) != length:
        raise DataError(
            f"{where}: expected a {what} for each of {length} examples, got {len(ids)}."
        )
    bad = (ids < 0) | (ids >= bound)
    if bad.any():
        first = int(bad.nonzero()[0])
        wrong_id = int(ids[first])
        raise DataError(
            f"{where}: expected every {what} within 0..{bound - 1}, got {wrong_id} "
            f"at index {first}."
        )
