r"""Evidence: what the released proxies say about each canary and about the noise, round by round.

With c_ti the clipped gradient of canary i at the start theta_t of a round in units of C, n_i how
many of it the client has, and z standard normal, what a peer recovers of round t is (``undo``)

    Y_t = q sum_i n_i sum_(s <= t) R_ts c_si + sigma z

up to what theta moves within the round and which records happen to be drawn. So U_t Y_t (U_t: the
rows c_ti) says something about the coins, and what is left of Y_t outside the span of U_t is noise
and nothing else. A single canary's gradients are taken to be c_ti in the few earlier rounds that
R_t reaches, too: sum_s R_ts c_si = r_t c_ti, with r_t the sum of R's row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from proxyfl.audit.bounds import Array
from proxyfl.audit.canaries import clipped_gradients
from proxyfl.audit.observe import Observation, Progress, silent
from proxyfl.audit.undo import undo

_TINY = 1e-8
"""No noise at all would divide by zero."""

_RIDGE = 1e-4
"""Keeps the projection stable where canaries' gradients coincide."""


@dataclass(frozen=True)
class Evidence:
    """Sums over all rounds for the coins, and one row a round for the steps.

    gram          sum_t r_t^2 U_t U_t' / s_t^2 over the canaries (m, m)
    matched       sum_t r_t U_t (Y_t - what the anchors are expected to add) / s_t^2 (m,)
    along         <Y_t, S_t> with S_t = sum_(s <= t) R_ts sum_i n_i c_si, per round
    lengths       |S_t|^2, per round
    residuals     Y_t outside the span of U_t (rounds, size)
    freedoms      the dimensions outside the span, per round
    variances     s_t^2 = |residual|^2 / freedom: a step's noise in units of C^2, per round
    peers         per round what is recovered of the other clients, outside the span of U_t
    """

    gram: Array
    matched: Array
    along: Array
    lengths: Array
    residuals: npt.NDArray[np.float32]
    freedoms: Array
    variances: Array
    peers: Sequence[Mapping[int, npt.NDArray[np.float32]]]


def collect(observation: Observation, progress: Progress = silent) -> Evidence:
    """Go through the released proxies, round by round."""
    seen = observation.audited
    mechanism = observation.mechanism
    canaries = observation.canaries
    copies = canaries.copies.float()
    count = len(canaries)
    undone = undo(seen, mechanism)
    together = torch.zeros_like(undone.sums)
    anchored = torch.zeros_like(undone.sums)
    gram = torch.zeros(count, count, dtype=torch.float64)
    matched = torch.zeros(count, dtype=torch.float64)
    along = []
    lengths = []
    variances = []
    freedoms = []
    residuals = []
    peers = []
    others = _others(observation)
    model = observation.model
    clip_norm = mechanism.clip_norm
    rounds = zip(seen.rounds, seen.starts, undone.sums, strict=True)
    for number, (round, start, total) in enumerate(rounds):
        rows = clipped_gradients(model, start, canaries, clip_norm)
        together[number] = copies @ rows
        anchored[number] = copies[count:] @ rows[count:]
        so_far = slice(number + 1)
        response = undone.response[number, so_far].float()
        outside = _Outside(rows)
        residual = outside(total)
        variance = max(_TINY, float(residual @ residual) / outside.freedom)
        expected = response @ anchored[so_far]
        unexplained = total - mechanism.sampling_rate * expected
        reach = float(response.sum())
        along_rows = rows[:count] @ unexplained
        gram += reach**2 / variance * outside.gram[:count, :count]
        matched += reach / variance * along_rows.double()
        records = response @ together[so_far]
        along.append(float(records @ total))
        lengths.append(float(records @ records))
        variances.append(variance)
        freedoms.append(outside.freedom)
        residuals.append(residual)
        theirs = {}
        for client, sums in others.items():
            if round in sums:
                theirs[client] = outside(sums[round]).numpy()
        peers.append(theirs)
        progress(1)
    return Evidence(
        gram=gram.numpy(),
        matched=matched.numpy(),
        along=np.array(along),
        lengths=np.array(lengths),
        residuals=torch.stack(residuals).numpy(),
        freedoms=np.array(freedoms),
        variances=np.array(variances),
        peers=peers,
    )


class _Outside:
    """Removes from a vector its part in the span of some rows."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows
        self.gram = (rows @ rows.T).double()
        mean = float(self.gram.diagonal().mean())
        ridge = _RIDGE * mean + _TINY
        raised = self.gram + ridge * torch.eye(len(rows))
        factor = torch.linalg.cholesky(raised)
        self._inverse = torch.cholesky_inverse(factor)
        spanned = len(rows) - ridge * float(self._inverse.trace())
        self.freedom = max(1.0, rows.shape[1] - spanned)

    def __call__(self, vector: Tensor) -> Tensor:
        weights = self._inverse @ (self._rows @ vector).double()
        return vector - weights.float() @ self._rows


def _others(observation: Observation) -> dict[int, dict[int, Tensor]]:
    """What is recovered of the other clients, by client and round."""
    recovered = {}
    for client, seen in observation.seen.items():
        if client == observation.client or not seen.starts:
            continue
        sums = undo(seen, observation.mechanism).sums
        recovered[client] = dict(zip(seen.rounds, sums, strict=True))
    return recovered
