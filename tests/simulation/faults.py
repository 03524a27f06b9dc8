"""A topology that breaks one rank of an MPI job in one round, as the environment says. Used by
test_mpi."""

import os
import signal
import time
from collections import Counter

from proxyfl.gossip.topology import Columns, exponential

_ASKED: Counter[int] = Counter()


def topology(round: int, clients: int) -> Columns:
    """The exponential graph, unless FAULT="WHAT RANK ROUND" names this rank and this round.

    A process asks for every round once before the run begins, when the plan is rehearsed; the
    fault waits for the round itself.
    """
    _ASKED[round] += 1
    what, rank, when = os.environ.get("FAULT", "nothing - -").split()
    here = os.environ.get("OMPI_COMM_WORLD_RANK") == rank and str(round) == when
    if here and _ASKED[round] > 1:
        if what == "raise":
            raise OSError("the disk of this rank is gone")
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000)
    return exponential()(round, clients)
