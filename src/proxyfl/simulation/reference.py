"""A plain logistic regression next to ``alone``: is ``alone`` a fair opponent?

A gain over a model that was hardly trained says nothing. So each client's records are also given to
a logistic regression, which takes no settings, and the summary has its scores. Nothing else follows
from it: it is no method, and no model of it is kept.
"""

from typing import TYPE_CHECKING

from proxyfl.models.estimators import PENALTIES, softmax_fit

if TYPE_CHECKING:
    from proxyfl._files import Document
    from proxyfl.simulation.prepare import Prepared

MOST_INPUTS = 1000
MOST_RECORDS = 5000
MOST_CLIENTS = 32
"""Beyond these it would no longer be quick."""


def reference_scores(prepared: "Prepared") -> "dict[int, Document]":
    """Client -> measure -> score of a logistic regression on its records; empty for images, and
    where it would take long."""
    from torch import nn

    from proxyfl.simulation.clients import evaluator

    config, dataset = prepared.config, prepared.dataset
    clients = prepared.clients
    if len(dataset.train.shape) != 1 or not dataset.task.is_classification:
        return {}
    (inputs,) = dataset.train.shape
    largest = max(len(client) for client in clients)
    if inputs > MOST_INPUTS or largest > MOST_RECORDS or len(clients) > MOST_CLIENTS:
        return {}
    judge = evaluator(config, dataset, prepared.methods["alone"])
    scores: dict[int, Document] = {}
    for number, client in enumerate(clients):
        x = dataset.train.take(client.rows).flatten(1).double().numpy()
        y = dataset.train.labels[client.rows].numpy()
        middle = PENALTIES[len(PENALTIES) // 2]
        fitted = softmax_fit(x, y, dataset.classes, middle)
        score = judge(nn.Sequential(nn.Flatten(), fitted), number)
        values = dict(score.values)
        if score.own is not None:
            values |= {f"own_{name}": value for name, value in score.own.values.items()}
        scores[number] = values
    return scores
