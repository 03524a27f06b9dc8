"""The tables and figures of docs/research/joining.md: what joining is worth to true sites, from the
recorded studies alone.

Definitions:
    * ``alone`` is the best of the stated estimators on a site's own records, chosen by the site's
      own validation; ``pooled`` the same on everybody's records in one place, without privacy;
    * the **share** is (joined - alone) / (pooled - alone), of means over sites and seeds;
    * a site **loses** if what it keeps is more than a point below its ``alone``;
    * intervals are Student's, 95 %, over the seeds: each has its own split, noise and models.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

from proxyfl.privacy.worth import Facts, worth
from proxyfl.records.answers import spread
from reproduction.catalogue import HOME, JOINING, RESULTS
from reproduction.page import filled
from reproduction.records import Record, Scores
from reproduction.series import Results

PAGE = HOME / "docs" / "research" / "joining.md"
EPSILONS = (1, 3)
DRAWS = "draws.jsonl"
"""What ``benchmarks.draws`` measured, beside the studies' records."""
GOALS = {1: 0.5, 3: 0.7}
"""The share that is aimed at, by epsilon."""
UNSEEN_GOALS = {1: 0.6, 3: 0.75}
"""The share that kept models aim at in federations that nobody tuned to, by epsilon."""
MANY = 6
"""Sites from which on that goal is asked for."""
MASKED_GOALS = {
    "heart": (0.78, 0.92),
    "impact": (0.85, 0.87),
    "ist": (0.88, 0.90),
    "gusto": (0.88, 0.90),
    "loans": (0.92, 0.95),
}
"""The shares at epsilon 1 and 3 that the shared proxy of a masked sum with t = K / 2 aims at."""
POINT = 0.01
ENOUGH = 3
"""Seeds from which on an interval is given."""
# 97.5 % quantiles of Student's t, by degrees of freedom
_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}


@dataclass(frozen=True)
class Study:
    """One recorded federation, read in one measure."""

    name: str
    title: str
    record: Record
    measure: str = "auroc"

    @property
    def clients(self) -> int:
        """The number of sites."""
        return int(self.record.base["partition.clients"])

    @property
    def alone(self) -> Scores:
        """(seed, site) -> score of the site's own best model."""
        return self._scores("alone", "reference")

    @property
    def pooled(self) -> dict[int, float]:
        """Seed -> score of the model on everybody's records."""
        found = self._scores("pooled", "reference")
        return {seed: score for (seed, _), score in found.items()}

    def joined(self, epsilon: int) -> Scores:
        """(seed, site) -> score of what the site keeps."""
        return self._scores("proxyfl", f"epsilon-{epsilon}")

    def gains(self, epsilon: int) -> dict[tuple[int, int], float]:
        """(seed, site) -> joined minus alone."""
        alone = self.alone
        found = self.joined(epsilon)
        return {key: found[key] - alone[key] for key in found if key in alone}

    def share(self, epsilon: int) -> float:
        """The part of what pooling gives that joining recovers."""
        alone = mean_of(self.alone)
        return (mean_of(self.joined(epsilon)) - alone) / (spread(self.pooled.values()).mean - alone)

    def losers(self, epsilon: int) -> list[float]:
        """The gains of those who lose more than a point."""
        return sorted(g for g in self.gains(epsilon).values() if g < -POINT)

    def kept(self, epsilon: int) -> dict[str, int]:
        """What sites chose, and how often."""
        group = self.record.group("proxyfl", "private", variant=f"epsilon-{epsilon}")
        counts: dict[str, int] = {}
        for names in group.keeps:
            for name in names:
                kind = str(name).split(",")[0].split(" ")[0]
                counts[kind] = counts.get(kind, 0) + 1
        return counts

    def facts(self, epsilon: int) -> Facts:
        """What everybody may know of it. The score of a good model, which the literature would
        give, is that of the study's own ``pooled`` in AUROC, rounded."""
        base = self.record.base
        pooled = replace(self, measure="auroc").pooled
        return Facts(
            self.clients,
            int(base["learning.batch_size"]),
            PARAMETERS[self.name],
            float(epsilon),
            float(base["privacy.delta"]),
            CLASSES.get(self.name, 2),
            round(spread(pooled.values()).mean, 2),
            SEEN.get(self.name),
            PREVALENCE.get(self.name),
        )

    @property
    def has_own(self) -> bool:
        """Whether each site was also judged on its own test records."""
        group = self.record.group("alone", "private", variant="reference")
        return bool(group.own_auroc)

    def _scores(self, method: str, variant: str) -> Scores:
        group = self.record.group(method, "private", variant=variant)
        return group.at(max(group.rounds), self.measure)


CLASSES = {"ham": 7, "fashion-two": 10, "fashion-five": 10, "fashion-many": 10}
"""The number of classes, where there are more than two."""

SEEN = {"fashion-two": 2, "fashion-five": 5}
"""The classes of which a site has examples, where they are not all."""

PREVALENCE = {"heart": 0.55, "gusto": 0.07, "ist": 0.62, "impact": 0.26, "loans": 0.21}
"""The share of cases, where there are two classes."""

IMAGES = tuple(CLASSES)
"""The studies of images."""

PARAMETERS = {
    "heart": 50,
    "gusto": 64,
    "ist": 62,
    "impact": 32,
    "loans": 514,
    "ham": 455,
    "fashion-two": 650,
    "fashion-five": 650,
    "fashion-many": 650,
}
"""The size of each study's proxy: an output for each class on the features and a bias. A test
compares."""


def studies(results: Results, measure: str = "auroc") -> list[Study]:
    """The recorded studies."""
    found = []
    for name, experiment in JOINING.items():
        if results.has(experiment.name):
            record = results.record(experiment.name)
            found.append(Study(name, experiment.title, record, measure))
    return found


def write() -> None:
    """Make the page's tables anew."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(filled(text, Results(RESULTS), TABLES), encoding="utf-8")


def gains_table(results: Results) -> str:
    """Best alone, pooled, joined; the share; who loses."""
    lines = [
        "| federation | seeds | alone | pooled, no privacy | joined, epsilon 1 | joined, epsilon 3 "
        "| lose more than a point |",
        "|---|---|---|---|---|---|---|",
    ]
    for study in studies(results):
        cells = [study.title, f"{len(study.record.seeds)}", f"{mean_of(study.alone):.3f}"]
        cells.append(f"{spread(study.pooled.values()).mean:.3f}")
        for epsilon in EPSILONS:
            cells.append(
                f"{mean_of(study.joined(epsilon)):.3f}: {_points(study.gains(epsilon))}, "
                f"{study.share(epsilon):.0%} of what pooling gives"
            )
        cells.append(" and ".join(_losing(study, epsilon) for epsilon in EPSILONS))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def goals_sentences(results: Results) -> str:
    """In how many studies the goal is met, by how much, and each case where it is missed."""
    found = list(studies(results))
    sentences = []
    missed = []
    for epsilon in EPSILONS:
        shares = [study.share(epsilon) for study in found]
        met = sum(share >= GOALS[epsilon] for share in shares)
        sentences.append(
            f"At epsilon {epsilon} the goal of {GOALS[epsilon]:.0%} is met in {met} of "
            f"{len(found)} federations; shares are {min(shares):.0%} to {max(shares):.0%}."
        )
        for study, share in zip(found, shares, strict=True):
            if share < GOALS[epsilon]:
                missed.append(f"{study.title}, epsilon {epsilon}: a share of {share:.0%}")
            if study.losers(epsilon):
                losing = _losing(study, epsilon)
                missed.append(f"{study.title}, epsilon {epsilon}: {losing} lose more than a point")
    if not missed:
        return "\n".join([*sentences, "No site loses more than a point."])
    return "\n".join([*sentences, "Missed:"]) + "\n\n" + "\n".join(f"- {each}" for each in missed)


def kept_table(results: Results) -> str:
    """What the sites chose at home."""
    kinds = ("alone", "proxy", "sum", "residual")
    lines = [f"| federation | epsilon | {' | '.join(kinds)} |", "|---|---|---|---|---|---|"]
    for study in studies(results):
        for epsilon in EPSILONS:
            counts = study.kept(epsilon)
            cells = " | ".join(str(counts.get(kind, 0)) for kind in kinds)
            lines.append(f"| {study.title} | {epsilon} | {cells} |")
    return "\n".join(lines)


def images_table(results: Results) -> str:
    """The studies of images in balanced accuracy: right answers, each class counted alike."""
    lines = [
        "| federation | alone | pooled, no privacy | joined, epsilon 1 | joined, epsilon 3 "
        "| lose more than a point |",
        "|---|---|---|---|---|---|",
    ]
    for study in studies(results, "macro_accuracy"):
        if study.name not in IMAGES:
            continue
        cells = [study.title, f"{mean_of(study.alone):.3f}"]
        cells.append(f"{spread(study.pooled.values()).mean:.3f}")
        for epsilon in EPSILONS:
            joined = mean_of(study.joined(epsilon))
            points = _points(study.gains(epsilon))
            cells.append(f"{joined:.3f}: {points}, {study.share(epsilon):.0%}")
        cells.append(" and ".join(_losing(study, epsilon) for epsilon in EPSILONS))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def own_table(results: Results) -> str:
    """The same models on each site's own test records."""
    lines = ["| federation | alone | joined, epsilon 1 | joined, epsilon 3 |", "|---|---|---|---|"]
    for study in studies(results, "own_auroc"):
        if not study.has_own:
            continue
        cells = [study.title, f"{mean_of(_defined(study.alone)):.3f}"]
        for epsilon in EPSILONS:
            joined = mean_of(_defined(study.joined(epsilon)))
            points = _points(_defined(study.gains(epsilon)))
            cells.append(f"{joined:.3f}: {points}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def accuracy_table(results: Results) -> str:
    """The four hospitals by accuracy, beside FLamby's published figure."""
    lines = ["| | accuracy on the merged test set |", "|---|---|"]
    heart = [s for s in studies(results, "accuracy") if s.name == "heart"]
    for study in heart:
        lines.append(f"| alone, mean of the four | {mean_of(study.alone):.3f} |")
        for epsilon in EPSILONS:
            lines.append(f"| joined, epsilon {epsilon} | {mean_of(study.joined(epsilon)):.3f} |")
        pooled = spread(study.pooled.values()).mean
        lines.append(f"| pooled, no privacy | {pooled:.3f} |")
    lines.append("| FLamby: FedAvg, no privacy, its own split | 0.748 |")
    return "\n".join(lines)


def prediction_table(results: Results) -> str:
    """What ``proxyfl worth`` says beforehand, beside what was measured."""
    lines = [
        "| federation | epsilon | expected share | measured | expected gain | measured |",
        "|---|---|---|---|---|---|",
    ]
    for study in studies(results):
        for epsilon in EPSILONS:
            expected = worth(study.facts(epsilon))
            measured = 100 * mean_of(study.gains(epsilon))
            lines.append(
                f"| {study.title} | {epsilon} | {expected.share:.0%} | {study.share(epsilon):.0%} "
                f"| {expected.gain:.1f} | {measured:.1f} |"
            )
    return "\n".join(lines)


def unseen_table(results: Results) -> str:
    """Federations of random numbers: what ``worth`` says of each when it was fitted to the others,
    and what was measured."""
    record = json.loads((RESULTS / "worth.json").read_text(encoding="utf-8"))
    left_out = record["left_out"]
    lines = [
        f"{left_out['cases_with_kept_models']} cases of kept models: the mean error is "
        f"{left_out['mean_error_gain']:.1f} points of gain and "
        f"{100 * left_out['mean_error_share']:.0f} points of share (median "
        f"{100 * left_out['median_error_share']:.0f}). {left_out['runs_below_low']:.0%} of single "
        "runs end below the stated limit, where one in six (17%) was meant. Joining was advised in "
        f"{left_out['advised_to_join']} cases and lost in {left_out['advised_and_lost']} of them; "
        f"there {left_out['sites_worse_where_advised']:.1%} of sites kept a model more than a "
        f"point below their own. In {left_out['not_advised_and_gained']} cases it was not advised "
        "and would have gained a point or more.",
        "",
        *_unseen_goals(record["cases"]),
        "",
        "| sites, examples, cases, AUROC | parameters | gossip, epsilon 1 | gossip, 3 "
        "| masked sum, epsilon 1 | masked sum, 3 |",
        "|---|---|---|---|---|---|",
    ]
    by_federation: dict[str, dict[tuple[str, float], dict[str, Any]]] = {}
    for case in record["cases"]:
        if case["runs"]:
            key = (case["mechanism"], case["epsilon"])
            by_federation.setdefault(case["federation"], {})[key] = case
    for cases in by_federation.values():
        facts = next(iter(cases.values()))["facts"]
        cells = [
            f"{facts['clients']}, {facts['examples']}, {facts['prevalence']:.0%}, "
            f"{facts['score']:.2f}",
            str(facts["parameters"]),
        ]
        for mechanism in ("gossip", "masked"):
            for epsilon in EPSILONS:
                case = cases[mechanism, epsilon]
                said, seen = case["gain"]
                advice = "" if case["join"] else ", not advised"
                cells.append(f"{said:.1f} / {seen:.1f}{advice}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _unseen_goals(cases: Sequence[dict[str, Any]]) -> list[str]:
    """Whether kept models reach the goals of federations that nobody tuned to."""
    sentences = []
    for epsilon, goal in UNSEEN_GOALS.items():
        words = []
        for mechanism, name in (("masked", "the masked sum"), ("gossip", "gossip")):
            here = [
                case
                for case in cases
                if case["runs"]
                and (case["mechanism"], case["epsilon"]) == (mechanism, epsilon)
                and case["facts"]["clients"] >= MANY
            ]
            shares = [case["share"][1] for case in here]
            met = sum(share >= goal for share in shares)
            worse = mean(case["sites_worse"] for case in here)
            words.append(
                f"with {name} {met} of {len(here)} reach it, {mean(shares):.0%} in the mean, and "
                f"{worse:.1%} of sites keep a model more than a point below their own"
            )
        sentences.append(
            f"The goal for {MANY} sites or more was a kept share of {goal:.0%} at epsilon "
            f"{epsilon}, and at most 1% of sites below their own: {'; '.join(words)}."
        )
    return sentences


@dataclass(frozen=True)
class Draws:
    """One federation's shared proxies over seeds and draws of noise (``benchmarks.draws``)."""

    name: str
    lines: list[dict[str, Any]]
    """One for each seed."""

    @property
    def title(self) -> str:
        return JOINING[self.name].title

    @property
    def count(self) -> str:
        """Seeds and draws of noise."""
        draws = {len(each["shared"]) for line in self.lines for each in line["joined"]}
        return f"{len(self.lines)} x {min(draws)}"

    @property
    def alone(self) -> float:
        return mean(_of_sites(line["alone"]) for line in self.lines)

    @property
    def pooled(self) -> float:
        return mean(float(line["pooled"]) for line in self.lines)

    def has(self, mechanism: str, epsilon: int) -> bool:
        """True if it was measured with every seed."""
        return all(self._one(line, mechanism, epsilon) for line in self.lines)

    def shares(self, mechanism: str, epsilon: int) -> list[float]:
        """Each seed's share of what pooling adds to ``alone``: the mean over draws of noise of the
        shared proxy."""
        return [
            self._share(line, mean(self._one(line, mechanism, epsilon)["shared"]))
            for line in self.lines
        ]

    def kept(self, mechanism: str, epsilon: int) -> float | None:
        """The share of the models that sites keep; None if none was measured."""
        shares = []
        for line in self.lines:
            runs = self._one(line, mechanism, epsilon)["kept"]
            shares += [self._share(line, _of_sites(run)) for run in runs]
        return mean(shares) if shares else None

    def spread_of_runs(self, mechanism: str, epsilon: int) -> float:
        """The standard deviation of one run's share about the mean of its seed."""
        squares, free = 0.0, 0
        for line in self.lines:
            runs = [self._share(line, s) for s in self._one(line, mechanism, epsilon)["shared"]]
            squares += sum((run - mean(runs)) ** 2 for run in runs)
            free += len(runs) - 1
        return math.sqrt(squares / free) if free else 0.0

    def worst(self, mechanism: str, epsilon: int) -> float | None:
        """The worst site's gain in points, over all kept models; None if none was measured."""
        gains = [
            100 * (after[0] - before[0])
            for line in self.lines
            for run in self._one(line, mechanism, epsilon)["kept"]
            for after, before in zip(run, line["alone"], strict=True)
        ]
        return min(gains) if gains else None

    def own(self, mechanism: str, epsilon: int) -> float | None:
        """The gain on the sites' own test parts, in points, of what they keep, else of the shared
        proxy; None where there are no own test parts."""
        gains = []
        for line in self.lines:
            if not _of_own(line["alone"]):
                return None
            alone = mean(_of_own(line["alone"]))
            one = self._one(line, mechanism, epsilon)
            scores = [mean(_of_own(run)) for run in one["kept"]]
            gains += [100 * (score - alone) for score in scores or one["own"]]
        return float(mean(gains))

    def _share(self, line: dict[str, Any], score: float) -> float:
        alone = _of_sites(line["alone"])
        return (score - alone) / (float(line["pooled"]) - alone)

    def _one(self, line: dict[str, Any], mechanism: str, epsilon: int) -> dict[str, Any]:
        for each in line["joined"]:
            if (each["mechanism"], each["epsilon"]) == (mechanism, epsilon):
                found: dict[str, Any] = each
                return found
        return {}


def draws() -> list[Draws]:
    """The recorded federations, in the order of the studies."""
    path = RESULTS / DRAWS
    by_name: dict[str, list[dict[str, Any]]] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        by_name.setdefault(line["study"], []).append(line)
    return [Draws(name, by_name[name]) for name in JOINING if name in by_name]


def draws_table(_results: Results) -> str:
    """The shared proxy by mechanism, over seeds and draws of noise."""
    lines = [
        "| federation | seeds x draws | alone, pooled | gossip, epsilon 1 | gossip, 3 "
        "| masked sum, 1 | masked sum, 3 | central, 1 | central, 3 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in draws():
        cells = [each.title, each.count, f"{each.alone:.3f}, {each.pooled:.3f}"]
        for mechanism in ("gossip", "masked", "central"):
            for epsilon in EPSILONS:
                cells.append(_share_cell(each, mechanism, epsilon))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def kept_draws_table(_results: Results) -> str:
    """What sites keep under the masked sum, their own patients, the worst site."""
    lines = [
        "| federation | kept, epsilon 1 | kept, 3 | own patients, epsilon 1 | own patients, 3 "
        "| worst site, epsilon 1 | worst site, 3 |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in draws():
        cells = [each.title]
        kept = [each.kept("masked", epsilon) for epsilon in EPSILONS]
        cells += ["not measured" if share is None else f"{share:.0%}" for share in kept]
        for value in (each.own, each.worst):
            found = [value("masked", epsilon) for epsilon in EPSILONS]
            cells += ["not measured" if gain is None else f"{gain:+.1f} points" for gain in found]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def masked_goals(_results: Results) -> str:
    """Which goals of the masked sum are met."""
    lines = ["| federation | goal, epsilon 1 / 3 | measured | met |", "|---|---|---|---|"]
    for each in draws():
        goals = MASKED_GOALS.get(each.name)
        if goals is None:
            continue
        shares = [mean(each.shares("masked", epsilon)) for epsilon in EPSILONS]
        met = [share >= goal for share, goal in zip(shares, goals, strict=True)]
        word = "yes" if all(met) else "no" if not any(met) else f"at {EPSILONS[met.index(True)]}"
        asked = " / ".join(f"{goal:.0%}" for goal in goals)
        got = " / ".join(f"{share:.1%}" for share in shares)
        lines.append(f"| {each.title} | {asked} | {got} | {word} |")
    return "\n".join(lines)


def _share_cell(each: Draws, mechanism: str, epsilon: int) -> str:
    if not each.has(mechanism, epsilon):
        return "not measured"
    shares = each.shares(mechanism, epsilon)
    text = f"{mean(shares):.0%}"
    if len(shares) >= ENOUGH:
        half = _T[len(shares) - 1] * stdev(shares) / math.sqrt(len(shares))
        text += f" ({mean(shares) - half:.0%} to {mean(shares) + half:.0%})"
    return f"{text}, one run \N{PLUS-MINUS SIGN} {each.spread_of_runs(mechanism, epsilon):.0%}"


def _of_sites(scores: Sequence[Sequence[float]]) -> float:
    """The mean over sites of the scores on the merged test part."""
    return mean(merged for merged, _ in scores)


def _of_own(scores: Sequence[Sequence[float | None]]) -> list[float]:
    """The scores on the sites' own test parts, where one is defined: a part may be of one class."""
    return [own for _, own in scores if own is not None and not math.isnan(own)]


TABLES = {
    "draws": draws_table,
    "draws-kept": kept_draws_table,
    "draws-goals": masked_goals,
    "unseen": unseen_table,
    "gains": gains_table,
    "images": images_table,
    "own": own_table,
    "goals": goals_sentences,
    "kept": kept_table,
    "accuracy": accuracy_table,
    "prediction": prediction_table,
}


def seed_means(gains: Scores) -> list[float]:
    """The mean over sites of each seed."""
    by_seed: dict[int, list[float]] = {}
    for (seed, _), gain in gains.items():
        by_seed.setdefault(seed, []).append(gain)
    return [sum(values) / len(values) for values in by_seed.values()]


def seed_interval(gains: Scores) -> tuple[float, float]:
    """The 95 % interval of the mean over seeds of each seed's mean."""
    seen = spread(seed_means(gains))
    if seen.std is None:
        return seen.mean, seen.mean
    half = _T[seen.n - 1] * seen.std / math.sqrt(seen.n)
    return seen.mean - half, seen.mean + half


def _points(gains: Scores) -> str:
    """The mean gain in points, with its interval where there are seeds enough for one, else with
    each seed's."""
    low, high = seed_interval(gains)
    mean = f"{100 * mean_of(gains):+.1f} points"
    seeds = seed_means(gains)
    if len(seeds) < ENOUGH:
        each = " and ".join(f"{100 * gain:+.1f}" for gain in seeds)
        return f"{mean} (seeds: {each})"
    return f"{mean} ({100 * low:+.1f} to {100 * high:+.1f})"


def _losing(study: Study, epsilon: int) -> str:
    losers = study.losers(epsilon)
    of = len(study.gains(epsilon))
    if not losers:
        return f"0 of {of}"
    return f"{len(losers)} of {of} (worst {100 * losers[0]:.1f})"


def _defined(scores: Scores) -> Scores:
    """The scores that are numbers: there is no AUROC where a test set has one class alone."""
    return {key: score for key, score in scores.items() if not math.isnan(score)}


def mean_of(scores: Scores) -> float:
    """The mean over sites and seeds."""
    return spread(scores.values()).mean
