"""Read run folders back: plain records for the report, data frames and ready plots for notebooks.

    runs = proxyfl.load("runs/a", "runs/b")     # or the folder that holds them
    runs.gains                                  # one row per run, method and client
    runs.plot("accuracy")                       # a plotly figure

Guarantees:
    * reading changes nothing in a run's folder, and works while the run goes on or after it was
      interrupted;
    * settings are taken as they stand in ``config.toml``, so a run of a newer or older release can
      still be read;
    * no data frame has an epsilon without its kind beside it; where there is no bound it is
      infinite, not absent.
"""

import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from proxyfl._validate import choice
from proxyfl.errors import ConfigError, InputError, RunError
from proxyfl.federation.methods import METHODS, Method, Role
from proxyfl.privacy import journal
from proxyfl.records import folder

if TYPE_CHECKING:
    import pandas

    from proxyfl.report.plots import Figure

Row = dict[str, Any]

ROLES: tuple[Role, ...] = ("private", "received", "proxy")
"""Which model an institution keeps, if its method does not say: the first of these that there
is."""

ADDITIONS = {"certificate": "privacy_certificate.json", "audit": "audit.json"}
"""What other commands may have added to a run's folder."""


class Final(NamedTuple):
    """The last scored round of the model that one client keeps under one method."""

    method: str
    client: int
    name: str
    row: Row

    def score(self, role: str, measure: str = "accuracy") -> float | None:
        """The score of the model in ``role``; None if it was never scored."""
        return self.row.get(f"{role}_{measure}")


@dataclass(frozen=True)
class Run:
    """One run's folder, as far as it was written when it was read."""

    path: Path
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    rows: list[Row]
    summary: Mapping[str, Any] | None
    additions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def seed(self) -> int:
        return int(self.settings.get("seed", 0))

    @property
    def rounds(self) -> int:
        """How many rounds were asked for."""
        return int(self.settings.get("rounds", 0))

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods asked for, in order; those recorded besides come after."""
        return tuple(
            dict.fromkeys(
                [*self.settings.get("methods", ()), *(row["method"] for row in self.rows)]
            )
        )

    @cached_property
    def progress(self) -> dict[str, int]:
        """How many rounds each method has on record."""
        done = dict.fromkeys(self.methods, 0)
        for row in self.rows:
            done[row["method"]] = max(done[row["method"]], row["round"] + 1)
        return done

    @property
    def finished(self) -> bool:
        """Whether every method went through all its rounds, or ended because everyone had left."""
        if self.summary is not None and "finished" in self.summary:
            return bool(self.summary["finished"])
        return all(
            done >= self.rounds or self._all_left(name, done)
            for name, done in self.progress.items()
        )

    def method(self, name: str) -> Method:
        """The method's row in the table; for a user's own method, what can be told from the
        records."""
        if name in METHODS:
            return METHODS[name]
        rows = [row for row in self.rows if row["method"] == name]
        keeps = ((self.summary or {}).get("methods", {}).get(name) or {}).get("keeps")
        roles: list[Role] = [r for r in ROLES if any(f"{r}_accuracy" in row for row in rows)]
        shares = any(row.get("bytes_sent") for row in rows)
        return Method(
            "not in the table of this release",
            "single",
            "pushsum" if shares else "none",
            keeps=keeps or (roles[0] if roles else "proxy"),
        )

    @cached_property
    def finals(self) -> dict[str, dict[int, Final]]:
        """Per method and client, the last round in which the client's models were scored."""
        found: dict[str, dict[int, Final]] = {}
        for row in self.rows:
            if any(key.endswith("_accuracy") for key in row):
                client = row["client"]
                found.setdefault(row["method"], {})[client] = Final(
                    row["method"], client, row["name"], row
                )
        return found

    def kept(self, name: str, client: int, measure: str = "accuracy") -> float | None:
        """The last score of the model that ``client`` keeps under method ``name``; None if there is
        none yet."""
        method, finals = self.method(name), self.finals.get(name, {})
        final = next(iter(finals.values()), None) if method.pooled else finals.get(client)
        return None if final is None else final.score(method.keeps, measure)

    def gain(
        self, name: str, client: int, *, over: str = "alone", measure: str = "accuracy"
    ) -> float | None:
        """What ``client`` gains from method ``name``; None if either of the two has no score."""
        here, there = self.kept(name, client, measure), self.kept(over, client, measure)
        return None if here is None or there is None else here - there

    def clients(self) -> dict[int, str]:
        """Client id -> name, the pooled method's left out."""
        names = {
            row["client"]: row["name"] for row in self.rows if not self.method(row["method"]).pooled
        }
        listed = {
            i: client["name"] for i, client in enumerate((self.summary or {}).get("clients", []))
        }
        return dict(sorted((listed | names).items()))

    def ledgers(self) -> Iterator[tuple[str, int, Row, list[Row]]]:
        """(method, client, header, charges) of every ledger that can be read; a damaged one
        raises."""
        for path in sorted(self.path.glob("ledger/*/*.jsonl")):
            header, charges, _ = journal.read(path)
            yield path.parent.name, int(path.stem) if path.stem.isdigit() else -1, header, charges

    def _all_left(self, name: str, done: int) -> bool:
        last = [row for row in self.rows if row["method"] == name and row["round"] == done - 1]
        return bool(last) and all(row.get("left") for row in last)


@dataclass(frozen=True)
class Runs:
    """One or more runs, as data frames and plots. The frames need pandas, the plots plotly
    (``proxyfl[report]``)."""

    runs: tuple[Run, ...]

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def __repr__(self) -> str:
        return f"Runs({', '.join(str(run.path) for run in self.runs)})"

    @cached_property
    def metrics(self) -> "pandas.DataFrame":
        """Every line of every metrics.jsonl, with the columns ``run`` and ``seed`` in front."""
        return _frame(
            {"run": run.name, "seed": run.seed, **_bounded(row)}
            for run in self.runs
            for row in run.rows
        )

    @cached_property
    def gains(self) -> "pandas.DataFrame":
        """Per run, method and client: what the kept model reaches, what it gains over ``alone``,
        and the epsilon."""
        return _frame(row for run in self.runs for row in _gain_rows(run))

    @cached_property
    def ledger(self) -> "pandas.DataFrame":
        """Every charge on every ledger."""
        return _frame(
            {
                "run": run.name,
                "method": method,
                "client": client,
                "name": header.get("client"),
                "kind": header.get("kind"),
                "delta": header.get("delta"),
                **charge,
            }
            for run in self.runs
            for method, client, header, charges in run.ledgers()
            for charge in charges
        )

    def plot(self, what: str = "accuracy", *, measure: str = "accuracy") -> "Figure":
        """A ready figure: ``accuracy`` over rounds, ``gain`` per client, or ``epsilon`` over
        rounds."""
        choice("plot", what, ("accuracy", "gain", "epsilon"))
        choice("measure", measure, ("accuracy", "macro_accuracy"))
        try:
            from proxyfl.report import plots
        except ImportError as error:
            raise _missing(error) from error
        draw = {"accuracy": plots.accuracy, "gain": plots.gain, "epsilon": plots.epsilon}[what]
        return draw(self, measure)


def load(*paths: Path | str) -> Runs:
    """The runs in the folders given; a folder that holds runs stands for all of them."""
    return Runs(tuple(read(path) for given in paths for path in find(Path(given))))


def find(path: Path) -> list[Path]:
    """``path`` if it is a run's folder, else the runs up to two levels below it; RunError if there
    is none."""
    if (path / "config.toml").is_file():
        return [path]
    below = sorted(
        config.parent
        for pattern in ("*/config.toml", "*/*/config.toml")
        for config in path.glob(pattern)
    )
    return below or [folder.existing(path)]


def read(path: Path, rows: Iterable[Row] | None = None) -> Run:
    """The run in ``path``; with ``rows`` given, those stand for its metrics."""
    folder.existing(path)
    try:
        settings = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RunError(
            f"Cannot read {path / 'config.toml'}: {error}. Give a folder that `proxyfl run` made."
        ) from error
    if rows is None:
        rows = folder.read_metrics(path) if (path / "metrics.jsonl").is_file() else ()
    # A resumed run may write a round again: the later line stands, in the earlier one's place.
    kept = {(row["method"], row["round"], row["client"]): row for row in rows}
    additions = {
        key: content
        for key, name in ADDITIONS.items()
        if (content := _json(path / name)) is not None
    }
    environment = _json(path / "environment.json") or {}
    return Run(
        path, settings, environment, list(kept.values()), _json(path / "summary.json"), additions
    )


def best_epsilon(row: Mapping[str, Any]) -> float:
    """The smaller of the two accountants' bounds; infinite where the record has none."""
    return min(
        (row[key] for key in ("epsilon_rdp", "epsilon_pld") if row.get(key) is not None),
        default=math.inf,
    )


def _json(path: Path) -> Any:
    """The content of a JSON file; None if it is not there. One that is there and unreadable is an
    error."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path} is not readable as JSON: {error}. Remove it, or restore it, and try again."
        ) from error


def _bounded(row: Row) -> Row:
    return row | {key: math.inf for key in ("epsilon_rdp", "epsilon_pld") if row.get(key) is None}


def _gain_rows(run: Run) -> Iterator[Row]:
    for name in run.methods:
        method, finals = run.method(name), run.finals.get(name, {})
        for client, label in run.clients().items():
            final = next(iter(finals.values()), None) if method.pooled else finals.get(client)
            if final is not None:
                yield {
                    "run": run.name,
                    "seed": run.seed,
                    "method": name,
                    "client": client,
                    "name": label,
                    "model": method.keeps,
                    "round": final.row["round"],
                    "accuracy": run.kept(name, client),
                    "macro_accuracy": run.kept(name, client, "macro_accuracy"),
                    "gain": run.gain(name, client),
                    "macro_gain": run.gain(name, client, measure="macro_accuracy"),
                    "epsilon": best_epsilon(final.row),
                    "delta": final.row.get("delta"),
                    "epsilon_kind": final.row.get("epsilon_kind"),
                }


def _frame(rows: Iterable[Row]) -> "pandas.DataFrame":
    try:
        import pandas
    except ImportError as error:
        raise _missing(error) from error
    return pandas.DataFrame(list(rows))


def _missing(error: ImportError) -> InputError:
    return ConfigError(
        f"Data frames and plots need {error.name}, which is not installed. Install the extra: pip "
        f"install "
        "'proxyfl[report]'."
    )
