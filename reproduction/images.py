"""The tables of docs/research/medical.md: the paper's medical applications, as far as they were
run, from the recorded studies alone.

``alone`` is the paper's plain one: the private model on a site's own records, for the same rounds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from proxyfl.privacy.accounting import Segment, pld_of
from proxyfl.privacy.guarantee import Unit, shown
from proxyfl.privacy.persons import person_epsilon
from proxyfl.records.answers import spread
from reproduction.catalogue import HOME, IMAGES, RESULTS
from reproduction.page import core_hours, evidence, filled, markdown, plus_minus
from reproduction.records import Group, Record, Scores
from reproduction.series import (
    ALONE,
    AVGPUSH,
    FEDAVG,
    FEDAVG_TRAINED,
    FML,
    FML_PROXY,
    MODELS,
    OF_THE_PAPER,
    PROXYFL,
    PROXYFL_PROXY,
    Model,
    Results,
)
from reproduction.statements import (
    P_CLEAR,
    Row,
    Statement,
    beyond_chance,
    difference,
    higher,
    lower,
)

PAGE = HOME / "docs" / "research" / "medical.md"
ENDOSCOPY = ("kvasir",)
HISTOPATHOLOGY = ("histopathology", "slides")
"""The studies that the paper's statements are about; comparisons in others are shown and do not
count."""
KVASIR_CLASSES = 8
SHARE = 0.5
"""A hub's model learns little if it gains less than this part of what its decentralized counterpart
gains over chance."""
FML_TRAINED = Model("FML proxy before the exchange", "fml", "proxy")
COUNTERPARTS = (
    (FEDAVG, AVGPUSH, True),
    (FML_PROXY, PROXYFL_PROXY, True),
    (FEDAVG_TRAINED, AVGPUSH, False),
    (FML_TRAINED, PROXYFL_PROXY, False),
)
"""A hub's model, its decentralized counterpart, and whether it is scored as it leaves the hub,
which is what counts; before the exchange it is as somebody's data have skewed it."""
IN_THE_TABLE = tuple(model for model in OF_THE_PAPER if model is not FML_PROXY)
"""The paper's table of histopathology has FML's private models, not its proxy."""
ABOVE = "higher mean at the end; beside it, after how many of the scored rounds"


@dataclass(frozen=True)
class Site:
    """A site of BreaKHis as ``breakhis_sites.py`` makes it, seed 0: what it trains on."""

    name: str
    images: int
    patients: int
    most_of_one: int


SITES = (
    Site("site-0", 304, 14, 56),
    Site("site-1", 349, 17, 35),
    Site("site-2", 369, 18, 33),
    Site("site-3", 315, 16, 35),
)
BATCH, NOISE, EPOCHS, DELTA = 32, 1.4, 30, 1e-5
"""The paper's for histopathology; a test compares them with the experiment's file."""
PATIENTS_A_BATCH = 2
"""With the patient as the unit: about as many images as a batch of the paper's."""


def write() -> None:
    """Make the page's tables anew."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(filled(text, Results(RESULTS), TABLES), encoding="utf-8")


def recorded(results: Results) -> dict[str, Record]:
    """The studies of which there is a record."""
    return {
        name: results.record(study.name)
        for name, study in IMAGES.items()
        if results.has(study.name)
    }


@dataclass(frozen=True)
class Part:
    """A study under one of its settings: what can be compared."""

    study: str
    record: Record
    groups: Sequence[Group]

    @property
    def name(self) -> str:
        """The study, and what varies in it."""
        varies = [str(value) for value in self.groups[0].settings.values()]
        return ", ".join([self.study, *varies]).removesuffix(".store")

    @property
    def last_round(self) -> int:
        """The last number of rounds after which every model was scored."""
        return max(set.intersection(*(set(group.rounds) for group in self.groups)))

    @property
    def far(self) -> str:
        """How far it was run."""
        seeds = min(len(group.seeds) for group in self.groups)
        counted = "1 seed" if seeds == 1 else f"{seeds} seeds"
        return f"{self.last_round} of {self.record.rounds} rounds, {counted}"

    @property
    def protects(self) -> str:
        """What is to be said of epsilon where it is not about one image."""
        is_group = self.record.base.get("privacy.unit") == Unit.GROUP
        return ", per person" if is_group else ""

    @property
    def is_early(self) -> bool:
        """True if too few rounds were done to judge anything by them."""
        return self.record.is_early(self.last_round)

    def group(self, model: Model) -> Group | None:
        """The model's scores, if it was run."""
        for group in self.groups:
            if (group.method, group.role) == (model.method, model.role):
                return group
        return None

    def scores(self, model: Model) -> Scores:
        """The model's accuracies after the last round; none if it was not run."""
        group = self.group(model)
        return {} if group is None else group.at(self.last_round)

    def gains(self, model: Model) -> Scores:
        """What the model's accuracies are above chance on Kvasir's classes."""
        chance = 1 / KVASIR_CLASSES
        return {key: score - chance for key, score in self.scores(model).items()}

    def means(self, model: Model) -> dict[int, float]:
        """The model's mean accuracy after each round in which it was scored, to the last."""
        group = self.group(model)
        if group is None:
            return {}
        scored = [done for done in group.rounds if done <= self.last_round]
        return {done: spread(group.at(done).values()).mean for done in scored}

    def times_above(self, ours: Model, theirs: Model) -> list[bool]:
        """Whether the mean of ``ours`` is the higher one, round by round where both were scored."""
        mine, others = self.means(ours), self.means(theirs)
        return [mine[done] > others[done] for done in mine if done in others]

    def best_before_last(self, model: Model) -> tuple[int, Scores] | None:
        """The round before the last with the best mean, and its scores; None if there is none."""
        group, means = self.group(model), self.means(model)
        means.pop(self.last_round, None)
        if group is None or not means:
            return None
        best_round = max(means, key=means.__getitem__)
        return best_round, group.at(best_round)


def parts(results: Results) -> list[Part]:
    """The recorded studies, each under each of its settings."""
    found = []
    for name, record in recorded(results).items():
        by_settings: dict[str, list[Group]] = {}
        for group in record.groups:
            by_settings.setdefault(str(dict(group.settings)), []).append(group)
        found += [Part(name, record, groups) for groups in by_settings.values()]
    return found


def overview(results: Results) -> str:
    """How far each study was run."""
    found = recorded(results)
    rows = []
    for name, study in IMAGES.items():
        link = f"[{name}](../../experiments/images/{name}.toml)"
        if name not in found:
            rows.append([link, study.title, study.place, "not run", "", "", ""])
            continue
        record = found[name]
        done = {group.rounds[-1] for group in record.groups}
        seeds = {len(group.seeds) for group in record.groups}
        methods = {group.method for group in record.groups}
        rows.append(
            [
                link,
                study.title,
                study.place,
                f"{_range(done)} of {record.rounds}",
                f"{_range(seeds)} of {len(record.seeds)}",
                f"{len(methods)}",
                f"{core_hours(record):.2f}",
            ]
        )
    heads = ["experiment", "data", "in the paper", "rounds", "seeds", "methods"]
    heads.append("core-hours")
    return markdown(heads, rows)


def accuracies(results: Results) -> str:
    """Accuracy, macro-accuracy, AUROC and epsilon of every model in every recorded study."""
    rows = []
    for part in parts(results):
        last = part.last_round
        for model in MODELS:
            group = part.group(model)
            if group is None:
                continue
            means = [
                f"{spread(group.at(last, measure).values()).mean:.3f}"
                for measure in ("macro_accuracy", "auroc")
            ]
            spent = group.epsilon_at(last)
            cost = "none"
            if spent is not None:
                cost = f"{shown(spent, 1)} {group.kind}{part.protects}"
            scored = plus_minus(group.at(last))
            rows.append([part.name, model.name, f"{last}", scored, *means, cost])
    heads = ["study", "model", "rounds", "accuracy", "macro-accuracy", "AUROC"]
    return markdown([*heads, "epsilon"], rows)


def privacy(_results: Results) -> str:
    """What thirty epochs of the histopathology setting cost one image, and one patient."""
    rows = []
    for site in SITES:
        of_images = _epochs(BATCH, site.images)
        of_patients = _epochs(PATIENTS_A_BATCH, site.patients)
        image = pld_of([of_images], DELTA)
        patient = person_epsilon(of_images, site.most_of_one, DELTA)
        as_unit = pld_of([of_patients], DELTA)
        rows.append(
            [
                site.name,
                f"{site.images}",
                f"{site.patients}",
                f"{site.most_of_one}",
                f"{shown(image, 2)} conditional",
                f"{shown(patient, 0)} conditional",
                f"{shown(as_unit, 2)} conditional",
            ]
        )
    heads = [
        "site",
        "training images",
        "patients",
        "most of one patient",
        "epsilon per image",
        "epsilon per patient",
        "with the patient as the unit",
    ]
    return markdown(heads, rows)


def _epochs(batch: int, size: int) -> Segment:
    """All steps of the paper's epochs over so many images, or patients."""
    return Segment(batch / size, NOISE, EPOCHS * (size // batch))


def little(results: Results) -> Statement:
    """Whether a hub's models learn little, "as opposed to their decentralized counterparts"."""
    rows: list[Row] = []
    for part in parts(results):
        if not part.study.startswith("kvasir"):
            continue
        about = part.study in ENDOSCOPY and not part.is_early
        for hub, counterpart, scored_at_hub in COUNTERPARTS:
            gained = part.gains(hub)
            half = {key: SHARE * gain for key, gain in part.gains(counterpart).items()}
            if not gained or not half:
                continue
            against = f"{hub.name} against half of {counterpart.name}"
            counts = about and scored_at_hub
            rows.append(difference(part.name, against, gained, half, lower, counts=counts))
    return Statement(
        "little",
        "Endoscopy: a hub's models (FedAvg, FML's proxy) learn little under DP, unlike AvgPush and "
        "ProxyFL's proxies",
        "gains over chance less than half of what its decentralized counterpart gains",
        rows,
    )


def above_fml(results: Results) -> Statement:
    """Whether ProxyFL's private models are above FML's on Kvasir, "consistently ... during
    training"."""
    return Statement(
        "fml",
        "Endoscopy: ProxyFL's private models are above FML's",
        ABOVE,
        _above(results, (FML,), ENDOSCOPY),
    )


def best(results: Results) -> Statement:
    """Whether ProxyFL's private models are above every other method's but Joint's, on tissue, as in
    the paper's table of final performance."""
    return Statement(
        "best",
        "Histopathology: ProxyFL's private models are above every other method but Joint",
        ABOVE,
        _above(results, IN_THE_TABLE, HISTOPATHOLOGY),
    )


def peaks(results: Results) -> Statement:
    """Whether "FML's performance peaks early and begins to degrade, while ProxyFL continues to
    improve marginally to the end of training"."""
    rows = []
    for part in parts(results):
        counts = part.study in HISTOPATHOLOGY and not part.is_early
        for model, rule in ((FML, lower), (PROXYFL, higher)):
            before = part.best_before_last(model)
            if before is None:
                continue
            best_round, theirs = before
            against = f"{model.name}, last against its best before, round {best_round}"
            ours = part.scores(model)
            rows.append(difference(part.name, against, ours, theirs, rule, counts=counts))
    return Statement(
        "peaks",
        "Histopathology: FML's private models peak early, ProxyFL's improve to the end",
        "FML's last mean is below its best before, ProxyFL's above",
        rows,
    )


def _above(results: Results, models: Sequence[Model], counted: Sequence[str]) -> list[Row]:
    """ProxyFL's private models against ``models``, and against ``alone``, which the paper does not
    have and which does not count."""
    rows = []
    for part in parts(results):
        ours = part.scores(PROXYFL)
        for model in (*models, ALONE):
            theirs = part.scores(model)
            if not ours or not theirs:
                continue
            about = part.study in counted and model is not ALONE
            counts = about and not part.is_early
            ahead = part.times_above(PROXYFL, model)
            rows.append(
                difference(
                    part.name,
                    model.name,
                    ours,
                    theirs,
                    higher,
                    counts=counts,
                    more=f"{sum(ahead)}/{len(ahead)}",
                )
            )
    return rows


STATEMENTS = (
    (little, ENDOSCOPY),
    (above_fml, ENDOSCOPY),
    (best, HISTOPATHOLOGY),
    (peaks, HISTOPATHOLOGY),
)
"""Each with the studies that it is about."""


def verdicts(results: Results) -> str:
    """Each statement in each study that it is about, what was found, and how many of the
    comparisons that meet it chance would hardly give."""
    rows = []
    for make, studies in STATEMENTS:
        statement = make(results)
        for part in parts(results):
            own = [row for row in statement.rows if row.where == part.name]
            counting = [row for row in own if row.counts]
            others = [row for row in own if row.against != ALONE.name]
            judged = counting or others
            met = [row for row in judged if row.met]
            clear = [row for row in met if beyond_chance(row.comparison)]
            if part.study in studies and judged:
                verdict = replace(statement, rows=own).cautious_verdict
                if part.is_early:
                    verdict = "too early to say"
                count = f"{len(met)} of {len(judged)} comparisons"
                cells = [statement.claim, part.name, part.far, count]
                rows.append([*cells, f"**{verdict}**", f"{len(clear)}"])
    heads = ["the paper says", "study", "how far", "met by", "verdict"]
    return markdown([*heads, f"of those met, p < {P_CLEAR} over clients"], rows)


def _evidence(statement: Statement) -> str:
    return evidence(statement, statement.cautious_verdict)


TABLES: Mapping[str, Callable[[Results], str]] = {
    "overview": overview,
    "verdicts": verdicts,
    "accuracies": accuracies,
    "privacy": privacy,
    "statement-little": lambda results: _evidence(little(results)),
    "statement-fml": lambda results: _evidence(above_fml(results)),
    "statement-best": lambda results: _evidence(best(results)),
    "statement-peaks": lambda results: _evidence(peaks(results)),
}


def _range(values: set[int]) -> str:
    least, most = min(values), max(values)
    return str(most) if least == most else f"{least} to {most}"
