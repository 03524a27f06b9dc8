"""One run, and the questions that everybody asks of it. Each has its only answer here.

What ``proxyfl.run`` returns and what ``proxyfl.load`` reads back are the same class, so that the
terminal, tables, data frames and the page say the same numbers.

Definitions:
    * a client **keeps** the model that its method says (``Method.keeps``), as it was when it was
      last scored. A client that left early counts with the model that it left with; if it left
      before the exchange, that is its proxy. One that joined late counts like any other.
    * a **pooled** method has one model, which every client keeps.
    * a client's **gain** is how much better the kept model is than the one it has ``alone``, by the
      run's measure; positive is better, also where a lower value is.
    * two methods that are over are compared at their ends. While one of them is not, they are
      compared **after** the last round in which both were scored.
    * the **epsilon** of a method is the largest over its clients, of what each had spent by the
      last round it took part in.
    * a run is **finished** if its summary says so, and only then.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from proxyfl import _settings
from proxyfl._validate import choice
from proxyfl.errors import ConfigError
from proxyfl.federation.methods import METHODS, Method, Role
from proxyfl.measures import better_by
from proxyfl.privacy import journal
from proxyfl.privacy.guarantee import Epsilon, largest
from proxyfl.records.row import Row, epsilon, roles, score

DEFAULT_MEASURE = "accuracy"
"""The measure of runs whose settings name none, as those of release 0.1."""

SITE_LEDGER = "ledger.jsonl"
"""The ledger of a real site, which has one client and one method."""

_KEPT_FIRST: tuple[Role, ...] = ("private", "received", "proxy")


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """One run, as far as it has been recorded. ``path`` is None for one that has no folder."""

    path: Path | None
    settings: Mapping[str, Any]
    rows: Sequence[Row]
    summary: Mapping[str, Any] | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    additions: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        from proxyfl.records import glance  # which asks questions of runs

        return glance.as_text(self)

    def _repr_html_(self) -> str:
        """What a notebook shows: the verdict and a line per method."""
        from proxyfl.records import glance

        return glance.as_html(self)

    @property
    def name(self) -> str:
        """The folder's name."""
        return "unnamed" if self.path is None else self.path.resolve().name

    @property
    def seed(self) -> int:
        """The seed that everything random followed from."""
        return int(self.settings.get("seed", 0))

    @property
    def rounds(self) -> int:
        """The number of rounds that were asked for."""
        return int(self.settings.get("rounds", 0))

    @property
    def measure(self) -> str:
        """The measure in which the run's gains are reported.

        A run settles ``auto`` before its folder is written; settings that nobody ran have not.
        """
        named = str(self.settings.get("measure", DEFAULT_MEASURE))
        return DEFAULT_MEASURE if named == "auto" else named

    @property
    def summed_up(self) -> Mapping[str, Any]:
        """The summary; empty before there is one."""
        return self.summary or {}

    def about(self, name: str) -> Mapping[str, Any]:
        """The summary of a method; empty before there is one."""
        by_name = self.summed_up.get("methods", {})
        about: Mapping[str, Any] = by_name.get(name, {})
        return about

    @property
    def classes(self) -> list[str]:
        """The names of the classes; none before the run was summed up."""
        return list(self.summed_up.get("classes", ()))

    @property
    def task(self) -> Mapping[str, Any]:
        """The fields of ``proxyfl.tasks.Task`` where no classes are told apart; else empty."""
        task: Mapping[str, Any] = self.summed_up.get("task", {})
        return task

    @property
    def described(self) -> list[dict[str, Any]]:
        """Each client's data; empty before the run was summed up."""
        return list(self.summed_up.get("clients", ()))

    def confusion(self, name: str) -> dict[int, dict[str, Any]]:
        """Client -> role -> confusion counts of its last scored round, as the summary has them."""
        counts = {}
        for row in self.about(name).get("clients", ()):
            counts[row["client"]] = row.get("confusion", {})
        return counts

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """The methods asked for, in order; those recorded besides come after."""
        asked = self.settings.get("methods", ())
        return tuple(dict.fromkeys([*asked, *self._rows]))

    @cached_property
    def clients(self) -> dict[int, str]:
        """Client id -> name, those of pooled methods left out."""
        names = {}
        for number, about in enumerate(self.described):
            names[number] = about["name"]
        for name, by_client in self._rows.items():
            if not self.method(name).pooled:
                for client, rows in by_client.items():
                    names[client] = rows[-1].get("name", f"client-{client}")
        return dict(sorted(names.items()))

    @cached_property
    def progress(self) -> dict[str, int]:
        """The number of rounds that each method has on record."""
        done = dict.fromkeys(self.methods, 0)
        for row in self.rows:
            name = row["method"]
            done[name] = max(done[name], row["round"] + 1)
        return done

    @property
    def finished(self) -> bool:
        """True if the run went to its end and was summed up."""
        return self.summed_up.get("finished") is True

    def over(self, name: str) -> bool:
        """True if a method went through all its rounds, or ended because everyone had left."""
        done = self.progress[choice("method", name, self.methods)]
        if self.finished or done >= self.rounds:
            return True
        last = []
        for client in self.clients_of(name):
            row = self._rows[name][client][-1]
            if row["round"] == done - 1:
                last.append(row.get("left"))
        return bool(last) and all(last)

    def method(self, name: str) -> Method:
        """The method as the run had it: of its summary, of this release's table, or, for a user's
        own in a run without a summary, what its records tell."""
        return self._methods[choice("method", name, self.methods)]

    def clients_of(self, name: str) -> list[int]:
        """The clients that a method has records of; a pooled one has a single, made-up client."""
        return sorted(self._rows.get(name, {}))

    def last(self, name: str, client: int, *, after: int | None = None) -> Row | None:
        """A client's last row under a method, or its last within ``after`` rounds."""
        return next(self._backwards(name, client, after), None)

    def final(self, name: str, client: int, *, after: int | None = None) -> Row | None:
        """A client's last row in which its models were scored, likewise."""
        for row in self._backwards(name, client, after):
            if roles(row):
                return row
        return None

    def finals(self, name: str) -> list[Row]:
        """Every client's last row in which its models were scored."""
        rows = []
        for client in self.clients_of(name):
            row = self.final(name, client)
            if row is not None:
                rows.append(row)
        return rows

    def departures(self, name: str) -> dict[int, str]:
        """Client -> why it left the method before its end."""
        departed = {}
        for row in self.rows_of(name):
            if row.get("left"):
                departed[row["client"]] = row["left"]
        return departed

    def kept(
        self,
        name: str,
        client: int,
        measure: str | None = None,
        *,
        role: str | None = None,
        after: int | None = None,
    ) -> float | None:
        """The score of the model that a client keeps, or of the one in ``role``; None if there is
        none."""
        kept_row = self.kept_row(name, client, after=after)
        if kept_row is None:
            return None
        row, kept = kept_row
        return score(row, role or kept, measure or self.measure)

    def kept_row(
        self, name: str, client: int, *, after: int | None = None
    ) -> tuple[Row, Role] | None:
        """The row in which the model that a client keeps was last scored, and its role there."""
        holder = self.holder(name, client)
        row = self.final(name, holder, after=after)
        if row is None:
            return None
        keeps = self.method(name).keeps
        if keeps == "received" and keeps not in roles(row):
            keeps = "proxy"  # it left before the exchange
        return row, keeps

    def accuracy(self, name: str, client: int) -> float | None:
        """The test accuracy of the model that a client keeps under a method."""
        return self.kept(name, client, "accuracy")

    def gain(
        self, name: str, client: int, *, over: str = "alone", measure: str | None = None
    ) -> float | None:
        """A client's gain from a method; None if the other was not part of the run, or has no
        score to compare with."""
        self.holder(name, client)
        if over not in self.methods:
            return None
        after = find_comparison_round(self, name, self, over)
        joined = self.kept(name, client, measure, after=after)
        alone = self.kept(over, client, measure, after=after)
        return better_by(measure or self.measure, joined, alone)

    def spent(self, name: str, client: int, *, after: int | None = None) -> Epsilon | None:
        """A client's epsilon after the last round it took part in; None if it never did."""
        row = self.last(name, client, after=after)
        return None if row is None else epsilon(row)

    def epsilon(self, name: str, *, after: int | None = None) -> Epsilon | None:
        """The largest epsilon over a method's clients; None if nothing is on record."""
        epsilons = []
        for client in self.clients_of(name):
            spent = self.spent(name, client, after=after)
            if spent is not None:
                epsilons.append(spent)
        return largest(epsilons) if epsilons else None

    def scored_after(self, name: str) -> list[int]:
        """The numbers of rounds after which some client's models were scored."""
        return self._rounds_of_roles.get(name, [])

    def ledgers(self) -> Iterator[tuple[str, int, Row, list[Row]]]:
        """(method, client, header, charges) of every ledger; a damaged one raises."""
        if self.path is None:
            return
        for path in sorted(self.path.glob("ledger/*/*.jsonl")):
            client = int(path.stem) if path.stem.isdigit() else -1
            yield path.parent.name, client, *_ledger(path)
        of_site = self.path / SITE_LEDGER
        if of_site.is_file():
            yield "proxyfl", 0, *_ledger(of_site)

    @cached_property
    def flat(self) -> dict[str, Any]:
        """The settings with dotted keys; lists as tuples, so that values can be compared."""
        settings = {}
        for key, value in _settings.flat(self.settings).items():
            settings[key] = _hashable(value)
        return settings

    @cached_property
    def _rows(self) -> dict[str, dict[int, list[Row]]]:
        rows: dict[str, dict[int, list[Row]]] = {}
        for row in self.rows:
            by_client = rows.setdefault(row["method"], {})
            by_client.setdefault(row["client"], []).append(row)
        return rows

    @cached_property
    def _rounds_of_roles(self) -> dict[str, list[int]]:
        rounds_of: dict[str, set[int]] = {}
        for row in self.rows:
            if roles(row):
                rounds = rounds_of.setdefault(row["method"], set())
                rounds.add(row["round"] + 1)
        return {name: sorted(rounds) for name, rounds in rounds_of.items()}

    @cached_property
    def _methods(self) -> dict[str, Method]:
        methods = {}
        for name in self.methods:
            about = self.about(name)
            row = _written_row(about)
            if row is not None:
                methods[name] = row
            elif name in METHODS:
                methods[name] = METHODS[name]
            else:
                methods[name] = self._method_from_rows(name, about.get("keeps"))
        return methods

    def _method_from_rows(self, name: str, keeps: Role | None) -> Method:
        """A method's summary from its records alone."""
        scored: set[Role] = set()
        sent = 0
        for row in self.rows_of(name):
            scored.update(roles(row))
            sent += row.get("bytes_sent") or 0
        for role in _KEPT_FIRST:
            if keeps is None and role in scored:
                keeps = role
        return Method(
            "not in the table of this release",
            "single",
            "pushsum" if sent else "none",
            keeps=keeps or "proxy",
        )

    def rows_of(self, name: str) -> list[Row]:
        """The rows of one method, in order."""
        return [row for row in self.rows if row["method"] == name]

    def _backwards(self, name: str, client: int, after: int | None) -> Iterator[Row]:
        rows = self._rows.get(name, {}).get(client, [])
        for row in reversed(rows):
            if after is None or row["round"] < after:
                yield row

    def holder(self, name: str, client: int) -> int:
        """Under whose number a client's model is on record."""
        choice("method", name, self.methods)
        recorded = self.clients_of(name)
        if self.method(name).pooled and recorded:
            return recorded[0]
        if client not in self.clients and client not in recorded:
            known = ", ".join(map(str, self.clients)) or "none yet"
            raise ConfigError(f"Unknown client {client!r}. Known: {known}.")
        return client


def find_comparison_round(run: Run, name: str, other: Run, over: str) -> int | None:
    """After how many rounds two methods are compared; None: at their ends."""
    if run.over(name) and other.over(over):
        return None
    ours = set(run.scored_after(name))
    theirs = set(other.scored_after(over))
    return max(ours & theirs, default=0)


def _hashable(value: Any) -> Any:
    if isinstance(value, Mapping):
        entries = [f"{key} = {inner}" for key, inner in value.items()]
        return "{" + ", ".join(entries) + "}"
    if isinstance(value, list):
        return tuple(_hashable(inner) for inner in value)
    return value


def _ledger(path: Path) -> tuple[Row, list[Row]]:
    header, entries, _ = journal.read(path)
    return header, [entry for entry in entries if "steps" in entry]


def _written_row(about: Mapping[str, Any]) -> Method | None:
    """The row that a summary has on record; None if there is none that this release knows."""
    if "method" not in about:
        return None
    try:
        return Method(**about["method"])
    except (ConfigError, TypeError):
        return None
