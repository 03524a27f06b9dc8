"""``proxyfl table``: runs side by side, with what is known about their differences."""

import csv
import json
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proxyfl._command import command
from proxyfl._validate import whole
from proxyfl.cli.options import Document, option, print_json, repeatable
from proxyfl.cli.terminal import kept
from proxyfl.errors import ConfigError
from proxyfl.measures import Interval, names, title_of
from proxyfl.privacy.guarantee import shown
from proxyfl.records.reading import find, read
from proxyfl.report.document import judgements
from proxyfl.sweeps.statistics import FEWEST_SEEDS, PairedTest, smallest_wilcoxon
from proxyfl.sweeps.table import Overview, Row, overview

DESCRIPTION = """\
One row per method and per setting that differs between the runs: scores, epsilon with its kind,
and the paired difference to one method (default: alone) with its p-values.
"""

EPILOG = """\
examples:
  proxyfl table runs/noise                               a sweep; a column per varied setting
  proxyfl table runs/a runs/b --against fedavg           two runs, each method compared with fedavg
  proxyfl table runs/noise --role proxy --metric macro_accuracy --round 50
  proxyfl table runs/a --show sites                      client by client, with intervals
  proxyfl table runs/noise --by privacy.noise_multiplier --format csv > noise.csv

Scores are means over clients and seeds, with the standard deviation of all of them. Differences
are paired: the same seed, the same client. `joint` has one model for everybody and is paired with
each client of its seed.
"""


def execute(args: Namespace) -> int:
    """Read the runs, compare, print."""
    if args.round != "last" and not args.round.isdecimal():
        raise ConfigError(f"Expected --round last or a number of rounds, got --round {args.round}.")
    if args.show is not None:
        return _show_kept(args)
    after = None if args.round == "last" else whole("--round", int(args.round))
    answers = overview(
        args.paths,
        measure=args.metric,
        role=None if args.role == "kept" else args.role,
        after=after,
        by=args.by,
        against=args.against,
    )
    _FORMATS[args.format](answers)
    return 0


def _show_kept(args: Namespace) -> int:
    """The models kept in each run: a table, or all that is known of them as JSON."""
    if args.format not in ("text", "json"):
        raise ConfigError(
            f"--show is for text or JSON, got --format {args.format}. The report has each table as "
            f"CSV. Run: {command('report', *args.paths)}"
        )
    runs = [read(path) for path in find(args.paths)]
    if args.format == "json":
        documents = [{"name": run.name, "judged": judgements(run)} for run in runs]
        print_json({"runs": documents})
        return 0
    console = _console()
    for run in runs:
        if len(runs) > 1:
            console.print(f"[bold]{escape(run.name)}[/bold]")
        console.print(kept.SHOWN[args.show](run))
    return 0


def remarks(overview: Overview) -> list[str]:
    """Remarks that a reader needs to read the numbers rightly."""
    sentences = list(overview.remarks)
    compared = overview.comparisons
    if not compared:
        return sentences
    sentences.append(
        "p over clients: the clients of one seed are not independent (they share the exchange, "
        "the first proxy and the "
        "test set), so these p-values are smaller than they should be."
    )
    seeds = min(one.seeds for one in compared)
    if seeds < FEWEST_SEEDS:
        sentences.append(
            f"There is no test over seeds: that takes {FEWEST_SEEDS} or more, and some row has "
            f"{seeds}."
        )
    tested = [one.seeds for one in compared if one.over_seeds is not None]
    if tested:
        fewest = min(tested)
        sentences.append(
            "p over seeds: tests the means of the seeds, which are independent. Trust these. "
            f"With {fewest} seeds the signed-rank test cannot give less than "
            f"{smallest_wilcoxon(fewest):.2g}."
        )
    return sentences


def _header(overview: Overview) -> list[str]:
    compared = overview.comparisons
    header = ["method", *overview.by, title_of(overview.measure), "clients x seeds", "epsilon"]
    if compared:
        header.append(f"against {overview.against}")
        if _has_intervals(overview):
            header.append("95 % of it")
        header += ["p t-test", "p signed-rank"]
    if any(one.over_seeds is not None for one in compared):
        header += ["p t-test, seeds", "p signed-rank, seeds"]
    return header


def _has_intervals(overview: Overview) -> bool:
    return any(row.interval is not None for row in overview.rows)


def _cells(row: Row, width: int, *, intervals: bool) -> list[str]:
    """A row as text, as wide as the header is."""
    count = f"{row.score.n} in {row.seeds} seeds"
    if row.clients:
        count = f"{row.clients} x {row.seeds}"
    epsilon = "no DP"
    if row.epsilon is not None:
        epsilon = f"{shown(row.epsilon, 2)} {row.kind}"
    cells = [row.method, *map(_value, row.group.values())]
    cells += [_spread(row.score.mean, row.score.std), count, epsilon]
    if row.comparison is not None:
        over = row.comparison.over_clients
        deviation = None if over.std is None else over.std * 100
        cells.append(_spread(over.difference * 100, deviation, "+.1f"))
        if intervals:
            cells.append(_between(row.interval))
        cells += _p(over)
        if row.comparison.over_seeds is not None:
            cells += _p(row.comparison.over_seeds)
    return cells + [""] * (width - len(cells))


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_value, value))
    return "none" if value is None else str(value)


def _spread(mean: float, std: float | None, form: str = ".3f") -> str:
    if std is None:
        return f"{mean:{form}}"
    return f"{mean:{form}} ± {std:{form.lstrip('+')}}"


def _between(interval: Interval | None) -> str:
    if interval is None:
        return ""
    low, high = interval
    return f"{low * 100:+.1f} to {high * 100:+.1f}"


def _p(test: PairedTest) -> list[str]:
    cells = []
    for p in (test.t_test, test.wilcoxon):
        cell = "-" if p is None else f"{p:.3f}"
        cells.append("<0.001" if cell == "0.000" else cell)
    return cells


def _console() -> Console:
    console = Console()
    # a file has no edge to wrap at
    return console if console.is_terminal else Console(width=240)


def _print_text(overview: Overview) -> None:
    console = _console()
    header = _header(overview)
    table = Table(*header, caption_justify="left")
    last = None
    for row in overview.rows:
        if last is not None and row.group != last:
            table.add_section()
        last = row.group
        cells = _cells(row, len(header), intervals=_has_intervals(overview))
        table.add_row(*map(escape, cells))
    console.print(table)
    console.print(_legend(overview), highlight=False)
    for remark in remarks(overview):
        console.print(remark, highlight=False, markup=False)


def _legend(overview: Overview) -> str:
    words = "±: standard deviation over clients and seeds."
    deltas = sorted({row.delta for row in overview.rows if row.epsilon is not None})
    if deltas:
        span = f"{deltas[0]:.1e}"
        if len(deltas) > 1:
            span += f" to {deltas[-1]:.1e}"
        words += f" epsilon: the largest, at delta {span}, and its kind (docs/concepts/epsilon.md)."
    if overview.against:
        points = f"points, hundredths of {title_of(overview.measure)}; + is better"
        words += f" against {overview.against}: {points}."
    if _has_intervals(overview):
        words += " 95 % of it: interval of the mean over bootstrap samples of test persons."
    return words


def _print_markdown(overview: Overview) -> None:
    header = _header(overview)
    lines = [header, ["---"] * len(header)]
    for row in overview.rows:
        lines.append(_cells(row, len(header), intervals=_has_intervals(overview)))
    for line in lines:
        print("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |")
    print(f"\n{_legend(overview)}")
    for remark in remarks(overview):
        print(f"\n{remark}")


def _print_csv(overview: Overview) -> None:
    rows = [_flat(row, overview) for row in overview.rows]
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    for remark in remarks(overview):
        print(remark, file=sys.stderr)


def _flat(row: Row, overview: Overview) -> Document:
    flat: Document = {"method": row.method}
    for key, value in row.group.items():
        flat[key] = _value(value)
    clients = row.comparison.over_clients if row.comparison else None
    seeds = row.comparison.over_seeds if row.comparison else None
    low, high = row.interval or (None, None)
    flat |= {
        "metric": overview.measure,
        "mean": row.score.mean,
        "std": row.score.std,
        "n": row.score.n,
        "clients": row.clients,
        "seeds": row.seeds,
        "epsilon": row.epsilon,
        "delta": row.delta,
        "epsilon_kind": row.kind,
        "against": overview.against,
        "difference": clients.difference if clients else None,
        "difference_low": low,
        "difference_high": high,
    }
    for over, test in (("clients", clients), ("seeds", seeds)):
        flat[f"p_t_test_over_{over}"] = test.t_test if test else None
        flat[f"p_wilcoxon_over_{over}"] = test.wilcoxon if test else None
    return flat


def _print_json(overview: Overview) -> None:
    document = {
        "metric": overview.measure,
        "by": list(overview.by),
        "against": overview.against,
        "rows": [asdict(row) for row in overview.rows],
        "remarks": remarks(overview),
    }
    print(json.dumps(document, default=str))


_FORMATS: dict[str, Callable[[Overview], None]] = {
    "text": _print_text,
    "csv": _print_csv,
    "markdown": _print_markdown,
    "json": _print_json,
}

OPTIONS = (
    option("paths RUN_OR_SWEEP", "run folders, or folders of them", Path, nargs="+"),
    repeatable("--by KEY", "group by this setting only"),
    option(
        "--metric MEASURE",
        "the measure (default: the runs' own); own_auroc is AUROC on each site's own test "
        "part, and so on (docs/reference/measures.md)",
        choices=names(),
    ),
    option(
        "--role",
        "which model: the one that an institution keeps under the method, or a certain one",
        str,
        "kept",
        choices=("kept", "private", "proxy", "received"),
    ),
    option("--round last|N", "after the last round, or after N rounds", str, "last"),
    option("--against METHOD", "compare with this method (default: alone, if it is there)"),
    option(
        "--show",
        "instead of comparing, show the models kept in each run: every measure, client by "
        "client with intervals, confusion counts, or calibration",
        choices=tuple(kept.SHOWN),
    ),
    option("--format", "how to print it", str, "text", choices=tuple(_FORMATS)),
    (
        "--json",
        {
            "action": "store_const",
            "const": "json",
            "dest": "format",
            "help": "the same as --format json",
        },
    ),
)
