r"""Two neighbouring datasets, many trainings of each: what their releases show by themselves.

If a release falls into a set S with probability a on one dataset and b on its neighbour, then
(epsilon, delta)-DP demands a <= e^epsilon b + delta. Bounds on a and b (Clopper and Pearson, half
of the error each) bound epsilon from below, whatever the mechanism.

``leak`` uses it on a pair that is made to show why epsilon is only *conditional* for beta > 0. All
records but one have the input e and the label 0. The one in question has the input 100,000 e and
the label 1. Once the private model, trained without DP, has met it, it says 1 for every record, and
with beta > 0 teaches the proxy so: one record turns the gradients of all. With beta = 0 the record
adds one clipped gradient to the proxy, and no more.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy import stats
from torch import nn

from benchmarks.checks import whole, within
from proxyfl.data.examples import InMemory
from proxyfl.federation.assembly import Part, Parts
from proxyfl.federation.methods import METHODS
from proxyfl.parts import Client, assemble, load_flat, seeded, size
from proxyfl.settings import Input, Learning, Local, Model, Optimizer, Privacy, Study

RECORDS = 100
"""Records that both datasets have."""
RATE = 0.5
NOISE = 10.0
STEPS = 12
DELTA = 1e-3
_WIDTH = 4
_FAR = 1e5


@dataclass(frozen=True)
class Trials:
    """Counts of the event in ``trials`` trainings of each dataset."""

    trials: int
    with_record: int
    without_record: int


@dataclass(frozen=True)
class Leak:
    """The claimed epsilon at ``DELTA``, the trials, and the bound that they give."""

    claimed: float
    trials: Trials
    lower_bound: float


def lower_bound(trials: Trials, *, delta: float, confidence: float) -> float:
    """The largest epsilon that the trials contradict in one or the other direction."""
    within("delta", delta, 0, 1)
    within("confidence", confidence, 0, 1)
    # Two directions, two probabilities in each.
    error = (1 - confidence) / 4
    found = 0.0
    pairs = [
        (trials.with_record, trials.without_record),
        (trials.without_record, trials.with_record),
    ]
    for often, seldom in pairs:
        at_least = _at_least(often, trials.trials, error)
        at_most = 1 - _at_least(trials.trials - seldom, trials.trials, error)
        if at_least > delta:
            found = max(found, math.log((at_least - delta) / at_most))
    return found


def leak(
    beta: float,
    *,
    trials: int = 20,
    confidence: float = 0.95,
    progress: Callable[[int], None] = lambda _trainings: None,
) -> Leak:
    """Train on both datasets ``trials`` times each; the event: the proxy says 1 for e."""
    whole("trials", trials)
    counts = {True: 0, False: 0}
    claimed = 0.0
    for seed in range(trials):
        for present, shift in ((True, 0), (False, trials)):
            client = _client(beta, present=present, seed=seed + shift)
            client.learner.train(0, STEPS)
            claimed = client.ledger.epsilon().best
            counts[present] += _says_one(client.learner.shared)
            progress(1)
    found = Trials(trials, with_record=counts[True], without_record=counts[False])
    return Leak(claimed, found, lower_bound(found, delta=DELTA, confidence=confidence))


def _at_least(successes: int, trials: int, error: float) -> float:
    """Clopper and Pearson's lower limit of a probability."""
    if successes == 0:
        return 0.0
    return float(stats.beta.ppf(error, successes, trials - successes + 1))


def _client(beta: float, *, present: bool, seed: int) -> Client:
    """A client of the federation's own making, with or without the record in question."""
    x = torch.zeros(RECORDS + present, _WIDTH)
    x[:, 0] = 1.0
    labels = torch.zeros(RECORDS + present, dtype=torch.int64)
    if present:
        x[-1] *= _FAR
        labels[-1] = 1
    local = Local(
        "client-0",
        model=Model(residual=False),
        learning=Learning(
            alpha=0.0,
            beta=beta,
            teacher="current",
            batch_size=round(RATE * RECORDS),
            steps_per_round=STEPS,
        ),
        privacy=Privacy(noise_multiplier=NOISE, sampling_rate=RATE, delta=DELTA),
    )
    study = Study("neighbours", input=Input((_WIDTH,), ("0", "1")))
    parts = Parts(Part(_linear(), Optimizer("sgd", 1.0)), Part(_linear(), Optimizer("sgd", 1.0)))
    streams = seeded(seed, 0)
    method = METHODS["proxyfl"]
    return assemble(study, local, InMemory(x, labels), method, streams, parts=parts)


def _linear() -> nn.Module:
    model = nn.Linear(_WIDTH, 2)
    load_flat(model, torch.zeros(size(model)))
    return model


def _says_one(model: nn.Module) -> bool:
    record = torch.zeros(1, _WIDTH)
    record[0, 0] = 1.0
    with torch.no_grad():
        logits = model(record)[0]
    return bool(logits[1] > logits[0])
