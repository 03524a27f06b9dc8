"""The verdict on joining, in sentences: the terminal and the first screen of the page print them.

The verdict follows from the interval of the mean gain, and from nothing else:
    * ``gain``: the interval is above zero; ``loss``: below it; ``none``: it contains zero;
    * ``few``: the test part is too small to say (``too_few``);
    * ``weak``: ``alone`` was trained too little to be a fair opponent (``certainty.weak_alone``);
    * ``open``: the interval is not known.

Guarantees:
    * no headline has a number that noise could have made;
    * an epsilon is in a headline only if it is end-to-end and rules something out (at most 10);
    * a number that is printed twice is rounded once, from the same value.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from proxyfl.measures import OWN, Interval, title_of
from proxyfl.privacy.guarantee import Kind, shown
from proxyfl.records.answers import Answer, Question, answer
from proxyfl.records.certainty import answer_interval, is_within_noise, weak_alone
from proxyfl.records.groups import Group

FEW_PERSONS = 5
"""Test examples of a class below which the class is not judged."""

FEW_POSITIVES = 100
"""Test examples of the rarer of two classes below which one split alone says nothing."""

MINUS = "\N{MINUS SIGN}"

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")

VerdictKind = Literal["gain", "loss", "none", "few", "weak", "open"]


@dataclass(frozen=True)
class Verdict:
    """One method against training alone.

    ``claim`` is the part of ``headline`` that carries the number, empty without one. ``lede`` has
    the doubts; ``advice`` says what to do if the verdict is not a gain."""

    kind: VerdictKind
    headline: str
    claim: str
    lede: tuple[str, ...]
    advice: tuple[str, ...]


def verdict(compared: Answer) -> Verdict:
    """The verdict on an answer that has gains."""
    return _Case(compared).verdict()


def points(gain: float) -> str:
    """A gain in points: one digit, always a sign, a true minus."""
    text = f"{100 * abs(gain):.1f}"
    return f"{'+' if gain >= 0 or text == '0.0' else MINUS}{text}"


def between(ends: Interval) -> str:
    """An interval of a gain, in points."""
    return f"{points(ends[0])} to {points(ends[1])}"


def noun_of(group: Group) -> str:
    """The noun for the participants: site if the data have sites, else client."""
    return "site" if group.runs[0].flat.get("partition.kind") == "site" else "client"


def counted(number: int, noun: str) -> str:
    """A number and its noun, small numbers as words."""
    word = _NUMBERS[number] if number < len(_NUMBERS) else f"{number:,}"
    return f"{word} {noun}{'' if number == 1 else 's'}"


def class_counts(group: Group) -> dict[str, int]:
    """Class -> test examples, the fewest over runs; empty before a run was summed up."""
    smallest: dict[str, int] = {}
    for run in group.runs:
        for name in run.methods:
            for by_role in run.confusion(name).values():
                for role, counts in by_role.items():
                    if not role.endswith(OWN.rstrip("_")):
                        for label, row in zip(run.classes, counts, strict=False):
                            smallest[label] = min(smallest.get(label, sum(row)), sum(row))
    return smallest


def too_few(group: Group) -> tuple[str, int] | None:
    """The class that has too few test examples to judge by, and how many; None if all have
    enough.

    Fewer than five are too few in any case. With one split and two classes, so are fewer than
    100; with one split and more classes, fewer than 100 in all."""
    counts = class_counts(group)
    if not counts:
        return None
    label, least = min(counts.items(), key=lambda item: item[1])
    splits = len({run.seed for run in group.runs})
    if least < FEW_PERSONS:
        return label, least
    if splits == 1 and len(counts) == 2 and least < FEW_POSITIVES:
        return label, least
    if splits == 1 and sum(counts.values()) < FEW_POSITIVES:
        return label, least
    return None


@dataclass(frozen=True)
class _Case:
    """An answer, and what its sentences are made of."""

    answer: Answer

    @property
    def group(self) -> Group:
        return self.answer.group

    @property
    def measure(self) -> str:
        return title_of(self.answer.asked.measure)

    @property
    def gain(self) -> float:
        spread = self.answer.gain
        if spread is None:
            raise ValueError(f"{self.answer.method} was not compared with training alone.")
        return spread.mean

    @cached_property
    def interval(self) -> Interval | None:
        return answer_interval(self.answer)

    @cached_property
    def by_name(self) -> dict[str, float]:
        """Client -> its mean gain."""
        names = self.group.clients
        gains = {}
        for client, gain in self.answer.by_client().items():
            gains[names.get(client, f"client {client}")] = gain.mean
        return gains

    def verdict(self) -> Verdict:
        weak = weak_alone(self.group, self.answer.asked.measure)
        few = too_few(self.group)
        if weak is not None:
            return self._weak(weak)
        if few is not None:
            return self._few(*few)
        if self.interval is None:
            text = f"Joining ends {points(self.gain)} points of {self.measure} from training alone"
            headline = f"{text}; how sure that is, is not known."
            return Verdict("open", headline, "", self._lede(), ())
        if self.interval[1] - self.interval[0] < 1e-9:
            # not an interval: the same answers, so that there is nothing to be unsure about
            headline = "Joining changed nothing: each keeps a model with the answers it had alone."
            return Verdict("none", headline, "", (), _LOSING)
        if is_within_noise(self.interval):
            headline = "Joining makes no difference beyond noise."
            return Verdict("none", headline, "", self._lede(), _LOSING)
        size = f"{points(self.gain)[1:]} points"
        does: VerdictKind = "gain" if self.gain > 0 else "loss"
        verb = "gains" if does == "gain" else "loses"
        headline = f"Joining {verb} {size} of {self.measure}{self._price()}. {self._sites()}"
        return Verdict(does, headline, size, self._lede(), () if does == "gain" else _LOSING)

    def _weak(self, why: str) -> Verdict:
        headline = "Nothing can be said yet: alone was trained too little."
        advice = (
            'Give each site a model that suits tables: models.private = "logistic|trees"',
            "or train longer: more rounds or steps, another learning rate.",
        )
        return Verdict("weak", headline, "", (why, *self._lede()), advice)

    def _few(self, label: str, count: int) -> Verdict:
        splits = len({run.seed for run in self.group.runs})
        where = "the test part" if splits == 1 else "the smallest test part"
        headline = f"Too few to say: {count} of class {label} in {where}."
        advice = ("Several splits tell more: proxyfl run --splits 5",)
        if count < FEW_PERSONS:
            advice = (
                "More test patients are needed: a larger data.test_fraction, or more records.",
            )
        return Verdict("few", headline, "", self._lede(), advice)

    def _price(self) -> str:
        """``at epsilon 1``, where that may stand in a headline."""
        epsilon = self.answer.epsilon
        if epsilon.kind is not Kind.END_TO_END or epsilon.weak:
            return ""
        text = shown(epsilon.best, 2)
        return f" at epsilon {text.removesuffix('.00')}"

    def _sites(self) -> str:
        """How many gain and lose; a site that loses more than a point comes first."""
        gains = self.by_name
        noun = noun_of(self.group)
        up = sum(gain > 0 for gain in gains.values())
        down = sum(gain < 0 for gain in gains.values())
        n = len(gains)
        if n == 1:
            return ""
        name, worst = min(gains.items(), key=lambda item: item[1])
        first = ""
        if self.gain > 0 and worst < -0.01:
            first = f"{name} loses {points(worst)[1:]} points. "
        if up == n or down == n:
            verb = "gain" if up == n else "end below training alone"
            both = "Both" if n == 2 else f"All {counted(n, noun)}"
            both = f"{both} {noun}s" if n == 2 else both
            return f"{first}{both} {verb}."
        words = f"{up} of {n} {noun}s gain"
        if down == 0:
            return f"{first}{words}, none loses."
        return f"{first}{words}, {down} lose{'s' if down == 1 else ''}."

    def _lede(self) -> tuple[str, ...]:
        """Interval and over what; the share of pooling; who is within noise; own patients."""
        sentences = [
            self._doubt(),
            self._share(),
            self._describe_certain(),
            self._own(),
            self._folds(),
        ]
        return tuple(sentence for sentence in sentences if sentence)

    def _doubt(self) -> str:
        splits = len({run.seed for run in self.group.runs})
        over = f"{counted(splits, 'split')} and test persons"
        if splits == 1:
            over = "test persons of one split"
        if self.interval is None:
            return f"Mean {points(self.gain)} points over {counted(splits, 'split')}; no interval."
        return (
            f"Mean {points(self.gain)} points, 95 % interval {between(self.interval)} over {over}."
        )

    def _share(self) -> str:
        """The share of pooling's gain that was reached, if joining gains beyond noise."""
        if self.interval is None or self.interval[0] <= 0:
            return ""
        for name in ("pooled", "joint"):
            if name in self.group.methods and name != self.answer.method:
                pooled = answer(self.group, name, self.answer.asked)
                if pooled is None or pooled.gain is None or pooled.gain.mean <= 0.005:
                    continue
                share = self.gain / pooled.gain.mean
                if 0 < share <= 1:
                    whole = "what putting all records in one place gives"
                    return f"That is {100 * share:.0f} % of {whole}."
        return ""

    def _describe_certain(self) -> str:
        """How many gains of single clients are beyond noise."""
        n = len(self.by_name)
        if n < 2:
            return ""
        beyond = within = 0
        for client in self.answer.by_client():
            ends = answer_interval(self.answer, client)
            if ends is None:
                return ""
            if is_within_noise(ends):
                within += 1
            else:
                beyond += 1
        return f"{beyond} of {n} {noun_of(self.group)}s differ from training alone beyond noise."

    def _own(self) -> str:
        """The gain on each client's own test part."""
        if self.answer.asked.measure.startswith(OWN):
            return ""
        asked = Question(OWN + self.answer.asked.measure)
        own = answer(self.group, self.answer.method, asked)
        if own is None or own.gain is None:
            return ""
        ends = answer_interval(own)
        where = f"On each {noun_of(self.group)}'s own test part"
        if own.gain.mean == 0 and ends is not None and ends[0] == ends[1] == 0:
            return f"{where}: no change."
        text = f"{where}: {points(own.gain.mean)}"
        if ends is None:
            return f"{text}."
        noise = ", within noise" if is_within_noise(ends) else ""
        return f"{text} ({between(ends)}{noise})."

    def _folds(self) -> str:
        """A warning if most clients' own folds prefer ``alone`` to the proxy: they are of different
        kinds, or the noise is too large."""
        ahead = judged = 0
        for run in self.group.runs:
            for row in run.finals(self.answer.method):
                if row.get("folds"):
                    alone, proxy = row["folds"]
                    judged += 1
                    ahead += alone < proxy
        if 2 * ahead <= judged:
            return ""
        what = "the noise is large, or they are of different kinds (exchange.kinds)"
        return (
            f"Warning: in {ahead} of {judged} choices at a {noun_of(self.group)}, its own folds "
            f"prefer alone to the proxy: {what}."
        )


_LOSING = (
    "Ask what to expect of your numbers of records and sites: proxyfl worth --help",
    "A smaller proxy needs less noise; a larger epsilon buys more; more sites share the cost.",
)


def bet(epsilon: float, delta: float) -> int:
    """How often, in 100 bets, the best adversary tells at most whether somebody took part.

    (exp(epsilon) + delta) / (exp(epsilon) + 1), rounded up; a coin wins 50."""
    if epsilon > 50:
        return 100
    odds = math.exp(epsilon)
    return min(100, math.ceil(100 * (odds + delta) / (odds + 1) - 1e-9))
