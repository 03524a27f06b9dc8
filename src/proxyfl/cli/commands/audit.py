"""``proxyfl audit``: test a claimed epsilon against what peers see.

``proxyfl audit --membership``: who was in the data, by likelihood ratio.
"""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from proxyfl._command import command
from proxyfl._files import write_json
from proxyfl._terminal.spinner import spinner
from proxyfl._validate import whole
from proxyfl.audit import finding, membership, shadows
from proxyfl.audit.finding import VERDICTS, Finding
from proxyfl.audit.observe import method_of
from proxyfl.cli.options import JSON, Document, config_options, flag, option, print_json
from proxyfl.errors import RunError
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

A real site that has ended is audited in the same way: one client with its settings and made-up
records trains in this process. The site's ledger and its peers notice nothing.

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
  proxyfl audit SITE                             the settings of a real site that has ended
  proxyfl audit runs/a --membership              federations are kept in runs/a; repeat to continue
  proxyfl audit --membership --shadows 16 --out shadows
  proxyfl audit --set proxy_optimizer.name=sgd --set learning.steps_per_round=1

exit codes: 0 the claim is not contradicted; 1 the bound exceeds it, or the noise is irregular.
docs/guides/audit.md says how it works, what it assumes, and which mistakes it cannot find.
"""


SHADOWS = 32
RECORD = "shadows.jsonl"


_MEMBERSHIP_OPTIONS = (
    flag("--membership", "membership inference with shadow federations instead"),
    option("--shadows K", "shadow federations; more resolve lower rates", int, SHADOWS),
    option(
        "--out FOLDER",
        "where federations and result are kept (default: the run's folder); run again to continue",
        Path,
    ),
)


OPTIONS = (
    *config_options("config CONFIG.toml|RUN", ", or a run's folder"),
    option("--method NAME", "the method (default: the last that shares with DP)"),
    option("--client K", "the audited client", int, 0),
    option(
        "--canaries M", "how many (default: a fifth of the proxy's parameters, at most 600)", int
    ),
    option("--confidence P", "of the bound", float, 0.95),
    *_MEMBERSHIP_OPTIONS,
    JSON,
)


def execute(args: Namespace) -> int:
    """Audit and print; exit code 1 if the claim is contradicted."""
    config = _config(args)
    folder = _folder(args)
    if args.membership:
        return _execute_membership(args, config, folder)
    with spinner("Auditing", total=2 * config.rounds, quiet=args.json) as progress:
        result = finding.audit(
            config,
            method=args.method,
            client=args.client,
            canaries=args.canaries,
            confidence=args.confidence,
            recorded=_recorded_epsilon(args, config, folder),
            progress=progress,
        )
    if folder is not None:
        write_json(folder / ADDITIONS["audit"], result.as_dict())
    if args.json:
        print_json(result.as_dict())
    else:
        _show(result, Console(highlight=False))
    return 0 if result.verdict == "not contradicted" else 1


def _config(args: Namespace) -> Config:
    path: Path | None = args.config
    if path is not None and path.is_dir():
        if folders.is_site(path):
            if args.membership:
                folders.check_simulated(path, "membership inference trains on a run's own records")
            return _config_of_site(path, args.overrides)
        path = folders.existing(path) / "config.toml"
    return configs.load(path, args.overrides)


def _config_of_site(path: Path, overrides: Sequence[str]) -> Config:
    """The settings of a real site that has ended, for as many rounds as it took part in."""
    run = reading.read(path)
    if not run.finished:
        raise RunError(
            f"The site in {path} has not ended yet, and its epsilon still grows. Audit it after "
            f"its last round. To continue it, run: {command('node', 'run', path)}"
        )
    from proxyfl.simulation import federation  # which needs cryptography

    config = federation.config_of(path)
    rounds = 1 + max(row["round"] for row in run.rows)
    settle = max(0, rounds - (config.rounds - config.exchange.settling(1, config.rounds)))
    ended = [f"rounds={rounds}", f"exchange.settle={settle}"]
    if not settle:
        ended.append("exchange.average=0")
    return federation.config_of(path, overrides=[*ended, *overrides])


def _folder(args: Namespace) -> Path | None:
    """The run's folder, if its own settings are audited and not changed ones."""
    path: Path | None = args.config
    if path is None or not path.is_dir() or args.overrides:
        return None
    return path


def _recorded_epsilon(args: Namespace, config: Config, folder: Path | None) -> float | None:
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


def _show(result: Finding, console: Console) -> None:
    observation = result.observation
    one_run = result.one_run
    claimed = observation.claimed
    table = Table("", "epsilon", "at")
    table.add_row(
        "claimed" if result.recorded is None else "recorded by the run",
        shown(result.epsilon),
        f"delta {claimed.delta:.3g}, {claimed.kind}",
    )
    confidence = f"{result.confidence:.0%} confidence"
    table.add_row("shown step by step, at least", f"{result.by_steps:.3f}", confidence)
    table.add_row("shown in one run, at least (f-DP)", f"{one_run.by_curve:.3f}", confidence)
    table.add_row("the same by Steinke et al.", f"{one_run.by_point:.3f}", confidence)
    canaries = f"{len(observation.canaries)} canaries"
    table.add_row("an ideal attacker in one run", f"{one_run.ideal:.3f}", canaries)
    table.add_row("only right guesses (ceiling)", f"{one_run.ceiling:.3f}", canaries)
    console.print(table)
    mechanism = observation.mechanism
    console.print(
        f"Client {observation.client} of {observation.method}, "
        f"{sum(observation.audited.steps)} steps in {len(observation.audited.rounds)} rounds. "
        f"Measured per step: noise {result.steps.noise:.2f} (stated "
        f"{mechanism.noise_multiplier:g}), share of a record {result.steps.share:.3f} (stated "
        f"sampling rate {mechanism.sampling_rate:.3f})."
    )
    if result.steps.explained > 0:
        part = f"{result.steps.explained:.0%}"
        console.print(f"Earlier rounds or other clients explain up to {part} of a round's noise.")
    console.print(VERDICTS[result.verdict])


def _execute_membership(args: Namespace, config: Config, run: Path | None) -> int:
    """Train, attack and print."""
    whole("shadows", args.shadows, at_least=membership.FEWEST_SHADOWS)
    folder: Path | None = args.out or run
    record = None if folder is None else folder / RECORD
    with spinner("Training shadow federations", total=args.shadows, quiet=args.json) as progress:
        trained = shadows.train(
            config, args.shadows, client=args.client, record=record, progress=progress
        )
    curves = membership.attack(trained)
    result = membership.as_dict(curves, federations=len(trained), client=args.client)
    if folder is not None:
        write_json(folder / ADDITIONS["membership"], result)
    if args.json:
        print_json(result)
    else:
        _show_membership(result, Console(highlight=False))
    return 0


def _show_membership(result: Document, console: Console) -> None:
    table = Table("target", "TPR at 0.1 % FPR", "TPR at 1 % FPR", "AUC")
    for row in result["targets"]:
        table.add_row(
            row["target"],
            f"{row['tpr_at_0.001']:.2%}",
            f"{row['tpr_at_0.01']:.2%}",
            f"{row['auc']:.3f}",
        )
    console.print(table)
    row = result["targets"][0]
    console.print(
        f"Client {result['client']}, {result['federations']} federations: {row['members']} "
        f"scores of members, {row['non_members']} of others."
    )
    if row["non_members"] < 1000:
        console.print(
            "Too few others to resolve 0.1 %: the rate shown is at zero false positives. Raise "
            "--shadows."
        )
