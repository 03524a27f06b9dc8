"""``proxyfl watch``: follow a run in the browser."""

import argparse
import time
import webbrowser
from pathlib import Path

from proxyfl._loopback import LOOPBACK, is_loopback
from proxyfl.cli.options import flag, option, print_json
from proxyfl.report.live import LiveServer, over

DESCRIPTION = """\
Serve a page that shows a run and follows it to its end. Reachable from this machine only, unless
another --host is given: then anyone with the address and its token can look, unencrypted.
"""

EPILOG = """\
examples:
  proxyfl watch runs/a                         prints an address to open on this machine
  proxyfl watch runs/a --open --port 8000      opens it, always at the same place
  proxyfl watch runs/a --host 0.0.0.0          for others too; the address then carries a token

The page is that of `proxyfl report RUN`, and follows the run by itself. It reads the run's folder
and changes nothing; stopping this command, or closing the page, does not touch the run. End with
Ctrl-C.
"""


OPTIONS = (
    option("folder RUN", "the run's folder", Path),
    option("--host", "the address to serve on", str, LOOPBACK),
    option("--port", "the port; 0 takes a free one", int, 0),
    flag("--open", "open the page in the default browser"),
    flag("--until-done", "stop a few seconds after the run has ended"),
    flag("--json", "print the address as one JSON document, nothing else"),
)


def execute(args: argparse.Namespace) -> int:
    """Serve until interrupted, or until the run is over if asked to."""
    with LiveServer(args.folder, host=args.host, port=args.port) as server:
        if args.json:
            print_json({"url": server.url, "run": str(args.folder)}, indent=None)
        else:
            print(f"Watching {args.folder} at {server.url}")
            if not is_loopback(args.host):
                print("Anybody with this address can look; the connection is not encrypted.")
            print("Ctrl-C ends this; the run continues.", flush=True)
        if args.open:
            webbrowser.open(server.url)
        try:
            while not (args.until_done and over(args.folder)):
                time.sleep(0.5)
            time.sleep(3)  # an open page asks once more
        except KeyboardInterrupt:
            return 0
    return 0
