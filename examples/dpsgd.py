"""DP-SGD of any PyTorch model with any per-example loss, without a federation.

    python examples/dpsgd.py

Batches and noise come from the operating system, and every step is on the ledger before it is
taken, so the printed epsilon is a real guarantee. The data here are made up.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss

from proxyfl import DP, DPSGD, InMemory
from proxyfl.errors import BudgetExhausted


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """One value per record. A mean over the batch would be refused."""
    return huber_loss(outputs.squeeze(1), targets, reduction="none")


def main(steps: int = 300, records: int = 2000) -> DPSGD:
    """Fits a length of stay to six measurements, within a budget of epsilon 2."""
    x = torch.randn(records, 6)
    days = 5 + x @ torch.tensor([2.0, -1.0, 0.5, 0.0, 0.0, 1.0]) + 0.5 * torch.randn(records)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    private = DP(clip_norm=1, noise_multiplier=1.5, budget=2.0, delta=1e-5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    trainer = DPSGD(model, optimizer, InMemory(x, days), dp=private, loss=loss, batch_size=100)
    try:
        for _ in range(10):
            losses = trainer.train(steps // 10)
            print(f"loss {losses[-1]:.3f}, {trainer.epsilon()}")
    except BudgetExhausted as stop:
        print(stop)
    print("gradients:", trainer.gradients)  # proven: the model and the loss keep records apart
    return trainer


if __name__ == "__main__":
    main()
