"""The benchmark of shares between two sites runs, on a small one."""

import json
import subprocess
import sys
from pathlib import Path


def test_two_sites_exchange_shares(tmp_path: Path) -> None:
    """Two sites with real keys send a share by each way, and times of all of them come out."""
    out = tmp_path / "exchange.json"
    command = [sys.executable, "-m", "benchmarks.exchange", "--size", "2000"]
    subprocess.run([*command, "--repeats", "2", "--out", str(out)], check=True)
    seconds = json.loads(out.read_text())["seconds"]
    assert {"socket", "exchange"} <= set(seconds)
    assert all(len(measured) == 2 for measured in seconds.values())
