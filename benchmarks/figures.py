"""Puts the figures of ``make bench`` into README and docs: ``python -m benchmarks.figures``.

Reads build/bench.json, keeps it as benchmarks/recorded.json, and rewrites what stands between a
marker of its name and the next end marker, in README.md and in every page below docs:

    <!-- bench: goals -->      a block: goals, steps, private or machine
    <!-- bench: demo -->8.1<!-- end -->      the value of the row «demo», in a sentence

The tests hold README and docs to the record."""

import argparse
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "recorded.json"
MARKED = re.compile(r"(<!-- bench: (?P<name>[^>]*?) -->)(?P<text>.*?)(<!-- end -->)", re.DOTALL)

Bench = dict[str, Any]


def pages() -> Iterator[Path]:
    """README and every page of the documentation."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def with_figures(text: str, bench: Bench) -> str:
    """``text`` with the figures of ``bench`` between its markers."""

    def filled(match: re.Match[str]) -> str:
        return f"{match[1]}{figure(match['name'], bench)}{match[4]}"

    return MARKED.sub(filled, text)


def figure(name: str, bench: Bench) -> str:
    """What stands at a marker. ValueError for a name that is neither a block nor a row."""
    if name in BLOCKS:
        try:
            return "\n" + BLOCKS[name](bench) + "\n"
        except KeyError:  # a run of other parts
            return "\nThe last run did not measure these.\n"
    rows = {row["name"]: row for row in bench["rows"]}
    if name not in rows:
        known = ", ".join([*BLOCKS, *rows])
        raise ValueError(f"Unknown marker <!-- bench: {name} -->. Known: {known}.")
    return _number(rows[name]["value"])


def _number(value: float | None) -> str:
    if value is None:
        return "not measured"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def _goals(bench: Bench) -> str:
    rows = []
    for row in bench["rows"]:
        unit = f" {row['unit']}" if row["unit"] else ""
        met = {True: "yes", False: "no", None: ""}[row["met"]]
        goal = f"{row['bound']} {row['goal']:g}{unit}"
        rows.append([row["name"], _number(row["value"]), goal, met])
    return _table(["what", "measured", "goal", "met"], rows)


def _steps(bench: Bench) -> str:
    rows = []
    for name, times in bench["milliseconds"].items():
        plain, ours = times["plain"], times["ours"]
        row = [name, str(bench["batch"][name]), f"{plain:.1f}", f"{ours:.1f}"]
        row += [f"{ours / plain:.2f}", f"{ours / times['improved']:.2f}"]
        for other in ("Opacus", "Opacus ghost"):
            row.append(f"{times[other] / ours:.1f}" if other in times else "")
        rows.append(row)
    head = ["one step", "batch", "plain Adam, ms", "ours with DP, ms", "ours / plain"]
    head += ["ours / improved plain", "Opacus / ours", "Opacus ghost clipping / ours"]
    return _table(head, rows)


def _private(bench: Bench) -> str:
    rows = []
    for name, times in bench["private_milliseconds"].items():
        rows.append([name, *(f"{ms:.0f}" for ms in times.values())])
    head = ["one step without DP, ms", "default layout", "channels last", "bfloat16"]
    return _table(head, rows)


def _machine(bench: Bench) -> str:
    busy = "whose load was not recorded"
    if "load" in bench:
        busy = f"with a load of {bench['load']:.1f} at the beginning"
    return (
        f"One thread of {bench['processor'] or 'a machine that does not say its name'}, {busy}; "
        f"PyTorch {bench['torch']}, Opacus {bench['opacus']}."
    )


BLOCKS: dict[str, Callable[[Bench], str]] = {
    "goals": _goals,
    "steps": _steps,
    "private": _private,
    "machine": _machine,
}
"""What a marker of its own line stands for."""


def main() -> None:
    """Record, and rewrite the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=Path, default=Path("build/bench.json"))
    args = parser.parse_args()
    bench = json.loads(args.bench.read_text())
    for page in pages():
        text = page.read_text()
        new = with_figures(text, bench)
        if new != text:
            page.write_text(new)
            print(page.relative_to(ROOT))
    RECORD.write_text(json.dumps(bench, indent=1) + "\n")


if __name__ == "__main__":
    main()
