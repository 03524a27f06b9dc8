"""A script for two MPI ranks that were given different data. Used by test_mpi."""

import os
import sys

from proxyfl.data import sources
from proxyfl.simulation.engines import Engine
from proxyfl.simulation.mpi import on_rank_zero
from proxyfl.simulation.run import run

from .engines import small


def main() -> int:
    """Each rank divides the digits into training and test set by a seed of its own."""
    own = sources.load("digits", seed=int(os.environ["OMPI_COMM_WORLD_RANK"]))

    def action(engine: Engine | None) -> int:
        run(small(), dataset=own, engine=engine)
        return 0

    return on_rank_zero(action, dataset=own)


if __name__ == "__main__":
    sys.exit(main())
