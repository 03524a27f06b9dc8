"""``proxyfl table``: runs side by side, with what is known about their differences."""

import argparse
import csv
import io
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proxyfl._validate import whole
from proxyfl.errors import ConfigError
from proxyfl.privacy.guarantee import shown
from proxyfl.sweeps.statistics import FEWEST_SEEDS, PairedTest, smallest_wilcoxon
from proxyfl.sweeps.table import Overview, Row, overview

_EPILOG = """\
examples:
  proxyfl table runs/noise                               a sweep; a column per varied setting
  proxyfl table runs/a runs/b --against fedavg           two runs, each method compared with fedavg
  proxyfl table runs/noise --role proxy --metric macro_accuracy --round 50
  proxyfl table runs/noise --by privacy.noise_multiplier --format csv > noise.csv

Scores are means over clients and seeds, with the standard deviation of all of them. Differences
are paired: the same seed, the same client. `joint` has one model for everybody and is paired with
each client of its seed.
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "table",
        help="compare runs: mean and spread over clients and seeds, significance",
        description="One row per method and per setting that differs between the runs: scores, "
        "epsilon with its kind,\n"
        "and the paired difference to one method (default: alone) with its p-values.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="RUN_OR_SWEEP",
        help="run folders, or folders of them",
    )
    parser.add_argument(
        "--by", action="append", metavar="KEY", help="group by this setting only; may be repeated"
    )
    parser.add_argument("--metric", choices=("accuracy", "macro_accuracy"), default="accuracy")
    parser.add_argument(
        "--role",
        choices=("kept", "private", "proxy", "received"),
        default="kept",
        help="which model: the one that an institution keeps under the method (default), or a "
        "certain one",
    )
    parser.add_argument(
        "--round", default="last", metavar="last|N", help="after the last round, or after N rounds"
    )
    parser.add_argument(
        "--against",
        metavar="METHOD",
        help="compare with this method (default: alone, if it is there)",
    )
    parser.add_argument("--format", choices=tuple(_FORMATS), default="text", help="default: text")
    parser.add_argument(
        "--json",
        action="store_const",
        const="json",
        dest="format",
        help="the same as --format json",
    )
    parser.set_defaults(run=start)


def start(args: argparse.Namespace) -> int:
    """Read the runs, compare, print."""
    if args.round != "last" and not args.round.isdecimal():
        raise ConfigError(f"Expected --round last or a number of rounds, got --round {args.round}.")
    after = None if args.round == "last" else whole("--round", int(args.round))
    found = overview(
        args.paths,
        metric=args.metric,
        role=args.role,
        round=after,
        by=args.by,
        against=args.against,
    )
    _FORMATS[args.format](found, args.metric)
    return 0


def remarks(found: Overview) -> list[str]:
    """What a reader must know to read the numbers rightly."""
    said = list(found.remarks)
    compared = [row.comparison for row in found.rows if row.comparison is not None]
    if not compared:
        return said
    said.append(
        "p over clients: the clients of one seed are not independent (they share the exchange, "
        "the first proxy and the "
        "test set), so these p-values are smaller than they should be."
    )
    seeds = min(comparison.seeds for comparison in compared)
    if seeds < FEWEST_SEEDS:
        said.append(
            f"There is no test over seeds: that takes {FEWEST_SEEDS} or more, and some row has "
            f"{seeds}."
        )
    if any(comparison.over_seeds is not None for comparison in compared):
        fewest = min(
            comparison.seeds for comparison in compared if comparison.over_seeds is not None
        )
        said.append(
            "p over seeds: tests the means of the seeds, which are independent. Trust these. "
            f"With {fewest} seeds the signed-rank test cannot give less than "
            f"{smallest_wilcoxon(fewest):.2g}."
        )
    return said


def _header(found: Overview, metric: str) -> list[str]:
    compared = [row.comparison for row in found.rows if row.comparison is not None]
    header = ["method", *found.by, metric.replace("_", " "), "clients x seeds", "epsilon"]
    if compared:
        header += [f"against {found.against}", "p t-test", "p signed-rank"]
    if any(comparison.over_seeds is not None for comparison in compared):
        header += ["p t-test, seeds", "p signed-rank, seeds"]
    return header


def _cells(row: Row, width: int) -> list[str]:
    """A row as text, as wide as the header is."""
    count = f"{row.clients} x {row.seeds}" if row.clients else f"{row.score.n} in {row.seeds} seeds"
    cells = [
        row.method,
        *(_value(value) for value in row.group.values()),
        _spread(row.score.mean, row.score.std),
    ]
    cells += [count, _epsilon(row)]
    if row.comparison is not None:
        over = row.comparison.over_clients
        cells += [
            _spread(over.difference * 100, None if over.std is None else over.std * 100, "+.1f"),
            *_p(over),
        ]
        cells += _p(row.comparison.over_seeds) if row.comparison.over_seeds is not None else []
    return cells + [""] * (width - len(cells))


def _value(value: Any) -> str:
    return (
        ", ".join(map(str, value))
        if isinstance(value, tuple)
        else "none"
        if value is None
        else str(value)
    )


def _spread(mean: float, std: float | None, form: str = ".3f") -> str:
    return f"{mean:{form}}" if std is None else f"{mean:{form}} ± {std:{form.lstrip('+')}}"


def _epsilon(row: Row) -> str:
    return "no DP" if row.epsilon is None else f"{shown(row.epsilon, 2)} {row.kind}"


def _p(test: PairedTest) -> list[str]:
    return [
        "-" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"
        for p in (test.t_test, test.wilcoxon)
    ]


def _print_text(found: Overview, metric: str) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=240)  # a file has no edge to wrap at
    header = _header(found, metric)
    table = Table(*header, caption_justify="left")
    last = None
    for row in found.rows:
        if last is not None and row.group != last:
            table.add_section()
        last = row.group
        table.add_row(*map(escape, _cells(row, len(header))))
    console.print(table)
    console.print(
        f"±: standard deviation over clients and seeds. {_legend(found)}", highlight=False
    )
    for remark in remarks(found):
        console.print(remark, highlight=False, markup=False)


def _legend(found: Overview) -> str:
    deltas = sorted({row.delta for row in found.rows if row.epsilon is not None})
    if not deltas:
        return ""
    shown = f"{deltas[0]:.1e}" if len(deltas) == 1 else f"{deltas[0]:.1e} to {deltas[-1]:.1e}"
    against = f" against {found.against}: percentage points." if found.against else ""
    return f"epsilon: the largest, at delta {shown}, and its kind (docs/privacy.md).{against}"


def _print_markdown(found: Overview, metric: str) -> None:
    header = _header(found, metric)
    lines = [header, ["---"] * len(header), *(_cells(row, len(header)) for row in found.rows)]
    for line in lines:
        print("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |")
    print(f"\n±: standard deviation over clients and seeds. {_legend(found)}")
    for remark in remarks(found):
        print(f"\n{remark}")


def _print_csv(found: Overview, metric: str) -> None:
    rows = [_flat(row, found, metric) for row in found.rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    sys.stdout.write(text.getvalue())
    for remark in remarks(found):
        print(remark, file=sys.stderr)


def _flat(row: Row, found: Overview, metric: str) -> dict[str, Any]:
    comparison = row.comparison
    tests = {
        "clients": comparison.over_clients if comparison else None,
        "seeds": comparison.over_seeds if comparison else None,
    }
    flat: dict[str, Any] = {
        "method": row.method,
        **{key: _value(value) for key, value in row.group.items()},
    }
    flat |= {"metric": metric, "mean": row.score.mean, "std": row.score.std, "n": row.score.n}
    flat |= {"clients": row.clients, "seeds": row.seeds}
    flat |= {
        "epsilon": row.epsilon,
        "delta": row.delta,
        "epsilon_kind": row.kind,
        "against": found.against,
    }
    flat["difference"] = tests["clients"].difference if tests["clients"] else None
    for over, test in tests.items():
        flat |= {
            f"p_t_test_over_{over}": test.t_test if test else None,
            f"p_wilcoxon_over_{over}": test.wilcoxon if test else None,
        }
    return flat


def _print_json(found: Overview, metric: str) -> None:
    print(
        json.dumps(
            {
                "metric": metric,
                "by": list(found.by),
                "against": found.against,
                "rows": [asdict(row) for row in found.rows],
                "remarks": remarks(found),
            },
            default=str,
        )
    )


_FORMATS: dict[str, Callable[[Overview, str], None]] = {
    "text": _print_text,
    "csv": _print_csv,
    "markdown": _print_markdown,
    "json": _print_json,
}
