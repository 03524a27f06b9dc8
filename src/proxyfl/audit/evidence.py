r"""Evidence: what the released proxies say about each canary and about the noise, round by round.

In a round of k steps that starts at theta_t, with c_i the clipped gradient of canary i at theta_t
in units of C, b_i its coin and z standard normal, the noisy sum that a peer recovers is

    G_t = sum_i b_i N_ti c_i + sigma sqrt(k) z,      N_ti ~ Binomial(k, q)

up to what theta moves within the round. So U_t G_t (U_t: the rows c_i) says something about the
coins, and what is left of G_t outside the span of U_t is noise and nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from proxyfl.audit.canaries import clipped_gradients
from proxyfl.audit.observe import Observation
from proxyfl.audit.undo import noisy_sums

Array = npt.NDArray[np.float64]

_TINY = 1e-8
"""No noise at all would divide by zero."""

_RIDGE = 1e-4
"""Keeps the projection stable where canaries' gradients coincide."""


@dataclass(frozen=True)
class Evidence:
    """Sums over all rounds for the coins, and one row a round for the steps.

    gram          sum_t k_t U_t U_t' / s_t^2 over the canaries (m, m)
    matched       sum_t U_t (G_t - what the anchors are expected to add) / s_t^2 (m,)
    along         <G_t, S_t> / k_t with S_t the sum of c_i over all of the client's records, a round
    lengths       |S_t|^2, per round
    residuals     G_t / sqrt(k_t) outside the span of U_t (rounds, size)
    freedoms      the dimensions outside the span, per round
    variances     s_t^2 = |residual|^2 / freedom: a step's noise in units of C^2, per round
    peers         per round the other clients' noisy sums outside the span of U_t
    """

    gram: Array
    matched: Array
    along: Array
    lengths: Array
    residuals: npt.NDArray[np.float32]
    freedoms: Array
    variances: Array
    peers: Sequence[Mapping[int, npt.NDArray[np.float32]]]


def collect(
    observation: Observation, progress: Callable[[int], None] = lambda _rounds: None
) -> Evidence:
    """Go through the released proxies, round by round."""
    seen = observation.audited
    mechanism = observation.mechanism
    canaries = observation.canaries
    copies = canaries.copies.float()
    count = len(canaries)
    found = _Sums(count)
    others = _others(observation)
    sums = noisy_sums(seen, mechanism)
    for round, start, steps, total in zip(
        seen.rounds, seen.starts, seen.steps, sums, strict=True
    ):
        rows = clipped_gradients(
            observation.model, start, canaries, mechanism.clip_norm
        )
        outside = _Outside(rows)
        residual = outside(total) / steps**0.5
        variance = max(_TINY, float(residual @ residual) / outside.freedom)
        anchored = copies[count:] @ rows[count:]
        unexplained = total - steps * mechanism.sampling_rate * anchored
        found.gram += steps / variance * outside.gram[:count, :count]
        found.matched += (rows[:count] @ unexplained).double() / variance
        together = copies @ rows
        found.along.append(float(together @ total) / steps)
        found.lengths.append(float(together @ together))
        found.variances.append(variance)
        found.freedoms.append(outside.freedom)
        found.residuals.append(residual)
        theirs = {
            client: outside(sums[round])
            for client, sums in others.items()
            if round in sums
        }
        found.peers.append(theirs)
        progress(1)
    return found.evidence()


class _Sums:
    """Evidence while it is being collected."""

    def __init__(self, count: int) -> None:
        self.gram = torch.zeros(count, count, dtype=torch.float64)
        self.matched = torch.zeros(count, dtype=torch.float64)
        self.along: list[float] = []
        self.lengths: list[float] = []
        self.variances: list[float] = []
        self.freedoms: list[float] = []
        self.residuals: list[Tensor] = []
        self.peers: list[dict[int, Tensor]] = []

    def evidence(self) -> Evidence:
        """All of it, as arrays."""
        peers = []
        for theirs in self.peers:
            peers.append(
                {client: values.numpy() for client, values in theirs.items()}
            )
        return Evidence(
            gram=self.gram.numpy(),
            matched=self.matched.numpy(),
            along=np.array(self.along),
            lengths=np.array(self.lengths),
            variances=np.array(self.variances),
            freedoms=np.array(self.freedoms),
            residuals=torch.stack(self.residuals).numpy(),
            peers=peers,
        )


class _Outside:
    """Removes from a vector its part in the span of some rows."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows
        self.gram = (rows @ rows.T).double()
        ridge = _RIDGE * float(self.gram.diagonal().mean()) + _TINY
        factor = torch.linalg.cholesky(self.gram + ridge * torch.eye(len(rows)))
        self._inverse = torch.cholesky_inverse(factor)
        spanned = len(rows) - ridge * float(self._inverse.trace())
        self.freedom = max(1.0, rows.shape[1] - spanned)

    def __call__(self, vector: Tensor) -> Tensor:
        weights = self._inverse @ (self._rows @ vector).double()
        return vector - weights.float() @ self._rows


def _others(observation: Observation) -> dict[int, dict[int, Tensor]]:
    """The noisy sums of the other clients, by client and round."""
    found = {}
    for client, seen in observation.seen.items():
        if client == observation.client or not seen.starts:
            continue
        sums = noisy_sums(seen, observation.mechanism)
        found[client] = dict(zip(seen.rounds, sums, strict=True))
    return found
