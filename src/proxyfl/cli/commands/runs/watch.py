"""``proxyfl watch``: follow a run in the browser."""

import argparse
import json
import time
import webbrowser
from pathlib import Path

from rich.console import Console

from proxyfl.report.live import LOOPBACK, LiveServer, is_loopback, over

_EPILOG = """\
examples:
  proxyfl watch runs/a                         prints an address to open on this machine
  proxyfl watch runs/a --open --port 8000      opens it, always at the same place
  proxyfl watch runs/a --host 0.0.0.0          for others too; the address then carries a token

The page is that of `proxyfl report`, and follows the run by itself. It reads the run's folder and
changes nothing; stopping this command, or closing the page, does not touch the run. End with
Ctrl-C.
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "watch",
        help="follow a run in the browser while it runs",
        description="Serve a page that shows a run and follows it to its end. Reachable from this "
        "machine only,\n"
        "unless another --host is given: then whoever has the address with its token can look, "
        "unencrypted.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="RUN", help="the run's folder")
    parser.add_argument(
        "--host",
        default=LOOPBACK,
        help=f"the address to serve on (default: {LOOPBACK})",
    )
    parser.add_argument(
        "--port", type=int, default=0, help="the port (default: a free one)"
    )
    parser.add_argument(
        "--open", action="store_true", help="open the page in the default browser"
    )
    parser.add_argument(
        "--until-done",
        action="store_true",
        help="stop a few seconds after the run has ended",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the address as one JSON document, nothing else",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until interrupted, or until the run is over if asked to."""
    with LiveServer(
        arguments.folder,
        host=arguments.host,
        port=arguments.port,
    ) as server:
        if arguments.json:
            print(
                json.dumps({"url": server.url, "run": str(arguments.folder)}),
                flush=True,
            )
        else:
            console = Console(highlight=False)
            console.print(
                f"Watching {arguments.folder} at {server.url}",
                soft_wrap=True,
                markup=False,
            )
            if not is_loopback(arguments.host):
                console.print(
                    "Others can look, with this address; the connection is not encrypted.",
                    soft_wrap=True,
                )
            console.print("Ctrl-C ends this; the run continues.")
        if arguments.open:
            webbrowser.open(server.url)
        try:
            while not (arguments.until_done and over(arguments.folder)):
                time.sleep(0.5)
            time.sleep(3)  # an open page asks once more
        except KeyboardInterrupt:
            return 0
    return 0
