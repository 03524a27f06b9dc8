"""Training without DP, through the same three calls as ``DPSGD``: for models that are never shared,
and for ablations.

It samples as DP-SGD does (Poisson, from the client's own stream), so that comparing the two
compares clipping and noise and nothing else. It promises no privacy, and its ledger says so (kind
``none``)."""

import torch
from torch import Tensor, nn

from proxyfl._validate import number
from proxyfl.errors import PrivacyError
from proxyfl.losses import blended_targets, cross_entropy
from proxyfl.privacy.dpsgd import Batch
from proxyfl.privacy.guarantee import Kind
from proxyfl.privacy.ledger import Ledger
from proxyfl.privacy.sampling import poisson, rate_for
from proxyfl.seeds import Randomness


class PlainSGD:
    """Ordinary training of one model on one client's data."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        x: Tensor,
        y: Tensor,
        *,
        classes: int,
        batch_size: int,
        teacher_weight: float,
        ledger: Ledger,
        batches: Randomness,
    ) -> None:
        if ledger.kind is not Kind.NONE:
            raise PrivacyError(
                f"Training without DP has no guarantee to record; open its ledger with Kind.NONE, "
                f"not {ledger.kind}."
            )
        self.teacher_weight = number("beta", teacher_weight, at_least=0, at_most=1)
        self.model, self.optimizer, self.ledger = model, optimizer, ledger
        self.sampling_rate, self.batch_size = rate_for(batch_size, len(x)), batch_size
        self._x, self._y, self._classes, self._batches = x, y, classes, batches
        self._drawn = 0
        batch_norm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
        self._smallest_batch = (
            2 if batch_norm else 1
        )  # a BatchNorm cannot train on a single example

    def begin_round(self, round: int, steps: int) -> None:
        """Nothing to put on record."""

    def draw(self) -> Batch:
        """The next Poisson sample."""
        chosen = poisson(len(self._x), self.sampling_rate, self._batches).to(self._x.device)
        self._drawn += 1
        return Batch(self._x.index_select(0, chosen), self._y.index_select(0, chosen), self._drawn)

    def step(self, batch: Batch, teacher_logits: Tensor | None = None) -> float | None:
        """One step on the batch's mean loss, which it returns; a batch too small to learn from
        changes nothing."""
        if len(batch) < self._smallest_batch:
            return None
        self.model.train()
        targets = blended_targets(batch.y, self._classes, teacher_logits, self.teacher_weight)
        loss = cross_entropy(self.model(batch.x), targets).mean()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves backward untyped
        self.optimizer.step()
        return float(loss.detach())

    def state(self) -> dict[str, Tensor | None]:
        """The random stream, for a checkpoint."""
        return {"batches": self._batches.state()}

    def restore(self, state: dict[str, Tensor | None]) -> None:
        """Continue from a checkpoint's ``state``."""
        self._batches.restore(state.get("batches"))
