"""``python -m proxyfl`` is the command ``proxyfl``."""

import sys

from proxyfl.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
