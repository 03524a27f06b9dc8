"""Tables that are the answer of a query to a database.

    source = "sqlite:///cohort.sqlite"
    source = "postgresql+psycopg://reader:${COHORT_PASSWORD}@db.hospital.org/omop"
    query  = "SELECT age, sex, died FROM cohort"          or "cohort.sql", a file

Any database that SQLAlchemy reaches (extra ``sql``). What ``${NAME}`` stands for is taken from the
environment when the connection is made, and is written nowhere: not into a run's folder, not into
an error. A password that stands in the URL itself is refused.

Guarantees:
    * only one SELECT is sent, over a connection that cannot write: SQLite and PostgreSQL refuse any
      change themselves, and a transaction of any other database is rolled back;
    * the same rows give the same table, in whatever order the database returns them;
    * a connection or a query that fails is a DataError without the password.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxyfl.data.tables.reading import Part, parts_of_cells
from proxyfl.errors import DataError

_SCHEME = re.compile(r"[a-z][a-z0-9_]*(\+[a-z0-9_]+)?://")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_COMMENTS = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)

_QUOTED = re.compile(r"'(?:[^']|'')*'")
_LIMITS = re.compile(r"\b(LIMIT|OFFSET|FETCH\s+(FIRST|NEXT)|SELECT\s+TOP)\b", re.IGNORECASE)
_COUPLINGS = {
    "a window over all rows": re.compile(r"\bOVER\s*\(\s*(?!PARTITION\b)", re.IGNORECASE),
    "chance": re.compile(r"\b(RANDOM|RAND|NEWID|TABLESAMPLE)\b", re.IGNORECASE),
}


def is_url(source: object) -> bool:
    """True if ``source`` is the URL of a database."""
    return isinstance(source, str) and _SCHEME.match(source) is not None


def sqlite_file(url: str, folder: Path) -> Path | None:
    """The file of an SQLite database; None if ``url`` names anything else."""
    scheme, _, rest = url.partition(":///")
    if not scheme.startswith("sqlite") or not rest:
        return None
    return folder / Path(rest.partition("?")[0]).expanduser()


@dataclass(frozen=True)
class Query:
    """The rows that a query gives, as a table. Relative paths start at ``folder``."""

    url: str
    query: str
    folder: Path = Path()

    def __post_init__(self) -> None:
        password = re.search(r"://[^/@]*?:([^/@]+)@", self.url)
        if password and not _VARIABLE.fullmatch(password[1]):
            raise DataError(
                f"The password in data.source would be copied with every config. Put it into an "
                "environment variable, and write ${NAME} in its place: "
                f"{self.url[: password.start(1)]}${{DB_PASSWORD}}{self.url[password.end(1) :]}"
            )
        if not self.query.strip():
            raise DataError(
                f"{self}: expected a query. Set data.query to a SELECT, or to a file that ends in "
                ".sql."
            )

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The name in messages and notes."""
        return self.stem

    @property
    def stem(self) -> str:
        """The database's name, which also names the site."""
        place = self.url.partition("://")[2].partition("?")[0]
        return Path(place.rpartition("/")[2]).stem or "query"

    @property
    def suffix(self) -> str:
        """A query has none."""
        return ""

    def parts(self, size: int) -> Iterator[Part]:
        """The rows in parts, sorted by their content; ``Part.rows`` has a row's place in the answer
        of the query, from 1."""
        header, rows = self.answer()
        return parts_of_cells(header, rows, size, first=1, in_order=False)

    def couplings(self) -> tuple[str, ...]:
        """The clauses of the query by which one record can change another's row: a limit on the
        rows of the answer, a window over all of them, chance. A join or a subquery that looks at
        other persons is not recognised."""
        statement = _QUOTED.sub(" ", _COMMENTS.sub(" ", _statement(self.query, self.folder)))
        clauses = [clause for clause, sign in _COUPLINGS.items() if sign.search(statement)]
        if _LIMITS.search(_outermost(statement)):
            clauses.append("a limit on the rows")
        return tuple(clauses)

    def answer(self) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """The names of the columns, and the rows as the database returns them."""
        statement = _statement(self.query, self.folder)
        with self._connect() as connection:
            from sqlalchemy import text

            answer = connection.execute(text(statement))
            header = tuple(map(str, answer.keys()))
            return header, [tuple(row) for row in answer]

    @contextmanager
    def _connect(self) -> Iterator[Any]:
        """A connection that cannot write; every failure in it is a DataError."""
        try:
            import sqlalchemy
            from sqlalchemy.exc import SQLAlchemyError
            from sqlalchemy.pool import NullPool
        except ImportError as problem:
            raise DataError(
                f"{self}: reading databases needs SQLAlchemy: pip install 'proxyfl[sql]'."
            ) from problem
        secrets: list[str] = []
        url = _VARIABLE.sub(lambda match: _secret(match[1], secrets), self.url)
        try:
            address = sqlalchemy.make_url(url)
            backend = address.get_backend_name()
            if backend == "sqlite":
                address = _sqlite_read_only(address, self.folder)
            engine = sqlalchemy.create_engine(address, poolclass=NullPool)
            with engine.connect() as connection:
                if backend == "postgresql":
                    connection = connection.execution_options(postgresql_readonly=True)
                yield connection
                connection.rollback()
        except (SQLAlchemyError, ImportError) as problem:
            # from None: the driver's own exception may hold the password
            raise DataError(f"{self}: {_reason(problem, secrets)}") from None


def _secret(name: str, secrets: list[str]) -> str:
    """The value of an environment variable, in the form that a URL needs."""
    from urllib.parse import quote

    value = os.environ.get(name)
    if value is None:
        raise DataError(
            f"data.source takes ${{{name}}} from the environment, where it is not set. "
            f"Set it in the shell or the service that starts this: export {name}=..."
        )
    escaped = quote(value, safe="")
    secrets += [value, escaped]
    return escaped


def _sqlite_read_only(address: Any, folder: Path) -> Any:
    """The URL of an SQLite file that exists, opened for reading only."""
    path = sqlite_file(f"sqlite:///{address.database or ''}", folder)
    if path is None or not path.is_file():
        raise DataError(f"{path}: no such database (looked from {Path.cwd()}). Check the name.")
    from urllib.parse import quote

    database = f"file:{quote(str(path.resolve()))}"
    return address.set(database=database, query={"mode": "ro", "uri": "true"})


def _statement(query: str, folder: Path) -> str:
    """The SELECT, from the setting or from the file that it names."""
    statement = query.strip()
    if statement.endswith(".sql") and "\n" not in statement:
        path = folder / Path(statement).expanduser()
        try:
            statement = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise DataError(
                f"{path}: the query cannot be read: {problem}. Check the name in data.query."
            ) from problem
    statement = statement.rstrip().rstrip(";")
    opening = _COMMENTS.sub(" ", statement).split(None, 1)
    first = opening[0].lower() if opening else ""
    if first not in ("select", "with"):
        raise DataError(
            f"Expected a query that begins with SELECT or WITH, got {statement[:60]!r}. Nothing "
            "was sent to the database."
        )
    if ";" in statement:
        # whatever a text or a comment hides: no second statement, which could end the transaction
        raise DataError(
            "Expected one statement, got a semicolon within it. Nothing was sent to the database. "
            "For a semicolon in a text, write char(59) (PostgreSQL: chr(59))."
        )
    # SQLAlchemy reads :name as a parameter; a colon in a text or a cast is none
    return re.sub(r"(?<!:):(?=[A-Za-z_])", r"\\:", statement)


def _outermost(statement: str) -> str:
    """The statement without what stands in brackets: a limit there is one per row."""
    depth = 0
    kept = ""
    for sign in statement:
        depth += {"(": 1, ")": -1}.get(sign, 0)
        kept += sign if depth == 0 else ""
    return kept


def _reason(problem: Exception, secrets: list[str]) -> str:
    """The driver's own words in one sentence, without secrets."""
    original = getattr(problem, "orig", None) or problem
    text = " ".join(str(original).split()).rstrip(".")
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    if isinstance(problem, ImportError):
        return f"the database's driver is not installed ({text}). Install it with pip."
    return f"the query failed: {text}."
