"""A made-up cohort in a database, and a PostgreSQL server of the test's own."""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

SCHEMA = """
name = "cohort"
person = "patient"

[label]
column = "died"
classes = ["alive", "dead"]
written = {alive = ["0"], dead = ["1"]}

[columns.age]
type = "number"
range = [18, 100]

[columns.sex]
type = "category"
values = ["f", "m"]

[columns.smoker]
type = "yes/no"

[columns.seen]
type = "date"
until = "2020-12-31"
range = [0, 3]
"""

COLUMNS = ("patient", "age", "sex", "smoker", "seen", "died")


def cohort(count: int = 120, seed: int = 0) -> list[tuple[object, ...]]:
    """Rows as a database has them."""
    draw = np.random.default_rng(seed)
    rows: list[tuple[object, ...]] = []
    for patient in range(count):
        age = int(draw.integers(20, 95))
        died = int(draw.random() < 1 / (1 + np.exp((70 - age) / 10)))
        seen = f"20{draw.integers(18, 20)}-0{draw.integers(1, 10)}-11"
        rows.append((f"p{patient:04d}", age, "fm"[draw.integers(2)], patient % 3 == 0, seen, died))
    return rows


def sqlite(path: Path, rows: list[tuple[object, ...]]) -> None:
    """A new SQLite database with the table ``cohort``."""
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE cohort (patient TEXT, age INTEGER, sex TEXT, smoker BOOLEAN, seen TEXT, "
            "died INTEGER)"
        )
        connection.executemany("INSERT INTO cohort VALUES (?, ?, ?, ?, ?, ?)", rows)
    connection.close()


def postgres_programs() -> Path | None:
    """The folder of Debian's newest PostgreSQL server, if it is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@contextmanager
def postgres(folder: Path, password: str) -> Iterator[Path]:
    """A server that listens on a socket in ``folder`` alone, with the user ``reader``."""
    programs = postgres_programs()
    assert programs is not None
    as_user: list[str] = []
    if os.geteuid() == 0:  # a server refuses to run as root
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        shutil.chown(folder, "postgres", "postgres")
    secret = folder / "secret"
    secret.write_text(password)
    secret.chmod(0o644)
    data = folder / "data"

    def program(name: str, *words: str) -> None:
        line = [*as_user, str(programs / name), *words]
        subprocess.run(line, check=True, timeout=120, cwd=folder, stdout=subprocess.DEVNULL)

    program(
        "initdb",
        *("--pgdata", str(data), "--username", "reader", "--auth", "scram-sha-256"),
        *("--pwfile", str(secret), "--no-sync", "--encoding", "UTF8"),
    )
    options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
    log = str(folder / "log")
    program("pg_ctl", "start", "--wait", "-D", str(data), "-l", log, "-o", options)
    try:
        yield folder
    finally:
        program("pg_ctl", "stop", "--wait", "-m", "immediate", "-D", str(data))
