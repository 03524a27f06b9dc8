"""``proxyfl worth``: whether joining can be expected to pay, and with which settings."""

import argparse
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from rich.console import Console

from proxyfl._settings import flat
from proxyfl.cli.options import JSON, Document, option, print_json
from proxyfl.cli.terminal.spinner import spinner
from proxyfl.errors import ConfigError
from proxyfl.privacy.statements.worth import (
    USUAL,
    WORTH,
    Facts,
    Settings,
    Worth,
    settings_for,
    worth,
)

if TYPE_CHECKING:
    from proxyfl.simulation.config import Config

DESCRIPTION = """\
Say how much joining can be expected to gain, whether to join at all, and which proxy, batch, noise
and rounds to take: from public facts alone, no record is read. A rule of thumb, checked against
recorded studies (docs/joining.md). With --rehearsal, a public or synthetic dataset is divided among
K clients and the gain is measured on it, with these settings. Exit code 1 if joining is not
expected to be worth a point of AUROC.
"""

EPILOG = """\
examples:
  proxyfl worth --clients 4 --examples 184 --parameters 50 --epsilon 1
  proxyfl worth --clients 8 --examples 1000 --parameters 650 --classes 10 --seen 2 \\
                --score 0.98 --epsilon 1 --json
  proxyfl worth --clients 8 --examples 150 --parameters 650 --classes 10 --epsilon 3 \\
                --rehearsal digits
"""


OPTIONS = (
    option("--clients K", "sites that join", int, required=True),
    option(
        "--examples N",
        "training examples of a site, on average",
        int,
        required=True,
    ),
    option(
        "--parameters P",
        "the proxy's parameters (proxyfl models)",
        int,
        required=True,
    ),
    option("--epsilon E", "what may be spent", float, required=True),
    option("--delta D", "the guarantee's delta (default: 1/(10 N))", float),
    option("--classes C", "the classes", int, 2),
    option("--seen C", "classes of which a site has examples (default: all)", int),
    option(
        "--score A",
        "AUROC of a good model of this task, from the literature",
        float,
        USUAL,
    ),
    option(
        "--rehearsal SOURCE",
        "a public or synthetic dataset on which to measure (proxyfl data)",
    ),
    JSON,
)


def execute(args: argparse.Namespace) -> int:
    """Print what is expected, and what a rehearsal measured; 1 if it is not worth it."""
    delta = args.delta or 1 / (10 * max(1, args.examples))
    facts = Facts(
        args.clients,
        args.examples,
        args.parameters,
        args.epsilon,
        delta,
        args.classes,
        args.score,
        args.seen,
    )
    with spinner("Expecting", quiet=args.json):
        expected = worth(facts)
    measured = None
    if args.rehearsal:
        with spinner("Rehearsing", quiet=args.json):
            measured = _rehearsed(args.rehearsal, facts)
    if args.json:
        print_json(_document(facts, expected, measured))
    else:
        _show(facts, expected, measured, Console(highlight=False))
    gain = expected.gain if measured is None else measured["gain"]
    return 0 if gain >= WORTH else 1


def _document(facts: Facts, expected: Worth, measured: Document | None) -> Document:
    return {
        "facts": asdict(facts),
        "expected": asdict(expected) | {"join": expected.join},
        "rehearsal": measured,
    }


def _show(
    facts: Facts,
    expected: Worth,
    measured: Document | None,
    console: Console,
) -> None:
    verdict = "Join." if expected.join else "Do not join at this budget."
    settings = expected.settings
    console.print(f"[bold]{verdict}[/bold]")
    console.print(
        f"Expected gain over a model of one's own: about {expected.gain:.1f} points of AUROC, of "
        f"{expected.most:.1f} that pooling without privacy would give ({expected.share:.0%})."
    )
    console.print(
        f"Joining counts like {expected.counts_as:,.0f} examples; a site has "
        f"{facts.examples:,}, all together {facts.clients * facts.examples:,}."
    )
    console.print(
        f"Half of what pooling gives is expected up to {expected.largest_proxy:,} "
        "parameters."
    )
    console.print("\nSettings (a linear proxy on public features, full batches):")
    for key, value in flat(_tree(facts, settings)).items():
        said = float(f"{value:g}") if isinstance(value, float) else value
        console.print(f"  {key}={said}", soft_wrap=True)
    if measured is not None:
        console.print(
            f"\nRehearsal on {measured['source']}, {measured['measure']}: alone "
            f"{measured['alone']:.3f}, joined {measured['joined']:.3f}, "
            f"gain {measured['gain']:+.1f} points; {measured['worse']} of {facts.clients} clients "
            f"more than a point below alone. Epsilon {measured['epsilon']:.3g}."
        )
    console.print(
        f"\nA rule of thumb for {settings.rounds} steps and a task on which a good model has an "
        f"AUROC of {facts.score:g} (--score); it does not know how much the sites differ. A "
        "rehearsal on public data knows more."
    )


def _tree(facts: Facts, settings: Settings) -> Document:
    """The settings as a config has them."""
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
        "exchange": {"settle": "auto", "average": 0.5},
    }


def _rehearsed(source: str, facts: Facts) -> Document:
    """The gain on a public dataset that is divided among as many clients."""
    from proxyfl.simulation import run

    result = run.run(_config(source, facts))
    clients = range(facts.clients)
    alone = [result.kept("alone", client) or 0.0 for client in clients]
    joined = [result.kept("proxyfl", client) or 0.0 for client in clients]
    gains = [result.gain("proxyfl", client) or 0.0 for client in clients]
    spent = result.epsilon("proxyfl")
    return {
        "source": source,
        "measure": result.measure,
        "alone": sum(alone) / len(alone),
        "joined": sum(joined) / len(joined),
        "gain": 100 * sum(gains) / len(gains),
        "worse": sum(gain < -0.01 for gain in gains),
        "epsilon": None if spent is None else spent.pld,
    }


def _config(source: str, facts: Facts) -> "Config":
    """A run of ``alone`` and ``proxyfl`` on ``source``, with the settings for its own proxy."""
    from proxyfl import data, models
    from proxyfl.simulation.config import from_tree

    found = data.load(source)
    if found.classes != facts.classes:
        raise ConfigError(
            f"The rehearsal {source!r} has {found.classes} classes, expected "
            f"{facts.classes}. Give its number with --classes."
        )
    proxy = models.build("linear", shape=found.shape, classes=found.classes, seed=0)
    own = replace(facts, parameters=models.parameter_count(proxy))
    tree = _tree(facts, settings_for(own))
    tree |= {
        "methods": ["alone", "proxyfl"],
        "evaluate_every": tree["rounds"],
        "data": {"source": source},
        "partition": {
            "kind": "iid",
            "clients": facts.clients,
            "examples": facts.examples,
        },
    }
    tree["models"]["private"] = "logistic"
    tree["proxy_optimizer"]["weight_decay"] = 0.0
    return from_tree(tree)
