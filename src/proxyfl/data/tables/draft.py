"""A first version of a schema, from a file's header and types.

A draft says what it cannot know. Ranges and lists are asked for: taken from the records they would
tell about them, and no epsilon would cover it. ``from_data`` takes them all the same, and the draft
says so in its first lines.
"""

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proxyfl._settings import toml_value
from proxyfl.data.tables.reading import Dialect, Part, read
from proxyfl.data.tables.schema import MISSING, NO, YES, canonical
from proxyfl.errors import DataError

FORMATS = (
    "%Y-%m-%d",
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%Y/%m/%d",
    "%Y%m%d",
    "%d-%b-%y",
)
"""The date formats that a draft tries."""

MANY = 30
"""With more distinct texts than this, a column is taken for names or notes and ignored."""

_ASKED = """\
# A draft. Fill in every [] with what is known beforehand: what a value can be, not what was seen.
# Then compare the file with it: proxyfl schema check FILE --schema THIS_FILE
"""
_LOOKED = """\
# A draft made with --from-data: its ranges and lists were read from the records. That is a look at
# the data that no epsilon covers. Before this file leaves your house, replace them by what is known
# beforehand: what a value can be, not what was seen.
"""


@dataclass
class Seen:
    """The distinct texts of one column, but for missing values; no more than are needed."""

    texts: set[str] = field(default_factory=set)
    low: float = math.inf
    high: float = -math.inf
    numeric: bool = True

    def add(self, texts: Sequence[str], decimal: str) -> None:
        """Look at some cells."""
        found = {canonical(text) for text in set(texts)} - set(MISSING)
        if self.numeric:
            self._measure(found, decimal)
        if len(self.texts) <= 10 * MANY:
            self.texts |= set(sorted(found)[: 10 * MANY + 1])

    def _measure(self, texts: set[str], decimal: str) -> None:
        for text in texts:
            try:
                value = float(text.replace(decimal, "."))
            except ValueError:
                self.numeric = False
                return
            self.low = min(self.low, value)
            self.high = max(self.high, value)


def draft(
    path: Path,
    *,
    label: str | None = None,
    site: str | None = None,
    person: str | None = None,
    dialect: Dialect | None = None,
    from_data: bool = False,
) -> str:
    """The text of a schema for the table at ``path``, to be edited."""
    seen: dict[str, Seen] = {}
    for part in read(path, dialect):
        _look(seen, part)
    for role, column in (("label", label), ("site", site), ("person", person)):
        if column is not None and column not in seen:
            raise DataError(
                f"{path}: no column {column!r} for the {role}. Its columns: {', '.join(seen)}."
            )
    blocks = [
        _LOOKED if from_data else _ASKED,
        _top(path, site, person),
        _label(label, seen, from_data),
    ]
    for name, found in seen.items():
        if name not in (label, site, person):
            blocks.append(_column(name, found, from_data))
    return "\n".join(blocks)


def _look(seen: dict[str, Seen], part: Part) -> None:
    for name, texts in part.columns.items():
        seen.setdefault(name, Seen()).add(texts, part.decimal)


def _top(path: Path, site: str | None, person: str | None) -> str:
    lines = [f"name = {toml_value(path.stem)}"]
    if site is not None:
        lines.append(f"site = {toml_value(site)}")
    if person is not None:
        lines.append(f"person = {toml_value(person)}")
    else:
        lines.append(
            '# person = "..."    the column that tells individuals apart, if there is one'
        )
    return "\n".join(lines) + "\n"


def _label(label: str | None, seen: dict[str, Seen], from_data: bool) -> str:
    lines = ["[label]", f"column = {toml_value(label or '?')}"]
    texts = sorted(seen[label].texts) if label is not None else []
    lowered = {text.lower() for text in texts}
    told = from_data or lowered <= {*YES, *NO}
    if told and 1 < len(texts) <= MANY:
        lines.append(
            f"classes = {toml_value(tuple(texts))}    # in this order: the first is class 0"
        )
    else:
        lines.append(
            "classes = []    # the classes, in an order that all sites share"
        )
    lines.append(
        "# prevalence = [...]    the share of each class, if it is publicly known"
    )
    return "\n".join(lines) + "\n"


def _column(name: str, seen: Seen, from_data: bool) -> str:
    title = f"[columns.{toml_value(name)}]"
    texts = sorted(seen.texts)
    lowered = {text.lower() for text in texts}
    form = _format(texts)
    if not texts:
        lines = ['type = "ignored"    # it has no value in this file']
    elif len(texts) <= 2 and lowered <= {*YES, *NO}:
        lines = ['type = "yes/no"']
    elif form:
        lines = [
            'type = "date"',
            f"formats = {toml_value((form,))}",
            *_interval(from_data),
        ]
    elif seen.numeric:
        lines = ['type = "number"', 'unit = ""', _range(seen, from_data)]
    elif len(texts) <= MANY:
        values = "[]    # every value that there can be"
        if from_data:
            values = toml_value(tuple(texts))
        lines = ['type = "category"', f"values = {values}"]
    else:
        lines = [f'type = "ignored"    # more than {MANY} different texts']
    return "\n".join([title, *lines]) + "\n"


def _interval(from_data: bool) -> list[str]:
    if from_data:
        return [
            "# until, unit and range make a feature of it; without them it is not used"
        ]
    return [
        'unit = "years"',
        'until = ""    # a date or a date column',
        "range = []",
    ]


def _range(seen: Seen, from_data: bool) -> str:
    if not from_data:
        return "range = []    # the plausible values, [low, high]"
    low, high = seen.low, seen.high
    return f"range = [{low:g}, {high if high > low else low + 1:g}]"


def _format(texts: Sequence[str]) -> str | None:
    """The first format that reads all texts as dates, if there is one. Numbers of eight digits are
    dates only if they all begin like years of these two centuries."""
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
