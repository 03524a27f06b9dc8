"""The worth of joining: runs in groups, and for each method in each group its scores, its gains
and its price. Tables, pages, data frames and the terminal all ask here.

Definitions (those of one run are in ``records.run``):
    * runs belong to one **group** if they differ in nothing but the seed, their methods, and
      settings that results do not depend on;
    * a method is compared with ``against`` (``alone``) in the same run, or else in the group's run
      of the same seed, client by client;
    * the means of a group are over all pairs of a client and a run, each counting once.

Guarantees:
    * an answer never mixes runs whose settings differ without a remark that says so;
    * nothing is left out (an unfinished run, a pair without its counterpart) without a remark;
    * an answer's epsilon is the largest over its clients and runs, of the weakest kind among them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from proxyfl.federation.methods import Method
from proxyfl.measures import better_by
from proxyfl.privacy import guarantee
from proxyfl.privacy.guarantee import Epsilon, largest
from proxyfl.records.groups import Group, same
from proxyfl.records.run import Run, find_comparison_round

Pair = tuple[int, int]
"""(number of the run, client)."""


@dataclass(frozen=True)
class Spread:
    """The mean of ``n`` values, their standard deviation (n - 1; None for one value), and their
    range."""

    mean: float
    std: float | None
    n: int
    low: float
    high: float


def spread(values: Iterable[float]) -> Spread:
    """Mean, deviation and range of one value or more."""
    seen = list(values)
    if not seen:
        raise ValueError("Expected one value or more, got none.")
    n = len(seen)
    mean = math.fsum(seen) / n
    deviation = None
    if n > 1:
        squares = math.fsum((value - mean) ** 2 for value in seen)
        deviation = math.sqrt(squares / (n - 1))
    return Spread(mean, deviation, n, min(seen), max(seen))


@dataclass(frozen=True)
class Question:
    """A question to runs: about which model, in which measure, after how many rounds (None: at the
    end), compared with which method."""

    measure: str
    role: str | None = None
    after: int | None = None
    against: str = "alone"


@dataclass(frozen=True)
class Answer:
    """One method in one group: the score of every client and run, and what each gains.

    ``rounds`` are the numbers of rounds after which each run was compared, None for the end. A
    pooled method has one score a run, and a gain for every client."""

    method: str
    group: Group
    asked: Question
    scores: Mapping[Pair, float]
    gains: Mapping[Pair, float]
    epsilon: Epsilon
    rounds: Mapping[int, int | None]

    @property
    def after(self) -> int | None:
        """After how many rounds all runs were compared; None for the end, or where they differ."""
        compared = set(self.rounds.values())
        return compared.pop() if len(compared) == 1 else None

    @cached_property
    def score(self) -> Spread:
        """The scores, summed up."""
        return spread(self.scores.values())

    @cached_property
    def gain(self) -> Spread | None:
        """The gains, summed up; None where there was nothing to compare with."""
        return spread(self.gains.values()) if self.gains else None

    @property
    def gaining(self) -> int:
        """The number of clients that are better off, over all runs."""
        return sum(gain > 0 for gain in self.gains.values())

    @property
    def losing(self) -> int:
        """The number of clients that are worse off, over all runs."""
        return sum(gain < 0 for gain in self.gains.values())

    @property
    def shares(self) -> bool:
        """True if the method exchanges models."""
        return self._as_run.shares

    @property
    def pooled(self) -> bool:
        """True if the method has one model for everybody."""
        return self._as_run.pooled

    @property
    def _as_run(self) -> Method:
        number = next(iter(self.rounds))
        return self.group.runs[number].method(self.method)

    def by_client(self) -> dict[int, Spread]:
        """The gain of each client, over runs."""
        gains: dict[int, list[float]] = {}
        for (_, client), gain in self.gains.items():
            gains.setdefault(client, []).append(gain)
        spreads = {}
        for client, values in sorted(gains.items()):
            spreads[client] = spread(values)
        return spreads

    def by_seed(self) -> dict[int, list[float]]:
        """The gain of the clients of each seed."""
        gains: dict[int, list[float]] = {}
        for (number, _), gain in self.gains.items():
            seed = self.group.runs[number].seed
            gains.setdefault(seed, []).append(gain)
        return gains


def answer(group: Group, method: str, asked: Question, others: Sequence[Run] = ()) -> Answer | None:
    """The worth of a method in a group; None if it has no score. ``others`` are runs to find
    counterparts in, if the group has none."""
    scores: dict[Pair, float] = {}
    gains: dict[Pair, float] = {}
    spent = []
    rounds: dict[int, int | None] = {}
    for number, run in enumerate(group.runs):
        if method not in run.methods:
            continue
        other = None
        if method != asked.against:
            other = _counterpart(group, run, asked.against, others)
        after = asked.after
        if after is None and other is not None:
            after = find_comparison_round(run, method, other, asked.against)
        rounds[number] = after
        here = replace(asked, after=after)
        own = _scores(run, method, run.clients_of(method), here)
        for client, value in own.items():
            scores[number, client] = value
        if other is not None:
            for client, gain in _gains(run, method, other, here).items():
                gains[number, client] = gain
        epsilon = run.epsilon(method, after=after)
        if epsilon is not None:
            spent.append(epsilon)
    if not scores:
        return None
    return Answer(method, group, asked, scores, gains, weakest(spent), rounds)


def answers(group: Group, asked: Question) -> list[Answer]:
    """The worth of every method in a group; those without a score are left out."""
    compared = []
    for method in group.methods:
        one = answer(group, method, asked)
        if one is not None:
            compared.append(one)
    return compared


def weakest(spent: Sequence[Epsilon]) -> Epsilon:
    """The largest epsilon, under the weakest kind among them all."""
    kind, _ = guarantee.weakest(spent)
    return replace(largest(spent), kind=kind)


def _counterpart(group: Group, run: Run, against: str, others: Sequence[Run]) -> Run | None:
    """The run to compare with: the same if it has the other method, else one of the same seed."""
    if against in run.methods:
        return run
    pair = same(run, group.mixed)
    for other in (*group.runs, *others):
        if against in other.methods and same(other, group.mixed) == pair:
            return other
    return None


def _scores(run: Run, method: str, clients: Sequence[int], asked: Question) -> dict[int, float]:
    """Client -> the score asked for, of those that have one."""
    scores = {}
    for client in clients:
        score = run.kept(method, client, asked.measure, role=asked.role, after=asked.after)
        if score is not None:
            scores[client] = score
    return scores


def _gains(run: Run, method: str, other: Run, asked: Question) -> dict[int, float]:
    """Client -> gain. A pooled method's one model stands for every client of the other."""
    ours = run.clients_of(method)
    theirs = other.clients_of(asked.against)
    if run.method(method).pooled:
        ours = theirs
    elif other.method(asked.against).pooled:
        theirs = ours
    joined = _scores(run, method, ours, asked)
    alone = _scores(other, asked.against, theirs, asked)
    gains = {}
    for client, score in joined.items():
        gain = better_by(asked.measure, score, alone.get(client))
        if gain is not None:
            gains[client] = gain
    return gains
