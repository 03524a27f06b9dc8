"""One client's round as one flat record: the only home of its keys.

    private_accuracy     ROLE_MEASURE: a score; the measures are those of ``proxyfl.measures``
    private_own_auroc    ROLE_own_MEASURE: the score on the test part of the client's own site
    private_resampled    ROLE_resampled: the run's measure on bootstrap samples of persons, in the
                         last row; equal places are equal samples, for every client and method
    private_calibration  ROLE_calibration: [mean probability, share that came true, examples]
    epsilon_pld          what the client had spent by then, per accountant; null where unbounded
    seconds_training     how long the round's parts took
    confusion            role -> counts; only in a whole record, as summaries and workers need it

Guarantees:
    * every row that holds an epsilon holds its kind;
    * a row of another release is read as far as it goes: a measure that is missing is None, and
      one that this release does not know is left alone.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from proxyfl._files import finite
from proxyfl.federation.methods import Role
from proxyfl.measures import MEASURES
from proxyfl.privacy.guarantee import Epsilon, Kind, Relation, Unit

if TYPE_CHECKING:
    from proxyfl.federation.rounds import ClientRound

Row = dict[str, Any]

ROLES: tuple[Role, ...] = ("private", "proxy", "received")
SECONDS = ("training", "evaluation", "exchange")
TRAFFIC = ("bytes_sent", "bytes_received", "messages_sent", "messages_received")

_PLAIN = ("round", "client", "name", "present", "expected", "steps")


def row_of(
    method: str,
    record: "ClientRound",
    *,
    whole: bool = False,
) -> Row:
    """The row of a client's round; the whole of it, with confusion counts, is what ``record_of``
    reads back."""
    row: Row = {"method": method}
    for key in _PLAIN:
        row[key] = getattr(record, key)
    row["private_loss"] = record.losses.private
    row["proxy_loss"] = record.losses.proxy
    for role, found in record.scores.items():
        for measure, value in found.values.items():
            row[f"{role}_{measure}"] = value
        for measure, value in found.own.items():
            row[f"{role}_own_{measure}"] = value
        if found.resampled:
            row[f"{role}_resampled"] = [
                _rounded(value) for value in found.resampled
            ]
            row[f"{role}_calibration"] = [
                list(point) for point in found.calibration
            ]
    row["epsilon_rdp"] = record.epsilon.rdp
    row["epsilon_pld"] = record.epsilon.pld
    row["delta"] = record.epsilon.delta
    row["epsilon_kind"] = str(record.epsilon.kind)
    row["epsilon_relation"] = str(record.epsilon.relation)
    row["epsilon_unit"] = str(record.epsilon.unit)
    row["weight"] = record.weight
    for key in TRAFFIC:
        row[key] = getattr(record.traffic, key)
    for part, seconds in record.seconds.items():
        row[f"seconds_{part}"] = seconds
    row["left"] = record.left
    if whole:
        row["confusion"] = confusion_of(record)
    plain: Row = finite(row)
    return plain


def confusion_of(record: "ClientRound") -> dict[str, list[list[int]]]:
    """Per role, the counts of a client's round."""
    return {role: found.confusion.tolist() for role, found in record.scores.items()}


def record_of(row: Mapping[str, Any]) -> "ClientRound":
    """The client's round that ``row_of(..., whole=True)`` wrote down."""
    import torch

    from proxyfl.federation.exchange import Traffic
    from proxyfl.federation.learners import Losses
    from proxyfl.federation.metrics import Score
    from proxyfl.federation.rounds import ClientRound

    scores: dict[Role, Score] = {}
    for role, counts in row["confusion"].items():
        values = {measure: row.get(f"{role}_{measure}") for measure in MEASURES}
        own = {
            m: row[f"{role}_own_{m}"] for m in MEASURES if f"{role}_own_{m}" in row
        }
        curve = [tuple(point) for point in row.get(f"{role}_calibration", ())]
        resampled = row.get(f"{role}_resampled", ())
        scores[role] = Score(torch.tensor(counts), values, own, curve, resampled)
    return ClientRound(
        **{key: row[key] for key in _PLAIN},
        losses=Losses(row["private_loss"], row["proxy_loss"]),
        scores=scores,
        epsilon=epsilon(row),
        traffic=Traffic(**{key: row[key] for key in TRAFFIC}),
        weight=row["weight"],
        seconds={
            part: row[f"seconds_{part}"]
            for part in SECONDS
            if f"seconds_{part}" in row
        },
        left=row["left"],
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def score(
    row: Mapping[str, Any],
    role: str,
    measure: str,
) -> float | None:
    """The score of the model in ``role``; None if it was not scored, or not in this measure."""
    value: float | None = row.get(f"{role}_{measure}")
    return value


def roles(row: Mapping[str, Any]) -> list[Role]:
    """The models that were scored in the round."""
    return [
        role
        for role in ROLES
        if any(f"{role}_{measure}" in row for measure in MEASURES)
    ]


def epsilon(row: Mapping[str, Any]) -> Epsilon:
    """The client's epsilon at the end of the round; infinite where the row has no bound."""
    bounds = {}
    for accountant in ("rdp", "pld"):
        value = row.get(f"epsilon_{accountant}")
        bounds[accountant] = math.inf if value is None else float(value)
    return Epsilon(
        **bounds,
        delta=row.get("delta") or 0.0,
        kind=Kind(row.get("epsilon_kind", "none")),
        relation=Relation(row.get("epsilon_relation", "zero-out")),
        unit=Unit(row.get("epsilon_unit", "record")),
    )
