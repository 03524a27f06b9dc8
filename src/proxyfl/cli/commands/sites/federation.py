"""``proxyfl federation``: found one, change it, look at it, try it out."""

import argparse
from pathlib import Path

from proxyfl.cli.options import JSON, add_action, add_actions, option
from proxyfl.cli.stopping import stopping_at_once

DESCRIPTION = """\
Make and change the manifest that the members of a federation sign.
"""

EPILOG = """\
examples:
  proxyfl federation try --sites 4                 the whole of it on this machine, in two minutes
  proxyfl federation new heart --schema schema.toml *.card.toml       a table at each site
  proxyfl federation new scans --classes well,sick --shape 1,28,28 *.card.toml
  proxyfl federation add heart east.card.toml --from-round 10
  proxyfl federation remove heart west             how a site is revoked
  proxyfl federation show heart

The manifest holds no secrets. Each member signs it with `proxyfl node accept`.
"""


FOLDER = option("folder DIR", "the folder of the manifest", Path)

TERMS = (
    FOLDER,
    option("cards CARD", "the sites' cards", Path, nargs="+"),
    option("--name", "the federation's name (default: the folder's)"),
    option("--schema", "the public schema of a table; see proxyfl schema", Path),
    option("--shape", "of one example, without a schema: 13, or 1,28,28"),
    option("--classes", "in order, separated by commas, without a schema"),
    option("--proxy", "an architecture of `proxyfl models`", str, "linear"),
    option("--seed", "of the proxy's initial parameters", int, 0),
    option("--rounds", "how many (default: 60, or as many as --until lets)", int),
    option(
        "--until DATE",
        "no round begins after this, such as 2027-03-31 (UTC)",
        str,
        "",
    ),
    option(
        "--settle N", "last rounds in which proxies only mix, or auto", str, "0"
    ),
    option(
        "--average SHARE",
        "of the training rounds whose proxies are averaged before they settle",
        float,
        0.0,
    ),
    option(
        "--balance",
        "for uneven classes, in the proxy's loss: weights or prior",
        str,
        "none",
    ),
    option(
        "--prevalence",
        "publicly known shares of the classes, if no schema states them: 0.9,0.1",
        str,
        "",
    ),
    option("--measure", "in which gain is reported", str, "accuracy"),
    option("--topology", "a name of `proxyfl topology`", str, "exponential"),
    option("--self-weight", "share that a site keeps", float, 0.5),
)


def add(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    actions = add_actions(parser)
    add_action(actions, "new", "collect cards into a manifest", (*TERMS,))
    add_action(
        actions,
        "add",
        "a new version of the manifest, with a site added",
        (
            FOLDER,
            option("cards CARD", "the sites' cards", Path, nargs="+"),
            option("--from-round", "the site's first round", int, 0),
        ),
    )
    add_action(
        actions,
        "remove",
        "a new version of the manifest, without a site",
        (
            FOLDER,
            option("names NAME", "the sites' names", nargs="+"),
        ),
    )
    add_action(
        actions,
        "show",
        "what a manifest says",
        (
            FOLDER,
            JSON,
        ),
    )
    add_action(
        actions,
        "try",
        "a whole federation on this machine, for a first look",
        (
            option("--sites", "how many", int, 4),
            option("--rounds", "how many", int, 30),
            option("--out DIR", "keep the sites' folders here", Path),
            JSON,
        ),
    )


def execute(args: argparse.Namespace) -> int:
    """Do what the action says."""
    with stopping_at_once():
        from proxyfl.cli.commands.sites.federation_actions import ACTIONS

    return ACTIONS[args.action](args)
