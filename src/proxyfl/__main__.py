"""``python -m proxyfl`` is the command ``proxyfl``."""

import sys

from proxyfl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
