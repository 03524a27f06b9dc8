"""One client's round as one flat record: the only home of its keys.

    private_accuracy     ROLE_MEASURE: a score; the measures are those of ``proxyfl.measures``
    private_intervals    ROLE_intervals: measure -> [low, high], the middle 95 % over bootstrap
                         samples of persons; in the last row only, like the next two
    private_resampled    ROLE_resampled: the run's measure on each sample; equal places are equal
                         samples, for every client and method
    private_calibration  ROLE_calibration: [mean probability, share that came true, examples]; of a
                         regression [mean predicted value, mean value, examples]
    private_roc          ROLE_roc: [false-positive rate, true-positive rate], with two classes
    private_probabilities  what the probabilities are for, where a balance has moved them
    private_survival     ROLE_survival: [time, mean predicted survival, Kaplan-Meier's], for a time
                         to an event
    private_risk_groups  ROLE_risk_groups: thirds by predicted risk, each with its name, examples,
                         events, and points [time, mean predicted survival, Kaplan-Meier's, and the
                         ends of its 95 % interval], likewise
    private_own_...      ROLE_own_...: all of these on the client's own test part
    epsilon_pld          what the client had spent by then, per accountant; null where unbounded
    epsilon_all_others   the same if all other clients collude, besides the colluders and the quorum
                         of a masked sum; absent where epsilon_pld holds against all others
    seconds_training     how long the round's parts took
    folds                log-losses on the client's own examples, out of fold: of the best model of
                         its own, and of the proxy by itself; absent where nothing was chosen
    confusion            role -> confusion counts; ROLE_own on the client's own test part. Absent
                         where the round was not scored

Guarantees:
    * every row that holds an epsilon holds its kind;
    * a row of another release is read as far as it goes: a measure that is missing is None, and
      one that this release does not know is left alone.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from proxyfl._files import finite
from proxyfl.federation.methods import Role
from proxyfl.measures import MEASURES, OWN, Interval, names
from proxyfl.privacy.coalition import Coalition
from proxyfl.privacy.guarantee import Epsilon, Kind, Relation, Unit
from proxyfl.tasks import CLASSIFICATION

if TYPE_CHECKING:
    from proxyfl.federation.metrics import Score
    from proxyfl.federation.rounds import ClientRound
    from proxyfl.outcomes import RiskGroup

Row = dict[str, Any]

ROLES: tuple[Role, ...] = ("private", "proxy", "received")
SECONDS = ("training", "evaluation", "exchange")
TRAFFIC = ("bytes_sent", "bytes_received", "messages_sent", "messages_received")

_PLAIN = ("round", "client", "name", "present", "expected", "steps")


def row_of(method: str, record: "ClientRound") -> Row:
    """Returns the row of a client's round."""
    row: Row = {"method": method}
    for key in _PLAIN:
        row[key] = getattr(record, key)
    row["private_loss"] = record.losses.private
    row["proxy_loss"] = record.losses.proxy
    for role, score in record.scores.items():
        row |= score_keys(role, score)
        if score.own is not None:
            row |= score_keys(own_of(role), score.own)
    spent = record.epsilon
    row["epsilon_rdp"] = spent.rdp
    row["epsilon_pld"] = spent.pld
    row["delta"] = spent.delta
    row["epsilon_kind"] = str(spent.kind)
    row["epsilon_relation"] = str(spent.relation)
    row["epsilon_unit"] = str(spent.unit)
    if spent.coalition is not None:
        row["epsilon_all_others"] = spent.against_all
        row |= asdict(spent.coalition)
    row["weight"] = record.weight
    for key in TRAFFIC:
        row[key] = getattr(record.traffic, key)
    for part, seconds in record.seconds.items():
        row[f"seconds_{part}"] = seconds
    row["left"] = record.left
    if record.keeps is not None:
        row["keeps"] = record.keeps
    if record.folds is not None:
        row["folds"] = list(record.folds)
    if record.scores:
        counts = _confusion(record)
        if counts:
            row["confusion"] = counts
    plain: Row = finite(row)
    return plain


def own_of(role: str) -> str:
    """The prefix of the role in keys of scores on the client's own test part."""
    return f"{role}_{OWN}".rstrip("_")


def score_keys(prefix: str, score: "Score") -> Row:
    """A score as entries of a row."""
    row: Row = {}
    for measure, value in score.values.items():
        row[f"{prefix}_{measure}"] = value
    if score.probabilities:
        row[f"{prefix}_probabilities"] = score.probabilities
    if score.resampled:
        bounds = {}
        for measure, interval in score.intervals.items():
            bounds[measure] = interval and [_round(end) for end in interval]
        row[f"{prefix}_intervals"] = bounds
        row[f"{prefix}_resampled"] = [_round(value) for value in score.resampled]
        if score.confusion is not None or score.calibration:
            row[f"{prefix}_calibration"] = [list(point) for point in score.calibration]
        if score.survival:
            points = [[_round(value) for value in point] for point in score.survival]
            row[f"{prefix}_survival"] = points
        if score.risk_groups:
            row[f"{prefix}_risk_groups"] = [_group_of(group) for group in score.risk_groups]
        if score.roc:
            row[f"{prefix}_roc"] = [list(point) for point in score.roc]
    return row


def _group_of(group: "RiskGroup") -> Row:
    points = [[_round(value) for value in point] for point in group.points]
    return asdict(group) | {"points": points}


def _confusion(record: "ClientRound") -> dict[str, list[list[int]]]:
    counts = {}
    for role, score in record.scores.items():
        if score.confusion is not None:
            counts[str(role)] = score.confusion.tolist()
        if score.own is not None and score.own.confusion is not None:
            counts[own_of(role)] = score.own.confusion.tolist()
    return counts


def values_of(row: Row, prefix: str) -> dict[str, float | None]:
    """Measure -> score, under a role or, for the own test part, ``own_of`` it."""
    values = {}
    for measure, known in MEASURES.items():
        key = f"{prefix}_{measure}"
        if key in row or CLASSIFICATION in known.tasks:
            values[measure] = row.get(key)
    return values


def intervals_of(row: Row, prefix: str) -> dict[str, Interval | None]:
    """Measure -> its interval, likewise."""
    intervals = dict(row.get(f"{prefix}_intervals", {}))
    for measure, ends in intervals.items():
        intervals[measure] = ends and tuple(ends)
    return intervals


def calibration_of(row: Row, prefix: str) -> list[Any]:
    """The points of the calibration curve, likewise."""
    return [tuple(point) for point in row.get(f"{prefix}_calibration", ())]


def roc_of(row: Row, prefix: str) -> list[Any]:
    """The points of the ROC curve, likewise."""
    return [tuple(point) for point in row.get(f"{prefix}_roc", ())]


def probabilities_of(row: Row, prefix: str) -> str:
    """The population that the probabilities are for, likewise; empty where no balance has moved
    them."""
    return str(row.get(f"{prefix}_probabilities", ""))


def survival_of(row: Row, prefix: str) -> list[Any]:
    """The points of the survival curves, likewise."""
    return [tuple(point) for point in row.get(f"{prefix}_survival", ())]


def risk_groups_of(row: Row, prefix: str) -> list[Row]:
    """The survival curves of thirds by predicted risk, likewise."""
    return list(row.get(f"{prefix}_risk_groups", ()))


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def score(row: Row, role: str, measure: str) -> float | None:
    """The score of the model in ``role``; None if it was not scored, or not in this measure."""
    value: float | None = row.get(f"{role}_{measure}")
    return value


def roles(row: Row) -> list[Role]:
    """The models that were scored in the round."""
    scored: list[Role] = []
    for role in ROLES:
        if any(f"{role}_{measure}" in row for measure in MEASURES):
            scored.append(role)
    return scored


def measures_in(rows: Iterable[Row]) -> list[str]:
    """The measures in which some model has a score in some row."""
    keys: set[str] = set()
    for row in rows:
        keys.update(row)
    measures = []
    for name in names():
        if any(f"{role}_{name}" in keys for role in ROLES):
            measures.append(name)
    return measures


def epsilon(row: Row) -> Epsilon:
    """The client's epsilon at the end of the round; infinite where the row has no bound."""
    coalition, all_others = None, None
    if "colluders" in row:
        coalition = Coalition(row["colluders"], row["quorum"])
        all_others = _bound(row, "all_others")
    return Epsilon(
        rdp=_bound(row, "rdp"),
        pld=_bound(row, "pld"),
        delta=row.get("delta") or 0.0,
        kind=Kind(row.get("epsilon_kind", "none")),
        relation=Relation(row.get("epsilon_relation", "zero-out")),
        unit=Unit(row.get("epsilon_unit", "record")),
        coalition=coalition,
        all_others=all_others,
    )


def _bound(row: Row, name: str) -> float:
    value = row.get(f"epsilon_{name}")
    return math.inf if value is None else float(value)
