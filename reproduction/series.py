"""The models that are compared, their names in figures and tables, and how two of them are
compared."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxyfl.errors import RunError
from proxyfl.federation.methods import METHODS
from proxyfl.sweeps import statistics
from proxyfl.sweeps.statistics import Comparison, K
from reproduction import records
from reproduction.records import Record, Scores


@dataclass(frozen=True)
class Model:
    """One kind of model of one method."""

    name: str
    method: str
    role: str

    @property
    def pooled(self) -> bool:
        return METHODS[self.method].pooled


PROXYFL, PROXYFL_PROXY = (
    Model("ProxyFL private", "proxyfl", "private"),
    Model("ProxyFL proxy", "proxyfl", "proxy"),
)
FML, FML_PROXY = (Model("FML private", "fml", "private"), Model("FML proxy", "fml", "received"))
AVGPUSH, FEDAVG = (Model("AvgPush", "avgpush", "proxy"), Model("FedAvg", "fedavg", "received"))
FEDAVG_TRAINED = Model("FedAvg before the exchange", "fedavg", "proxy")
"""As the released code scores it: every client's model after local training."""
CWT, REGULAR = Model("CWT", "cwt", "proxy"), Model("Regular", "regular", "proxy")
JOINT, ALONE = Model("Joint", "joint", "proxy"), Model("alone", "alone", "private")

MODELS = (PROXYFL, PROXYFL_PROXY, FML, FML_PROXY, AVGPUSH, FEDAVG, CWT, REGULAR, JOINT, ALONE)
"""A hub's model is scored as it leaves the hub, all others after local training."""

OF_THE_PAPER = (FML, FML_PROXY, AVGPUSH, FEDAVG, CWT, REGULAR)
"""What the paper says ProxyFL's private models are better than."""


@dataclass(frozen=True)
class Results:
    """The recorded experiments of a folder, read when they are asked for."""

    folder: Path

    def record(self, name: str) -> Record:
        return records.read(self.folder / f"{name}.jsonl")

    def has(self, name: str) -> bool:
        return (self.folder / f"{name}.jsonl").is_file()


def scores(
    record: Record, model: Model, round: int, measure: str = "accuracy", **settings: Any
) -> Scores:
    """The model's score for each seed and client after ``round`` rounds."""
    return record.group(model.method, model.role, **settings).at(round, measure)


def common_round(*found: Record) -> int:
    """The last number of rounds after which all models of all the records were scored."""
    shared = set.intersection(*(set(group.rounds) for record in found for group in record.groups))
    if not shared:
        raise RunError(
            f"{', '.join(record.experiment for record in found)}: no round at which all were "
            f"scored."
        )
    return max(shared)


def compare(
    ours: Scores, theirs: Scores, *, ours_pooled: bool = False, theirs_pooled: bool = False
) -> Comparison:
    """Ours minus theirs, paired by seed and client."""
    return statistics.compare(
        differences(ours, theirs, ours_pooled=ours_pooled, theirs_pooled=theirs_pooled)
    )


def differences(
    ours: Mapping[tuple[K, int], float],
    theirs: Mapping[tuple[K, int], float],
    *,
    ours_pooled: bool = False,
    theirs_pooled: bool = False,
) -> dict[K, list[float]]:
    """Ours minus theirs for each seed, over the clients that both have; keys are (seed, client).

    A pooled method has one model for everybody: it is paired with each client of its seed.
    """
    if ours_pooled and not theirs_pooled:
        flipped = differences(theirs, ours, theirs_pooled=True)
        return {seed: [-d for d in found] for seed, found in flipped.items()}
    if theirs_pooled and not ours_pooled:
        for_all = {seed: value for (seed, _), value in theirs.items()}
        theirs = {key: for_all[key[0]] for key in ours if key[0] in for_all}
    found: dict[K, list[float]] = defaultdict(list)
    for key, value in ours.items():
        if key in theirs:
            found[key[0]].append(value - theirs[key])
    return dict(found)
