"""How much memory a table takes, from a CSV file to trained models:

    python -m benchmarks.tables ROWS [--in-memory]

Makes a table of ROWS rows at one hospital and half as many at another, then encodes and trains it
in a process of its own. Prints seconds of one core, and the memory that this took beyond the
program itself (private memory: pages of a mapped file can be dropped at any time and do not
count).
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from proxyfl.data.tables import scratch

SCHEMA = """
name = "large"

[label]
column = "died"
classes = ["no", "yes"]

[columns.age]
type = "number"
unit = "years"
range = [18, 100]
encoding = "bins"
knots = [30, 40, 50, 60, 70, 80, 90]

[columns.pressure]
type = "number"
unit = "mmHg"
range = [60, 250]
encoding = "bins"
knots = [90, 110, 130, 150, 170, 190, 210]

[columns.stage]
type = "category"
values = ["I", "II", "III", "IV"]

[columns.smoker]
type = "yes/no"
"""
CONFIG = """
methods = ["alone", "proxyfl"]
rounds = 2
evaluate_every = 2
measure = "auroc"

[data]
source = "{folder}/*.csv"
schema = "{folder}/schema.toml"

[partition]
kind = "site"

[models]
private = "linear"
proxy = "linear"

[learning]
batch_size = 500
steps_per_round = 50
"""


def write_table(path: Path, rows: int, seed: int) -> None:
    """Patients of whom the older die more often."""
    generator = random.Random(seed)
    with path.open("w") as file:
        file.write("age,pressure,stage,smoker,died\n")
        for _ in range(rows):
            age = generator.randint(18, 100)
            dies = generator.random() < age / 150
            cells = [str(age), str(generator.randint(60, 250))]
            cells.append(generator.choice(("I", "II", "III", "IV")))
            cells.append(generator.choice(("yes", "no")))
            cells.append("yes" if dies else "no")
            file.write(",".join(cells) + "\n")


def private_bytes() -> int:
    """The private memory of this process: its resident pages that no file backs."""
    text = Path("/proc/self/status").read_text()
    found = re.search(r"^RssAnon:\s+(\d+) kB$", text, re.MULTILINE)
    if found is None:
        raise SystemExit("/proc/self/status has no RssAnon: this needs Linux.")
    return 1024 * int(found[1])


class Watch(threading.Thread):
    """Notes the most private memory that the process has, looking every few milliseconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = private_bytes()

    def run(self) -> None:
        """Look until the process ends."""
        while True:
            self.most = max(self.most, private_bytes())
            time.sleep(0.005)


def measure(folder: Path) -> dict[str, float]:
    """Seconds and private memory of encoding, then of training."""
    import proxyfl
    from proxyfl.simulation.config import load
    from proxyfl.simulation.run import execute, prepare

    config = load(folder / "config.toml")
    small = proxyfl.run(load(None, ["rounds=1", "methods=proxyfl"]))  # what is needed anyway
    assert small.finished
    watch = Watch()
    watch.start()
    before = private_bytes()
    start = time.process_time()
    prepared = prepare(config)
    encoded = time.process_time() - start
    after_encoding = watch.most - before
    start = time.process_time()
    run = execute(prepared)
    score = run.kept("proxyfl", 0)
    return {
        "rows": len(prepared.dataset.train) + len(prepared.dataset.test),
        "features": prepared.dataset.shape[0],
        "encoding_seconds": encoded,
        "encoding_bytes": after_encoding,
        "training_seconds": time.process_time() - start,
        "bytes": watch.most - before,
        "auroc": score if score is not None else float("nan"),
    }


def main() -> None:
    """Make the table, measure in a process of its own, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=int)
    parser.add_argument("--in-memory", action="store_true", help="keep the encoded table in memory")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure is not None:
        if args.in_memory:
            scratch.IN_MEMORY = 2**40
        print(json.dumps(measure(args.measure)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_table(folder / "north.csv", args.rows, 0)
        write_table(folder / "south.csv", args.rows // 2, 1)
        (folder / "schema.toml").write_text(SCHEMA)
        (folder / "config.toml").write_text(CONFIG.format(folder=folder))
        words = [sys.executable, "-m", "benchmarks.tables", str(args.rows)]
        words += ["--measure", temporary]
        if args.in_memory:
            words.append("--in-memory")
        found = json.loads(subprocess.run(words, check=True, stdout=-1).stdout)
    if args.json:
        print(json.dumps(found))
        return
    size = 4 * found["rows"] * found["features"]
    said = [
        f"{found['rows']:,.0f} rows of {found['features']:.0f} features",
        f"{size / 1e6:.0f} MB encoded",
        f"encoded in {found['encoding_seconds']:.0f} s with {found['encoding_bytes'] / 1e6:.0f} MB",
        f"trained in {found['training_seconds']:.0f} s",
        f"at most {found['bytes'] / 1e6:.0f} MB in all, {found['bytes'] / size:.2f} of the table",
        f"AUROC {found['auroc']:.3f}",
    ]
    print("; ".join(said))


if __name__ == "__main__":
    main()
