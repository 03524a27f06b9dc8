"""A plain regression next to ``alone``: is ``alone`` a fair opponent?

A gain over a model that was hardly trained says nothing. So each client's records are also given to
the linear estimator of the task (a logistic regression for classes and findings, ridge regression
for a number, hazards for a time to an event), at its middle penalty, and the summary has its
scores. Nothing else follows from it: it is no method, and no model of it is kept.
"""

from typing import TYPE_CHECKING

from proxyfl.models.estimators import LOGISTIC, PENALTIES, softmax_fit
from proxyfl.models.fits import fits_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from proxyfl._files import Document
    from proxyfl.data import Dataset
    from proxyfl.simulation.prepare import Prepared

MOST_INPUTS = 1000
MOST_RECORDS = 5000
MOST_CLIENTS = 32
"""Beyond these it would no longer be quick."""


def reference_scores(prepared: "Prepared") -> "dict[int, Document]":
    """Client -> measure -> score of a plain regression on its records; empty for images, and
    where it would take long."""
    from torch import nn

    from proxyfl.simulation.clients import evaluator

    config, dataset = prepared.config, prepared.dataset
    clients = prepared.clients
    if len(dataset.train.shape) != 1:
        return {}
    (inputs,) = dataset.train.shape
    largest = max(len(client) for client in clients)
    if inputs > MOST_INPUTS or largest > MOST_RECORDS or len(clients) > MOST_CLIENTS:
        return {}
    judge = evaluator(config, dataset, prepared.methods["alone"])
    scores: dict[int, Document] = {}
    for number, client in enumerate(clients):
        fitted = _plain(dataset, client.rows, config.seed)
        score = judge(nn.Sequential(nn.Flatten(), fitted), number)
        values = dict(score.values)
        if score.own is not None:
            values |= {f"own_{name}": value for name, value in score.own.values.items()}
        scores[number] = values
    return scores


def _plain(dataset: "Dataset", rows: "Tensor", seed: int) -> "nn.Module":
    """The task's linear estimator at its middle penalty, of some training examples."""
    x = dataset.train.take(rows).flatten(1).double().numpy()
    labels = dataset.train.labels[rows]
    if dataset.task.is_classification:
        middle = PENALTIES[len(PENALTIES) // 2]
        return softmax_fit(x, labels.numpy(), dataset.classes, middle)
    fits = fits_of(dataset.task)
    candidates = fits.candidates(LOGISTIC)
    return candidates[len(candidates) // 2].fit(x, fits.targets(labels), seed)
