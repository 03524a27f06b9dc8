"""What a first look at several sites' files shows: types, likely ids, likely roles, and how each
site writes its classes.

A survey proposes and decides nothing. Whatever it takes from the records themselves, such as a
range, is marked in the draft: that is a look at the data that no epsilon covers.
"""

import datetime
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proxyfl.data.tables.reading import Dialect, read
from proxyfl.data.tables.schema import MISSING, NO, YES, canonical
from proxyfl.errors import DataError

FORMATS = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%Y%m%d", "%d-%b-%y")
"""The date formats that are tried."""

MANY = 30
"""With more distinct texts than this, a column is taken for names or notes."""

_TEXTS = 10 * MANY
"""Distinct texts that are kept of a column of one file."""

_UNIQUE = 1_000_000
"""Cells after which a column is no longer compared for repeated values."""

_FEW_ROWS = 5
"""Rows below which values that are all different say nothing."""

GAPS = (
    *("-", "--", ".", "..", "n.a.", "na", "nan", "n/a", "nd", "unknown", "unk", "missing", "none"),
    *("nil", "null", "k.a.", "k. a.", "fehlt", "unbekannt", "inconnu", "#n/a", "#nv", "#null!"),
)
"""Words that stand for a missing value among numbers, in small letters."""

ANSWERS = {
    "no": (*NO, "nein", "non", "nee", "nej", "nao", "não", "negative", "negativ", "neg"),
    "yes": (*YES, "ja", "j", "oui", "si", "sí", "sì", "sim", "positive", "positiv", "pos"),
}
"""How sites write a no and a yes, in small letters."""

WORDS = (
    ANSWERS,
    {
        "alive": ("alive", "survived", "lebt", "lebend", "vivant", "vivo"),
        "dead": ("dead", "died", "deceased", "tot", "gestorben", "verstorben", "décédé", "muerto"),
    },
    {
        "female": ("female", "f", "w", "weiblich", "frau", "femme", "woman", "mujer"),
        "male": ("male", "m", "männlich", "mann", "homme", "h", "man", "hombre"),
    },
    {
        "healthy": ("healthy", "control", "gesund", "sain", "normal", "benign"),
        "ill": ("ill", "case", "sick", "krank", "malade", "abnormal", "malignant"),
    },
)
"""Words for the same things in several languages: canonical name -> spellings in small letters."""

HAPPENED = tuple(words for words in WORDS if "female" not in words)
"""Those of which the first says that something did not happen, and the second that it did."""

_LABELS = (
    *("label", "outcome", "target", "class", "y", "died", "death", "dead", "deceased", "mortality"),
    *("diagnosis", "disease", "event", "status", "response", "readmitted", "num"),
    *("verstorben", "gestorben", "tod", "tot", "ergebnis", "diagnose", "zielvariable"),
    *("deces", "décès", "decede", "décédé", "mort", "mortalite", "mortalité", "diagnostic"),
    *("muerte", "muerto", "fallecido", "mortalidad", "resultado", "diagnostico", "diagnóstico"),
)
_TIME = re.compile(
    r"(^|_)(time|days?|months?|years?|futime|follow_?up|survival|zeit|tage|dauer|jours|duree)($|_)",
    re.I,
)
_PERSON = re.compile(r"(patient|person|subject|pid|mrn|case|client|individual|customer)", re.I)
_ID = re.compile(r"(^|[_\W])(id|nr|number|uuid|guid|key|index|record)($|[_\W])|id$", re.I)
_SENTINELS = (-9.0, -99.0, -999.0, 99.0, 999.0, 9999.0, 99999.0)


@dataclass
class Seen:
    """One column of one file: its texts except missing values, no more than are needed."""

    texts: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    """Texts that are no numbers."""
    low: float = math.inf
    high: float = -math.inf
    whole: bool = True
    values: int = 0
    unique: bool = True
    _known: set[str] = field(default_factory=set, repr=False)

    def add(self, cells: Sequence[str], decimal: str) -> None:
        """Looks at some cells."""
        texts = [text for text in map(canonical, cells) if text not in MISSING]
        self.values += len(texts)
        distinct = set(texts)
        self._compare(texts, distinct)
        for text in distinct:
            self._measure(text, decimal)
        if len(self.texts) <= _TEXTS:
            self.texts |= set(sorted(distinct)[: _TEXTS + 1])

    def _compare(self, texts: Sequence[str], distinct: set[str]) -> None:
        if not self.unique or len(self._known) > _UNIQUE:
            return
        if len(distinct) < len(texts) or distinct & self._known:
            self.unique = False
            self._known = set()
        else:
            self._known |= distinct

    def _measure(self, text: str, decimal: str) -> None:
        try:
            value = float(text.replace(decimal, "."))
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            if len(self.words) <= _TEXTS:
                self.words.add(text)
            return
        self.low = min(self.low, value)
        self.high = max(self.high, value)
        self.whole = self.whole and value.is_integer()

    @property
    def is_numeric(self) -> bool:
        """True if the texts are numbers, except words for a missing value."""
        return self.low <= self.high and not self.words - self.gaps

    @property
    def gaps(self) -> set[str]:
        """The words that stand for a missing value among numbers."""
        return {text for text in self.words if text.lower() in GAPS}

    @property
    def is_id(self) -> bool:
        """True if every value is another one, and they are whole numbers or texts."""
        return self.values >= _FEW_ROWS and self.unique and (self.whole or bool(self.words))


@dataclass
class Column:
    """One column over all files that have it."""

    name: str
    by_file: dict[str, Seen] = field(default_factory=dict)

    @property
    def texts(self) -> set[str]:
        """The distinct texts of all files, words for a missing number left out."""
        every = set[str]().union(*(seen.texts for seen in self.by_file.values()))
        return every - self.gaps

    @property
    def gaps(self) -> set[str]:
        """The words for a missing value, where the rest are numbers."""
        if not self.is_numeric:
            return set()
        return set[str]().union(*(seen.gaps for seen in self.by_file.values()))

    @property
    def is_numeric(self) -> bool:
        """True if the column has numbers in every file that has values."""
        filled = [seen for seen in self.by_file.values() if seen.values]
        return bool(filled) and all(seen.is_numeric for seen in filled)

    @property
    def is_id(self) -> bool:
        """True if every value of every file is another one."""
        filled = [seen for seen in self.by_file.values() if seen.values]
        return bool(filled) and all(seen.is_id for seen in filled)

    @property
    def mixed(self) -> tuple[str, str] | None:
        """Two files, one with numbers and one with words; None if all agree."""
        numbers = [name for name, seen in self.by_file.items() if seen.values and seen.is_numeric]
        words = [name for name, seen in self.by_file.items() if seen.values and not seen.is_numeric]
        return (numbers[0], words[0]) if numbers and words else None

    @property
    def formats(self) -> tuple[str, ...]:
        """The date formats of the files; empty unless every file has dates."""
        used: dict[str, None] = {}
        for seen in self.by_file.values():
            form = date_format(seen.texts)
            if seen.values and form is None:
                return ()
            if form is not None:
                used[form] = None
        return tuple(used)

    @property
    def sentinels(self) -> tuple[str, ...]:
        """Numbers such as -9 or 999 that lie so far from the rest that they mean "missing"."""
        if not self.is_numeric or len(self.texts) > _TEXTS:
            return ()
        numbers: dict[float, str] = {}
        for text in self.texts:
            try:
                numbers[float(text.replace(",", "."))] = text
            except ValueError:
                return ()
        ordered = sorted(numbers)
        if len(ordered) < _FEW_ROWS:
            return ()
        far = []
        if ordered[0] in _SENTINELS and ordered[1] >= 0:
            far.append(numbers[ordered[0]])
        if ordered[-1] in _SENTINELS and ordered[-1] > 3 * max(ordered[-2], 1.0):
            far.append(numbers[ordered[-1]])
        return tuple(far)

    @property
    def span(self) -> tuple[float, float]:
        """The smallest and the largest number of all files, sentinels left out."""
        low = min(seen.low for seen in self.by_file.values())
        high = max(seen.high for seen in self.by_file.values())
        sentinels = [float(text.replace(",", ".")) for text in self.sentinels]
        if sentinels:
            numbers = [float(text.replace(",", ".")) for text in self.texts]
            inner = [value for value in numbers if value not in sentinels]
            low, high = min(inner), max(inner)
        return low, high


@dataclass
class Survey:
    """All files at a glance: rows of each, and every column."""

    rows: dict[str, int] = field(default_factory=dict)
    columns: dict[str, Column] = field(default_factory=dict)
    persons: dict[str, dict[str, int]] = field(default_factory=dict)
    """Column -> file -> number of distinct values, of columns that may name a person."""

    def absent(self, name: str) -> list[str]:
        """The files that lack a column."""
        return [file for file in self.rows if file not in self.columns[name].by_file]

    def guess_label(self) -> str | None:
        """The column that is called like an outcome in English, German, French or Spanish, else the
        last one that has two values in all files together. None if there is neither."""
        lowered = {name.lower(): name for name in self.columns}
        called = next((lowered[word] for word in _LABELS if word in lowered), None)
        if called is not None:
            return called
        two = []
        for name, column in self.columns.items():
            if not self.absent(name) and _count_classes(column) == 2:
                two.append(name)
        return two[-1] if two else None

    def guess_time(self) -> str | None:
        """The column that is called like a time of follow-up, if it has many numbers."""
        for name, column in self.columns.items():
            if _TIME.search(name) and column.is_numeric and len(column.texts) > MANY:
                return name
        return None

    def guess_person(self) -> str | None:
        """The column that is called like a person, if it has as many values as one would."""
        for name, column in self.columns.items():
            repeats = any(not seen.unique for seen in column.by_file.values())
            many = len(column.texts) > min(MANY, max(self.rows.values()) / 4)
            if _PERSON.search(name) and many and (repeats or column.is_id):
                return name
        return None

    def is_named_id(self, name: str) -> bool:
        """True if a column is called like an identifier."""
        return bool(_ID.search(name) or _PERSON.search(name))


def _count_classes(column: Column) -> int:
    """The number of values, spellings of the same counted once."""
    if len(column.texts) > MANY:
        return len(column.texts)
    return len(propose_classes(column) or column.texts)


def survey(paths: Sequence[Path], dialect: Dialect | None = None) -> Survey:
    """Looks at every file once, part by part."""
    result = Survey()
    stems = [path.stem for path in paths]
    for path in paths:
        name = path.stem if stems.count(path.stem) == 1 else str(path)
        result.rows[name] = 0
        for part in read(path, dialect):
            twice = sorted({column for column in part.header if part.header.count(column) > 1})
            if twice:
                raise DataError(
                    f"{path}: the column {twice[0]!r} appears twice. Rename or remove one of them."
                )
            if part.ragged:
                row, fields = part.ragged[0]
                raise DataError(
                    f"{path}, row {row}: expected {len(part.header)} fields as in the header, got "
                    f"{fields}. Does a text contain the separator? Put it in quotation marks."
                )
            result.rows[name] += len(part.rows)
            for column, cells in part.columns.items():
                every = result.columns.setdefault(column, Column(column))
                every.by_file.setdefault(name, Seen()).add(cells, part.decimal)
        if not result.rows[name]:
            raise DataError(f"{path}: has a header and no rows. Give the file with the records.")
    _check_alike(result)
    return result


def propose_classes(column: Column) -> dict[str, tuple[str, ...]] | None:
    """Class -> how the sites write it; None where words do not tell which is which.

    Whole numbers and equal words mean themselves. Different words are brought together only if
    they are known to mean the same, such as 1, ja and yes."""
    texts = column.texts
    for words in WORDS:
        proposed = _by_words(texts, words)
        if proposed is not None:
            return proposed
    if column.mixed is not None:
        return None
    merged: dict[str, set[str]] = {}
    for text in texts:
        merged.setdefault(text.lower(), set()).add(text)
    by_name = {min(spellings): tuple(sorted(spellings)) for spellings in merged.values()}
    sites = [seen.texts - seen.gaps for seen in column.by_file.values() if seen.values]
    lowered = [{text.lower() for text in site} for site in sites]
    # sites that share no word at all write the same classes differently, and nobody knows how
    for site in lowered:
        if not all(site & other for other in lowered):
            return None
    return dict(sorted(by_name.items(), key=lambda pair: _order(pair[0])))


def _by_words(
    texts: Iterable[str], words: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]] | None:
    """The texts by the names of ``words``; None unless every text is one and each name has one."""
    by_name: dict[str, list[str]] = {name: [] for name in words}
    for text in sorted(texts):
        names = [name for name, alike in words.items() if text.lower() in alike]
        if len(names) != 1:
            return None
        by_name[names[0]].append(text)
    if not all(by_name.values()):
        return None
    return {name: tuple(spellings) for name, spellings in by_name.items()}


def _order(text: str) -> tuple[int, float, str]:
    """Numbers by value and before words."""
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text.lower())


def _check_alike(result: Survey) -> None:
    """Refuses columns that differ only in capital letters or spaces between sites."""
    alike: dict[str, str] = {}
    for name, column in result.columns.items():
        key = re.sub(r"[\s_\-.]+", "", name.lower())
        first = alike.setdefault(key, name)
        if first == name:
            continue
        one, other = result.columns[first].by_file, column.by_file
        if not set(one) & set(other):
            raise DataError(
                f"{next(iter(one))} calls a column {first!r} and {next(iter(other))} calls it "
                f"{name!r}. Give the column one name in all files."
            )


def date_format(texts: Iterable[str]) -> str | None:
    """The first format that reads all texts as dates, if there is one. Numbers of eight digits are
    dates only if they all begin like years of these two centuries."""
    texts = list(texts)
    for form in FORMATS if texts else ():
        if all(_reads(text, form) for text in texts):
            numbers = form == "%Y%m%d" and not _dates_only(texts)
            return None if numbers else form
    return None


def _reads(text: str, form: str) -> bool:
    try:
        datetime.datetime.strptime(text, form)
    except ValueError:
        return False
    return True


def _dates_only(texts: Sequence[str]) -> bool:
    return all(len(text) == 8 and text[:2] in ("19", "20") for text in texts)
