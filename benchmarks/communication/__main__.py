"""``python -m benchmarks.communication``: what communication costs, measured, modelled, simulated."""

import sys

from benchmarks.communication.command import main

sys.exit(main())
