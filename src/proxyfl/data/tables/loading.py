"""From the sites' files to one dataset: each site's rows, the parts, and nobody in two places.

Guarantees:
    * each person is held out for the test by themselves, or each row where no person is named
      (``data.holdout``): one more changes nobody else's side;
    * nobody is in both parts, and nobody at two sites: such rows are faults;
    * class i is the i-th class of the schema at every site, also where a site lacks some classes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from proxyfl._validate import choice, number
from proxyfl.data import holdout
from proxyfl.data.dataset import Dataset
from proxyfl.data.examples import Examples
from proxyfl.data.holdout import KEY_OF_SEED_0, Key
from proxyfl.data.tables.encoding import Codes, Targets, encode
from proxyfl.data.tables.faults import (
    KINDS,
    NEVER_SKIPPED,
    SHOWN,
    Fault,
    Tally,
    of_empty_columns,
    of_header,
)
from proxyfl.data.tables.features import Mask, feature_names, published_score
from proxyfl.data.tables.reading import Dialect, Tabular, read
from proxyfl.data.tables.schema import Schema, to_toml
from proxyfl.data.tables.scratch import Scratch
from proxyfl.errors import DataError
from proxyfl.seeds import numpy_stream
from proxyfl.tasks import MULTILABEL, TIME_TO_EVENT

FAULTS = {
    "refuse": "a file with faults is refused",
    "skip": "rows with faults are left out and counted",
}
"""The treatments of faults."""


class Numbers:
    """Numbers names in the order in which they come."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def of(self, names: Iterable[str]) -> Codes:
        """The number of each name."""
        known = self.known
        numbers = [known.setdefault(name, len(known)) for name in names]
        return np.array(numbers, dtype=np.int64)


@dataclass(frozen=True)
class Names:
    """The numbers of sites and persons, over all files."""

    sites: Numbers = field(default_factory=Numbers)
    persons: Numbers = field(default_factory=Numbers)


@dataclass(frozen=True)
class Table:
    """One file: labels, and the site, person and row of each example. Its features are in a
    ``Scratch``."""

    path: Path | Tabular
    y: Targets
    site: Codes
    person: Codes
    rows: Codes
    tally: Tally

    def __len__(self) -> int:
        return len(self.y)

    @property
    def notes(self) -> list[str]:
        """Notes for the user about how the file was read. A run keeps them, so they have counts and
        no value of any row."""
        tally = self.tally
        notes = tally.notes()
        if tally.faults:
            faults = "; ".join(tally.counts())
            left_out = f"{tally.skipped} of {tally.rows} rows left out"
            notes.append(f"{left_out}; faults: {faults}")
        return [f"{self.path.name}: {note}" for note in notes]


def load_tables(
    files: Sequence[Path | Tabular],
    schema: Schema,
    *,
    tests: Sequence[Path | Tabular] = (),
    dialect: Dialect | None = None,
    faults: str = "refuse",
    test_fraction: float = 0.2,
    key: Key = KEY_OF_SEED_0,
    by_place: int | None = None,
    header: Sequence[str] = (),
    site_names: Sequence[str] = (),
    per_record: bool = False,
) -> Dataset:
    """The dataset in ``files``; each is a site unless the schema has a column for that. The site is
    called like the file, or by its entry in ``site_names``.

    ``tests`` are the sites' own test parts, with the names of the files in ``files``. Without them,
    each person or row is held out with probability ``test_fraction``, by ``key``. Published files,
    of which every copy is the same, may be divided by place and the seed ``by_place`` instead.

    With ``per_record``, the promise is for single records: persons in two places are then refused
    and never skipped, since one record would take all others of its person with it."""
    choice("data.faults", faults, FAULTS, error=DataError)
    number("test_fraction", test_fraction, above=0, below=1, error=DataError)
    _check_files(files, tests)
    stems = [path.stem for path in files]
    named = dict(zip(stems, site_names, strict=False))
    scratch = Scratch(len(feature_names(schema)))
    names = Names()
    tables = []
    notes = schema.notes
    for path in (*files, *tests):
        table = read_file(
            path,
            schema,
            scratch,
            names,
            dialect,
            faults=faults,
            header=header,
            site=named.get(path.stem),
        )
        tables.append(table)
        notes += table.notes
    trains = sum(map(len, tables[: len(files)]))
    rows = _gather(tables, trains, scratch, names)
    skipped, why = _in_two_places(rows, schema, "refuse" if per_record else faults)
    notes += why
    if tests:
        is_test = rows.held
    elif by_place is not None:
        is_test = _divide_published(rows, test_fraction, by_place)
    else:
        is_test = _held_out(rows, test_fraction, key())
    training = np.flatnonzero(~is_test & ~skipped)
    testing = np.flatnonzero(is_test & ~skipped)
    if not tests:
        count = len(rows.person_names) or len(rows.y)
        unit = "persons" if rows.person_names else "rows"
        holdout.check_sides(
            schema.name, len(training), len(testing), count, test_fraction, unit=unit
        )
    return _dataset(schema, rows, training, testing, notes)


def read_file(
    path: Path | Tabular,
    schema: Schema,
    scratch: Scratch,
    names: Names,
    dialect: Dialect | None = None,
    *,
    faults: str = "refuse",
    header: Sequence[str] = (),
    site: str | None = None,
) -> Table:
    """One file, encoded part by part into ``scratch``. Faults are refused, all named at once, or
    skipped."""
    tally = Tally()
    columns: list[tuple[Targets, ...]] = []
    of_columns: list[Fault] = []
    for part in read(path, dialect, header=header):
        if not columns:
            of_columns = of_header(schema, part.header)
            tally.add(of_columns)
            _refuse_whatever(path, of_columns)
        encoded, in_rows = encode(schema, part, tally)
        tally.add(in_rows)
        _refuse_whatever(path, in_rows)
        scratch.add(encoded.x)
        sites = encoded.site or [site or path.stem] * len(encoded.y)
        of_sites = names.sites.of(sites)
        of_persons = names.persons.of(encoded.person)
        columns.append((encoded.y, of_sites, of_persons, encoded.rows))
    known = {fault.column for fault in of_columns}
    tally.add(of_empty_columns(schema, tally, known))
    if faults == "refuse":
        tally.refuse(str(path))
    y, of_site, person, rows = map(np.concatenate, zip(*columns, strict=True))
    if not len(y):
        left = f": all {tally.skipped} were left out" if tally.skipped else ""
        raise DataError(f"{path}: expected rows, got none{left}.")
    return Table(path, y, of_site, person, rows, tally)


@dataclass(frozen=True)
class _Rows:
    """All files' rows, one after another."""

    scratch: Scratch
    y: Targets
    site: Codes
    site_names: tuple[str, ...]
    person: Codes
    person_names: tuple[str, ...]
    held: Mask
    tables: Sequence[Table]

    def examples(self, rows: Codes) -> Examples:
        """The examples of these rows."""
        y = torch.from_numpy(self.y)
        persons = None
        if self.person_names:
            persons = torch.from_numpy(self.person)
        return self.scratch.examples(rows, y, persons)

    def place(self, i: int) -> str:
        """The place of row i."""
        for table in self.tables:
            if i < len(table):
                return f"{table.path.name} row {int(table.rows[i])}"
            i -= len(table)
        raise IndexError(i)


def _gather(tables: Sequence[Table], training: int, scratch: Scratch, names: Names) -> _Rows:
    y = np.concatenate([table.y for table in tables])
    site = np.concatenate([table.site for table in tables])
    person = np.concatenate([table.person for table in tables])
    if not len(person):  # without a column for them, each row is a person
        person = np.arange(len(y))
    return _Rows(
        scratch=scratch,
        y=y,
        site=site,
        site_names=tuple(names.sites.known),
        person=person,
        person_names=tuple(names.persons.known),
        held=np.arange(len(y)) >= training,
        tables=tables,
    )


def _in_two_places(rows: _Rows, schema: Schema, faults: str) -> tuple[Mask, list[str]]:
    """Rows of persons at a second site, and training rows of persons who are in the test part; and
    notes of them."""
    if schema.person is None:
        return np.zeros(len(rows.y), dtype=bool), []
    first_site = np.full(rows.person.max() + 1, -1, dtype=np.int64)
    # backwards, so that a person's first row has the last word
    first_site[rows.person[::-1]] = rows.site[::-1]
    elsewhere = rows.site != first_site[rows.person]
    of_tested = np.isin(rows.person, rows.person[rows.held])
    tested = of_tested & ~rows.held
    notes = []
    for kind, at_fault in (("two sites", elsewhere), ("two parts", tested)):
        if not at_fault.any():
            continue
        what = f"{int(at_fault.sum())} x {kind} ({KINDS[kind]})"
        if faults == "refuse":
            first = np.flatnonzero(at_fault)[:SHOWN].tolist()
            places = ", ".join(rows.place(i) for i in first)
            more = ", ..." if at_fault.sum() > SHOWN else ""
            raise DataError(
                f"{schema.name}: {what}: {places}{more}. Give each "
                'person to one site, or leave these rows out with data.faults = "skip".'
            )
        notes.append(f"left out: {what}")
    return elsewhere | tested, notes


def _held_out(rows: _Rows, share: float, key: bytes) -> Mask:
    """The rows that are in the test part: those of persons held out, or each by its own content."""
    if rows.person_names:
        return holdout.held_out(rows.person_names, share, key)[rows.person]
    every = rows.examples(np.arange(len(rows.y)))
    return holdout.held_out(holdout.fingerprints(every), share, key)


def _divide_published(rows: _Rows, share: float, seed: int) -> Mask:
    """The rows in the test part of published files: of each file's persons a ``share``, by place.

    A site has at least one person in each part; a site of one person trains."""
    drawn = np.zeros(len(rows.y), dtype=bool)
    for site in range(len(rows.site_names)):
        mine = rows.site == site
        persons = np.unique(rows.person[mine])
        count = max(round(share * len(persons)), 1)
        tests = min(count, len(persons) - 1)
        shuffled = numpy_stream(seed, "split", site).permutation(persons)
        drawn |= mine & np.isin(rows.person, shuffled[:tests])
    return drawn


def _dataset(schema: Schema, rows: _Rows, train: Codes, test: Codes, notes: list[str]) -> Dataset:
    _check_test(schema, rows.y[test])
    notes = [*notes, *_rare_classes(schema, rows.y[train])]
    return Dataset(
        schema.name,
        train=rows.examples(train),
        test=rows.examples(test),
        task=schema.label.outcome,
        site=torch.from_numpy(rows.site[train]),
        site_names=rows.site_names,
        test_site=torch.from_numpy(rows.site[test]),
        feature_names=feature_names(schema),
        schema=to_toml(schema),
        prevalence=schema.label.prevalence,
        published=published_score(schema),
        notes=tuple(notes),
    )


RARE = 0.1
"""The share of examples below which a class is rare."""


def _rare_classes(schema: Schema, y: Targets) -> list[str]:
    """Asks for the public prevalence where a class is rare and the schema states none. The note is
    for the person at this site; the share itself is the site's own."""
    if schema.label.prevalence or not len(y) or not schema.label.outcome.is_classification:
        return []
    counts = np.bincount(y, minlength=len(schema.label.classes))
    rare = [
        name
        for name, count in zip(schema.label.classes, counts, strict=True)
        if count < RARE * len(y)
    ]
    if not rare:
        return []
    return [
        f"{', '.join(map(repr, rare))} is rare here, and the schema states no prevalence. Put the "
        "published share of each class into prevalence of [label]: the proxy then starts from it "
        "and spends no budget on finding it."
    ]


def _check_test(schema: Schema, y: Targets) -> None:
    """Refuse a test part that can tell nothing apart."""
    if len(y) < 2:
        raise DataError(
            f"{schema.name}: expected at least two rows in the test part, got {len(y)}. Raise "
            "data.test_fraction, or give a larger test part."
        )
    if not schema.label.outcome.is_classification:
        if not _tells_apart(schema, y):
            raise DataError(
                f"{schema.name}: expected test rows that differ in {schema.label.column!r} (of a "
                f"time: at least one event by the horizon), got {len(y)} rows that do not. Raise "
                "data.test_fraction, or give a larger test part."
            )
        return
    classes = np.unique(y)
    if len(classes) < 2:
        only = schema.label.classes[int(classes[0])]
        raise DataError(
            f"{schema.name}: expected at least two classes in the test part, got {len(y)} rows of "
            f"{only!r} only. Raise data.test_fraction, or give a larger test part."
        )


def _tells_apart(schema: Schema, y: Targets) -> bool:
    """True if a test part of another task than classification can judge a model."""
    task = schema.label.outcome
    if task.kind == TIME_TO_EVENT:
        return bool(((y[:, 1] == 1) & (y[:, 0] <= task.horizon)).any())
    if task.kind == MULTILABEL:
        return bool((y.min(0) < y.max(0)).any())
    return bool(y.min() < y.max())


def _check_files(files: Sequence[Path | Tabular], tests: Sequence[Path | Tabular]) -> None:
    stems = [path.stem for path in files]
    for path in tests:
        if path.stem not in stems:
            raise DataError(
                f"{path}: expected a test part named like one of the sites' files, which are "
                f"{', '.join(sorted(stems))}."
            )
    twice = sorted({stem for stem in stems if stems.count(stem) > 1})
    if twice:
        raise DataError(
            f"Two sites' files are called {twice}. Rename one: a site is named after its file."
        )


def _refuse_whatever(path: Path | Tabular, faults: Sequence[Fault]) -> None:
    """Refuse the faults after which nobody knows what is meant, whatever the choice."""
    tally = Tally()
    tally.add(fault for fault in faults if fault.kind in NEVER_SKIPPED)
    tally.refuse(str(path))
