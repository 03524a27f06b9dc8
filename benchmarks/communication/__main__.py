"""``python -m benchmarks.communication``."""

import sys

from benchmarks.communication.command import main

sys.exit(main())
