"""What communication costs, measured, modelled and simulated."""

import sys

from benchmarks.communication.command import main

sys.exit(main())
