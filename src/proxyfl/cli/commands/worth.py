"""``proxyfl worth``: whether joining can be expected to pay, and with which settings."""

import argparse
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from proxyfl import _settings
from proxyfl._command import command
from proxyfl._files import write_text
from proxyfl._terminal.spinner import spinner
from proxyfl.cli.options import JSON, Document, option, print_json
from proxyfl.errors import ConfigError
from proxyfl.privacy.accounting import Segment, epsilon_of
from proxyfl.privacy.worth import (
    CANNOT,
    USUAL,
    WORTH,
    Facts,
    Needed,
    Settings,
    Worth,
    advise_columns,
    gaussian_dp,
    least_size,
    needed,
    settings_for,
    site_weight,
    worth,
)

if TYPE_CHECKING:
    from proxyfl.simulation.config import Config

DESCRIPTION = """\
Say whether to join, how much joining can be expected to gain and how far a single run may fall
short of that, what it costs, and which settings to take: from public facts alone, no record is
read. A rule of thumb that was fitted to generated federations and checked on federations that it
was not fitted to (docs/research/joining.md). With --colluders the exchange is a masked sum (method
proxysum), else gossip. --alone is your own model's AUROC; it is used here and goes nowhere. With
--rehearsal, a public or synthetic dataset is divided among K clients and the gain is measured on
it, with these settings. Exit code 1 if joining is not expected to pay: less than a point of AUROC,
or less than half a point in more than one run of six.
"""

EPILOG = """\
examples:
  proxyfl worth --clients 4 --examples 184 --parameters 50 --epsilon 1 --prevalence 0.55
  proxyfl worth --clients 29 --examples 300 --parameters 26 --epsilon 1 --prevalence 0.05 \\
                --score 0.75 --alone 0.66 --smallest 120 --largest 900 --colluders 14
  proxyfl worth --clients 8 --examples 1000 --parameters 650 --classes 10 --seen 2 \\
                --score 0.98 --epsilon 1 --json
  proxyfl worth --clients 8 --examples 150 --parameters 650 --classes 10 --epsilon 3 \\
                --rehearsal digits
"""


OPTIONS = (
    option("--clients K", "sites that join", int, required=True),
    option("--examples N", "training examples of a site, on average", int, required=True),
    option("--parameters P", "the proxy's parameters (proxyfl models)", int, required=True),
    option("--epsilon E", "what may be spent", float, required=True),
    option("--delta D", "the guarantee's delta (default: 1/(10 N) of the largest site)", float),
    option("--prevalence P", "the share of cases (default: 1/C)", float),
    option("--score A", "AUROC of a good model of this task, from the literature", float, USUAL),
    option("--alone A", "AUROC of your own model, which stays here", float),
    option("--smallest N", "training examples of the smallest site", int),
    option("--largest N", "training examples of the largest site", int),
    option("--colluders T", "masked sum: members that may collude, 1 or more", int),
    option("--classes C", "the classes", int, 2),
    option("--seen C", "classes of which a site has examples (default: all)", int),
    option(
        "--rehearsal SOURCE", "a public or synthetic dataset on which to measure (proxyfl data)"
    ),
    option("--out FILE", "write the settings to a new file, for proxyfl run", Path),
    JSON,
)


@dataclass(frozen=True)
class Advice:
    """All that the command says."""

    facts: Facts
    expected: Worth
    settings: Settings
    all_collude: float | None
    """Epsilon if all others collude, where that is another one."""
    smallest: tuple[int, Worth] | None
    largest: tuple[int, Worth] | None
    needed: Needed | None
    """What would be enough, where joining does not pay."""
    least: int
    """The examples below which a site adds more noise than signal."""


def execute(args: argparse.Namespace) -> int:
    """Print what is expected, and what a rehearsal measured; 1 if it is not worth it."""
    if args.out is not None and args.out.exists():
        raise ConfigError(f"{args.out} exists. Name a new file with --out.")
    facts = _facts(args)
    with spinner("Expecting", quiet=args.json):
        advice = _advise(facts, args.smallest, args.largest)
    measured = None
    if args.rehearsal:
        with spinner("Rehearsing", quiet=args.json):
            measured = _rehearse(args.rehearsal, facts)
    if args.out is not None:
        write_text(args.out, _study_text(advice))
    if args.json:
        print_json(_document(advice, measured))
    else:
        _show(advice, measured, args.out, Console(highlight=False))
    if measured is not None:
        return 0 if measured["gain"] >= WORTH else 1
    return 0 if advice.expected.join else 1


def _facts(args: argparse.Namespace) -> Facts:
    """The facts of the command line, checked."""
    for name in ("smallest", "largest"):
        size = getattr(args, name)
        if size is None:
            continue
        fits = 1 <= size <= args.examples if name == "smallest" else size >= args.examples
        if not fits:
            side = "at most" if name == "smallest" else "at least"
            raise ConfigError(
                f"Expected --{name} of {side} the average of {args.examples} examples, got {size}."
            )
    most = args.largest or args.examples
    return Facts(
        args.clients,
        args.examples,
        args.parameters,
        args.epsilon,
        args.delta or 1 / (10 * max(1, most)),
        args.classes,
        args.score,
        args.seen,
        args.prevalence,
        args.colluders,
        args.alone,
    )


def _advise(facts: Facts, smallest: int | None, largest: int | None) -> Advice:
    expected = worth(facts)
    settings = settings_for(facts)
    coalition = facts.coalition
    all_collude = None
    if coalition is not None and coalition.honest > 1:
        left = coalition.alone(settings.noise_multiplier)
        all_collude = epsilon_of([Segment(1.0, left, settings.rounds)], facts.delta, "pld")
    others = replace(facts, alone=None)  # a site's own score says nothing of the others
    return Advice(
        facts,
        expected,
        settings,
        all_collude,
        (smallest, worth(others, examples=smallest)) if smallest else None,
        (largest, worth(others, examples=largest)) if largest else None,
        None if expected.join else needed(facts),
        least_size(facts.width, gaussian_dp(facts.epsilon, facts.delta), facts.honest),
    )


def _document(advice: Advice, measured: Document | None) -> Document:
    return {
        "facts": asdict(advice.facts),
        "expected": asdict(advice.expected) | {"join": advice.expected.join},
        "settings": asdict(advice.settings),
        "epsilon_if_all_others_collude": advice.all_collude,
        "smallest": advice.smallest and asdict(advice.smallest[1]),
        "largest": advice.largest and asdict(advice.largest[1]),
        "least_size": advice.least,
        "weight_of_smallest": _weight(advice),
        "needed": advice.needed and asdict(advice.needed),
        "rehearsal": measured,
    }


def _show(advice: Advice, measured: Document | None, out: Path | None, console: Console) -> None:
    facts, expected, settings = advice.facts, advice.expected, advice.settings
    console.print(f"[bold]{_verdict(advice)}[/bold]", soft_wrap=True)
    console.print(_gain(expected), soft_wrap=True)
    console.print(_cost(advice), soft_wrap=True)
    if advice.needed is not None:
        console.print(f"\n{_enough(advice.needed, facts)}", soft_wrap=True)
    console.print(
        f"\nA model of your own is taken to have an AUROC of {expected.alone:.3f}"
        f"{' (--alone)' if facts.alone else ''}, and the best one {facts.score:g} (--score). "
        f"Joining counts like {expected.counts_as:,.0f} examples; you have {facts.examples:,}, all "
        f"together {facts.clients * facts.examples:,}.",
        soft_wrap=True,
    )
    for name, site in (("smallest", advice.smallest), ("largest", advice.largest)):
        if site is not None:
            examples, own = site
            console.print(
                f"The {name} site ({examples:,} examples): {own.alone:.3f} alone, "
                f"{own.gain:+.1f} points expected.",
                soft_wrap=True,
            )
    console.print(_least(advice), soft_wrap=True)
    columns = advise_columns(facts)
    if columns is not None:
        console.print(columns, soft_wrap=True)
    if facts.prevalence is None:
        console.print(
            "Classes are taken to be equally frequent. If cases are rarer, less can be learnt: "
            "give --prevalence.",
            soft_wrap=True,
        )
    console.print("\nSettings (a linear proxy on public features, full batches):")
    for key, value in _settings.flat(_tree(facts, settings)).items():
        said = float(f"{value:g}") if isinstance(value, float) else value
        console.print(f"  {key}={said}", soft_wrap=True)
    if out is not None:
        console.print(f"Wrote {out}. Name your data in it, then run: {_run(out)}", soft_wrap=True)
    if measured is not None:
        console.print(
            f"\nRehearsal on {measured['source']}, {measured['measure']}: alone "
            f"{measured['alone']:.3f}, joined {measured['joined']:.3f}, "
            f"gain {measured['gain']:+.1f} points; {measured['worse']} of {facts.clients} clients "
            f"more than a point below alone. Epsilon {measured['epsilon']:.3g}.",
            soft_wrap=True,
        )
    console.print(
        "\nA rule of thumb. It does not know how much the sites differ; a rehearsal on public data "
        "(--rehearsal) knows more.",
        soft_wrap=True,
    )


def _verdict(advice: Advice) -> str:
    """Join or not, in one line."""
    facts, expected = advice.facts, advice.expected
    if expected.join:
        return "Join."
    if expected.most < WORTH:
        return "Do not join: your own model is as good as the best can be expected to be."
    if expected.share < CANNOT:
        return (
            f"Do not join: {facts.clients} sites of this size cannot do this at epsilon "
            f"{facts.epsilon:g}."
        )
    if expected.gain < WORTH:
        return "Do not join: the expected gain is less than a point."
    return "Do not join: too many runs would gain little or nothing."


def _gain(expected: Worth) -> str:
    """The gain with its spread, in one line."""
    return (
        f"Expected gain over your own model: {expected.gain:.1f} points of AUROC, "
        f"{expected.share:.0%} of the {expected.most:.1f} that pooling without privacy would give; "
        f"one run in six ends below {expected.low:+.1f}."
    )


def _weight(advice: Advice) -> float | None:
    """What the smallest site's steps should count for under gossip; None where it is as good as
    all, or not asked for."""
    if advice.smallest is None or advice.facts.colluders is not None:
        return None
    smallest = advice.smallest[0]
    if smallest >= advice.least:
        return None
    facts = advice.facts
    weight = site_weight(smallest, facts.width, gaussian_dp(facts.epsilon, facts.delta))
    return float(f"{weight:.2g}")


def _least(advice: Advice) -> str:
    """The size below which a site adds more noise than signal, and what to do about it."""
    text = (
        f"A site with fewer than {advice.least:,} examples adds more noise to the proxy than signal"
    )
    if advice.facts.colluders is not None:
        return f"{text}; it may join, since all members share the noise."
    weight = _weight(advice)
    if weight is None:
        return f"{text}."
    return f"{text}. The smallest site should count for less: learning.weight = {weight:g}."


def _cost(advice: Advice) -> str:
    """The price, in one line."""
    facts, settings = advice.facts, advice.settings
    rounds = f"{settings.rounds + settings.settle} rounds"
    size = f"{facts.parameters:,} numbers each"
    if advice.all_collude is None:
        against = "against all other members together"
    else:
        against = (
            f"against up to {facts.colluders} colluding members, {advice.all_collude:.2g} if all "
            "others collude"
        )
    return (
        f"It costs epsilon {facts.epsilon:g} (delta {facts.delta:.2g}) {against}, once; {rounds} "
        f"of {size}."
    )


def _enough(needed: Needed, facts: Facts) -> str:
    """A sentence on what would change the verdict."""
    ways = []
    if needed.sites is not None:
        ways.append(f"{needed.sites} sites of this size")
    if needed.epsilon is not None:
        ways.append(f"epsilon {needed.epsilon:g}")
    if needed.parameters is not None:
        ways.append(f"a proxy of {needed.parameters:,} parameters (fewer columns)")
    if not ways:
        return "More sites, a larger epsilon or fewer columns would not change that."
    if facts.colluders is None and facts.clients > 2:
        ways.append("perhaps a masked sum (--colluders)")
    return f"It would take {', or '.join(ways)}."


def _run(out: Path) -> str:
    return command("run", out)


def _study_text(advice: Advice) -> str:
    """The settings as a file for ``proxyfl run``, with the advice as its head."""
    lines = [_verdict(advice), _gain(advice.expected), _cost(advice)]
    head = "".join(f"# {line}\n" for line in ["The advice for these settings:", *lines])
    tree = _tree(advice.facts, advice.settings)
    method = "proxyfl" if advice.facts.colluders is None else "proxysum"
    tree = {"methods": ["alone", method, "pooled"], "evaluate_every": tree["rounds"]} | tree
    tree["models"]["private"] = "logistic|trees"
    tree["proxy_optimizer"]["weight_decay"] = 0.0
    tree["partition"] = {"kind": "site", "clients": advice.facts.clients}
    return head + _settings.tree_to_toml(tree)


def _tree(facts: Facts, settings: Settings) -> Document:
    """The settings as a config has them."""
    exchange: Document = {"settle": "auto", "average": 0.5}
    if facts.colluders is not None:
        exchange = {
            "settle": settings.settle,
            "average": 0.5,
            "colluders": facts.colluders,
            "quorum": facts.clients,
        }
    return {
        "rounds": settings.rounds + settings.settle,
        "models": {"proxy": "linear"},
        "learning": {"batch_size": settings.batch, "steps_per_round": 1},
        "privacy": {
            "sampling_rate": 1.0,
            "delta": facts.delta,
            "noise_multiplier": settings.noise_multiplier,
        },
        "proxy_optimizer": {
            "name": "sgd",
            "momentum": settings.momentum,
            "learning_rate": settings.learning_rate,
        },
        "exchange": exchange,
    }


def _rehearse(source: str, facts: Facts) -> Document:
    """The gain on a public dataset that is divided among as many clients."""
    from proxyfl.simulation import run

    method = "proxyfl" if facts.colluders is None else "proxysum"
    result = run.run(_config(source, facts, method))
    clients = range(facts.clients)
    alone = [result.kept("alone", client) or 0.0 for client in clients]
    joined = [result.kept(method, client) or 0.0 for client in clients]
    gains = [result.gain(method, client) or 0.0 for client in clients]
    spent = result.epsilon(method)
    return {
        "source": source,
        "measure": result.measure,
        "alone": sum(alone) / len(alone),
        "joined": sum(joined) / len(joined),
        "gain": 100 * sum(gains) / len(gains),
        "worse": sum(gain < -0.01 for gain in gains),
        "epsilon": None if spent is None else spent.pld,
    }


def _config(source: str, facts: Facts, method: str) -> "Config":
    """A run of ``alone`` and the method on ``source``, with the settings for its own proxy."""
    from proxyfl import models
    from proxyfl.data import sources
    from proxyfl.simulation.config import from_tree

    dataset = sources.load(source)
    if dataset.classes != facts.classes:
        raise ConfigError(
            f"The rehearsal {source!r} has {dataset.classes} classes, expected "
            f"{facts.classes}. Give its number with --classes."
        )
    proxy = models.build("linear", shape=dataset.shape, classes=dataset.classes, seed=0)
    own = replace(facts, parameters=models.parameter_count(proxy))
    tree = _tree(facts, settings_for(own))
    tree |= {
        "methods": ["alone", method],
        "evaluate_every": tree["rounds"],
        "data": {"source": source},
        "partition": {"kind": "iid", "clients": facts.clients, "examples": facts.examples},
    }
    tree["models"]["private"] = "logistic"
    tree["proxy_optimizer"]["weight_decay"] = 0.0
    return from_tree(tree)
