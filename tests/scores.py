"""Scores for tests that need a client's round without training one."""

import numpy as np

from proxyfl.federation.metrics import Score, judge
from proxyfl.measures import Predictions


def score_of(confusion: list[list[int]]) -> Score:
    """The score of predictions with these counts: row i, column j is class i taken for j."""
    counts = np.array(confusion)
    labels, predicted = np.indices(counts.shape)
    repeats = counts.ravel()
    logits = np.eye(len(counts))[np.repeat(predicted.ravel(), repeats)]
    return judge(Predictions(logits, np.repeat(labels.ravel(), repeats)))
