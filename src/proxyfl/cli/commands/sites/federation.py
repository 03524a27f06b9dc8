"""``proxyfl federation``: found one, change it, look at it, try it out."""

import argparse
from pathlib import Path

from proxyfl.cli.options import add_action, add_actions, add_json, option

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


def add(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    actions = add_actions(parser)
    new = add_action(actions, "new", "collect cards into a manifest")
    _add_terms(new)
    adding = add_action(
        actions, "add", "a new version of the manifest, with a site added"
    )
    _add_folder(adding)
    option(adding, "cards CARD", "the sites' cards", Path, nargs="+")
    option(adding, "--from-round", "the site's first round", int, 0)
    removing = add_action(
        actions, "remove", "a new version of the manifest, without a site"
    )
    _add_folder(removing)
    option(removing, "names NAME", "the sites' names", nargs="+")
    showing = add_action(actions, "show", "what a manifest says")
    _add_folder(showing)
    add_json(showing)
    trying = add_action(
        actions, "try", "a whole federation on this machine, for a first look"
    )
    option(trying, "--sites", "how many", int, 4)
    option(trying, "--rounds", "how many", int, 30)
    option(trying, "--out DIR", "keep the sites' folders here", Path)
    add_json(trying)


def execute(args: argparse.Namespace) -> int:
    """Do what the action says."""
    from proxyfl.cli.commands.sites.federation_actions import ACTIONS

    return ACTIONS[args.action](args)


def _add_folder(parser: argparse.ArgumentParser) -> None:
    option(parser, "folder DIR", "the folder of the manifest", Path)


def _add_terms(new: argparse.ArgumentParser) -> None:
    """Add what the members agree on."""
    _add_folder(new)
    option(new, "cards CARD", "the sites' cards", Path, nargs="+")
    option(new, "--name", "the federation's name (default: the folder's)")
    option(
        new, "--schema", "the public schema of a table; see proxyfl schema", Path
    )
    option(new, "--shape", "of one example, without a schema: 13, or 1,28,28")
    option(new, "--classes", "in order, separated by commas, without a schema")
    option(new, "--proxy", "an architecture of `proxyfl models`", str, "linear")
    option(new, "--seed", "of the proxy's initial parameters", int, 0)
    option(
        new, "--rounds", "how many (default: 60, or as many as --until lets)", int
    )
    option(
        new,
        "--until DATE",
        "no round begins after this, such as 2027-03-31 (UTC)",
        str,
        "",
    )
    option(
        new,
        "--settle N",
        "last rounds in which proxies only mix, or auto",
        str,
        "0",
    )
    option(
        new,
        "--average SHARE",
        "of the training rounds whose proxies are averaged before they settle",
        float,
        0.0,
    )
    option(
        new,
        "--balance",
        "for uneven classes, in the proxy's loss: weights or prior",
        str,
        "none",
    )
    option(
        new,
        "--prevalence",
        "publicly known shares of the classes, if no schema states them: 0.9,0.1",
        str,
        "",
    )
    option(new, "--measure", "in which gain is reported", str, "accuracy")
    option(new, "--topology", "a name of `proxyfl topology`", str, "exponential")
    option(new, "--self-weight", "share that a site keeps", float, 0.5)
