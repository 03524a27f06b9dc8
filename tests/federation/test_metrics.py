"""Scores from counts, and an evaluation that leaves no trace."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from proxyfl.data.examples import InMemory
from proxyfl.federation import metrics as evaluation
from proxyfl.federation.metrics import evaluate, judge
from proxyfl.measures import Predictions


class Says(nn.Module):
    """Predicts the class that stands in the input, and notes its mode."""

    modes: list[bool]

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes, self.modes = classes, []

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append(self.training)
        return nn.functional.one_hot(x.view(-1).long(), self.classes).float()


def test_counts() -> None:
    """confusion[i, j] counts examples of class i taken for j; accuracies follow from it."""
    x = torch.tensor([[0.0], [1], [1], [0], [0], [0]])
    score = evaluate(Says(3), InMemory(x, torch.tensor([0, 0, 1, 0, 0, 1])))
    assert score.confusion.tolist() == [[3, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert score.accuracy == pytest.approx(4 / 6)
    assert score.macro_accuracy == pytest.approx((3 / 4 + 1 / 2) / 2)


def test_no_examples() -> None:
    """A score of nothing is zero, not a division by zero."""
    nothing = judge(Predictions(np.zeros((0, 2)), np.zeros(0, dtype=np.int64)))
    assert (nothing.accuracy, nothing.macro_accuracy) == (0, 0)
    assert nothing.values["accuracy"] is None


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_put_back(training: bool) -> None:
    """The model predicts in evaluation mode and is left in the mode it was in."""
    model = Says(2).train(training)
    evaluate(model, InMemory(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64)))
    assert model.modes == [False]
    assert model.training is training


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluated in pieces or at once: the same counts, and every example once."""
    model = nn.Linear(4, 3)
    examples = InMemory(torch.sin(torch.arange(80.0)).view(20, 4), torch.arange(20) % 3)
    whole = evaluate(model, examples)
    monkeypatch.setattr(evaluation, "CHUNK", 7)
    assert torch.equal(evaluate(model, examples).confusion, whole.confusion)
    assert int(whole.confusion.sum()) == 20


def test_nothing_is_drawn_or_learnt() -> None:
    """Evaluation moves neither the global generator nor running statistics, and keeps no graph."""
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    before, generator = model[1].running_mean.clone(), torch.get_rng_state()
    evaluate(model, InMemory(torch.ones(5, 4), torch.zeros(5, dtype=torch.int64)))
    assert torch.equal(model[1].running_mean, before)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(p.grad is None for p in model.parameters())
