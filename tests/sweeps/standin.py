"""A run's process in small: the same command line, files and exit codes as `proxyfl run`, and no
training.

Seed 13 fails. STANDIN_PACE is how many seconds a round takes, STANDIN_WAITS the round (from 0) that
never ends; with STANDIN_STUBBORN it does not heed SIGTERM."""

import json
import os
import shutil
import signal
import sys
import time
import tomllib
from pathlib import Path


def main() -> int:
    what, first, *rest = sys.argv[1:]
    if what == "run":
        out = Path(rest[rest.index("--out") + 1])
        out.mkdir()
        shutil.copy(first, out / "config.toml")
    else:
        out = Path(first)
    with (out / "attempts").open("a") as attempts:
        attempts.write(
            f"{what} {' '.join(rest[-2:])} threads={os.environ.get('OMP_NUM_THREADS')}\n"
        )
    config = tomllib.loads((out / "config.toml").read_text())
    if config["seed"] == 13:
        print("a line before\nno luck with seed 13", file=sys.stderr)
        return 3
    metrics = out / "metrics.jsonl"
    done = len(metrics.read_text().splitlines()) if metrics.exists() else 0
    for round in range(done, config["rounds"]):
        if str(round) == os.environ.get("STANDIN_WAITS"):
            time.sleep(1000)
        time.sleep(float(os.environ.get("STANDIN_PACE", "0")))
        with metrics.open("a") as file:
            file.write(json.dumps({"method": config["methods"][0], "round": round}) + "\n")
    (out / "summary.json").write_text(json.dumps({"finished": True}))
    return 0


if __name__ == "__main__":
    signal.signal(
        signal.SIGTERM,
        signal.SIG_IGN if os.environ.get("STANDIN_STUBBORN") else signal.default_int_handler,
    )
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
