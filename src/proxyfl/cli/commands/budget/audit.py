"""``proxyfl audit``: test a claimed epsilon against what peers see."""

from argparse import Namespace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from proxyfl._files import write_json
from proxyfl.audit import finding
from proxyfl.audit.finding import VERDICTS, Finding
from proxyfl.audit.observe import method_of
from proxyfl.cli.commands.budget import membership
from proxyfl.cli.options import JSON, config_options, option, print_json
from proxyfl.cli.terminal.spinner import spinner
from proxyfl.privacy.guarantee import shown
from proxyfl.records import folder as folders
from proxyfl.records import reading
from proxyfl.records.reading import ADDITIONS
from proxyfl.simulation import config as configs
from proxyfl.simulation.config import Config

DESCRIPTION = """\
Test a claimed epsilon. The federation of a config, or of a run's folder, trains again, with one
client's records replaced by canaries: records made to leave the clearest trace, each planted by
coin. From the released proxies alone the audit works out a lower bound on epsilon. For a run's
folder the claim is the epsilon that the run recorded, and the result is kept there (audit.json),
where the report and the certificate find it. The run's own proxies are not looked at.

With --membership: train shadow federations on random halves of the client's records and tell
members from others by likelihood ratio, against the proxy with DP, the proxy without, and the
private model.

A bound below the claim does not prove the claim; it says how much of it an attack can show. A bound
above the claim proves, at the stated confidence, that something is wrong.
"""

EPILOG = """\
examples:
  proxyfl audit                                  the default settings
  proxyfl audit experiments/base/images.toml     a config
  proxyfl audit runs/a --client 3 --json         the settings of a run, its client 3
  proxyfl audit runs/a --membership              federations are kept in runs/a; repeat to continue
  proxyfl audit --membership --shadows 16 --out shadows
  proxyfl audit --set proxy_optimizer.name=sgd --set learning.steps_per_round=1

exit codes: 0 the claim is not contradicted; 1 the bound exceeds it, or the noise is irregular.
docs/audit.md says how it works, what it assumes, and which mistakes it cannot find.
"""


OPTIONS = (
    *config_options("config CONFIG.toml|RUN", ", or a run's folder"),
    option("--method NAME", "the method (default: the last that shares with DP)"),
    option("--client K", "the audited client", int, 0),
    option(
        "--canaries M",
        "how many (default: a fifth of the proxy's parameters, at most 600)",
        int,
    ),
    option("--confidence P", "of the bound", float, 0.95),
    *membership.OPTIONS,
    JSON,
)


def execute(args: Namespace) -> int:
    """Audit and print; exit code 1 if the claim is contradicted."""
    config = _config(args)
    folder = _folder(args)
    if args.membership:
        return membership.execute(args, config, folder)
    with spinner("Auditing", total=2 * config.rounds, quiet=args.json) as progress:
        found = finding.audit(
            config,
            method=args.method,
            client=args.client,
            canaries=args.canaries,
            confidence=args.confidence,
            recorded=_recorded(args, config, folder),
            progress=progress,
        )
    if folder is not None:
        write_json(folder / ADDITIONS["audit"], found.as_dict())
    if args.json:
        print_json(found.as_dict())
    else:
        _show(found, Console(highlight=False))
    return 0 if found.verdict == "not contradicted" else 1


def _config(args: Namespace) -> Config:
    path: Path | None = args.config
    if path is not None and path.is_dir():
        path = folders.existing(path) / "config.toml"
    return configs.load(path, args.overrides)


def _folder(args: Namespace) -> Path | None:
    """The run's folder, if its own settings are audited and not changed ones."""
    path: Path | None = args.config
    if path is None or not path.is_dir() or args.overrides:
        return None
    return path


def _recorded(args: Namespace, config: Config, folder: Path | None) -> float | None:
    """The epsilon that the run recorded for the client, if the method went to its end."""
    if folder is None:
        return None
    run = reading.read(folder)
    name = method_of(config, args.method)
    if name not in run.methods or not run.over(name):
        return None
    if args.client not in run.clients_of(name):
        return None
    spent = run.spent(name, args.client)
    return None if spent is None else spent.best


def _show(found: Finding, console: Console) -> None:
    observation = found.observation
    one_run = found.one_run
    claimed = observation.claimed
    table = Table("", "epsilon", "at")
    table.add_row(
        "claimed" if found.recorded is None else "recorded by the run",
        shown(found.epsilon),
        f"delta {claimed.delta:.3g}, {claimed.kind}",
    )
    confidence = f"{found.confidence:.0%} confidence"
    table.add_row(
        "shown step by step, at least", f"{found.by_steps:.3f}", confidence
    )
    table.add_row(
        "shown in one run, at least (f-DP)", f"{one_run.by_curve:.3f}", confidence
    )
    table.add_row(
        "the same by Steinke et al.", f"{one_run.by_point:.3f}", confidence
    )
    canaries = f"{len(observation.canaries)} canaries"
    table.add_row("an ideal attacker in one run", f"{one_run.ideal:.3f}", canaries)
    table.add_row(
        "only right guesses (ceiling)", f"{one_run.ceiling:.3f}", canaries
    )
    console.print(table)
    mechanism = observation.mechanism
    console.print(
        f"Client {observation.client} of {observation.method}, "
        f"{sum(observation.audited.steps)} steps in {len(observation.audited.rounds)} rounds. "
        f"Measured per step: noise {found.steps.noise:.2f} (stated "
        f"{mechanism.noise_multiplier:g}), share of a record {found.steps.share:.3f} (stated "
        f"sampling rate {mechanism.sampling_rate:.3f})."
    )
    if found.steps.explained > 0:
        part = f"{found.steps.explained:.0%}"
        console.print(
            f"Earlier rounds or other clients explain up to {part} of a round's noise."
        )
    console.print(VERDICTS[found.verdict])
