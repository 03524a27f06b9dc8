"""A real federation of three sites in one script: three processes that talk over TLS.

    python examples/three_sites.py

These are the commands of the tutorial in docs/start/three-sites.md. Each site has a key of its own,
real noise, a ledger on the disk and a budget of epsilon 1. Here all run on this machine, on
scikit-learn's digits, in the folder `three-sites`; between institutions each site is on a machine
of its own. Needs `pip install 'proxyfl[node]'`.
"""

import socket
import subprocess
import sys
from pathlib import Path

SITES = ("north", "south", "east")


def proxyfl(*words: object) -> subprocess.Popen[str]:
    """Starts one command, as it would be typed."""
    command = [sys.executable, "-m", "proxyfl", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(*processes: subprocess.Popen[str]) -> list[str]:
    """What some commands print once all have ended; raises if one fails."""
    printed = [process.communicate()[0] for process in processes]
    for process, text in zip(processes, printed, strict=True):
        if process.returncode:
            raise SystemExit(f"{process.args} ended with {process.returncode}:\n{text}")
    return printed


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens at."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def main(folder: Path = Path("three-sites"), rounds: int = 5) -> list[str]:
    """Founds the federation, runs it, and returns what each site says at its end."""
    folder.mkdir()
    ports = iter(free_ports(2 * len(SITES)))
    for site in SITES:
        address = ("--address", f"localhost:{next(ports)}", "--status-port", next(ports))
        finish(proxyfl("node", "init", folder / site, *address, "--data", "digits"))
    cards = [folder / site / f"{site}.card.toml" for site in SITES]
    terms = ("--shape", "1,8,8", "--classes", "0,1,2,3,4,5,6,7,8,9", "--rounds", rounds)
    finish(proxyfl("federation", "new", folder / "study", *cards, *terms))
    for site in SITES:
        finish(proxyfl("node", "accept", folder / site, folder / "study" / "manifest.toml"))
    printed = finish(*[proxyfl("node", "run", folder / site) for site in SITES])
    for text in printed:
        print(text)
    finish(proxyfl("node", "export", folder / "north", folder / "north-model"))
    return printed


if __name__ == "__main__":
    main()
