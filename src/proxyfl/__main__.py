"""``python -m proxyfl`` is the command ``proxyfl``.

For ``-m``, Python puts the current directory first on the import path: a file there that happens
to be called ``torch.py`` or ``signal.py`` would run. The command has no such entry, so it is taken
off before anything else is imported, unless this package itself lies there.
"""

import os  # which Python has loaded by itself, as it has sys
import sys

import proxyfl

if __name__ == "__main__":
    home = os.path.dirname(os.path.dirname(os.path.abspath(proxyfl.__file__)))  # noqa: PTH100, PTH120
    if not sys.flags.safe_path and os.path.abspath(sys.path[0]) != home:  # noqa: PTH100
        del sys.path[0]
    from proxyfl.cli.entry import main

    sys.exit(main())
