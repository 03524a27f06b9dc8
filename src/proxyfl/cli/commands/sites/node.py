"""``proxyfl node``: one site of a real federation."""

import argparse
from pathlib import Path

from proxyfl.cli.options import (
    JSON,
    Actions,
    Option,
    add_action,
    add_actions,
    flag,
    option,
)
from proxyfl.cli.stopping import stopping_at_once

DESCRIPTION = """\
Set up, run and look after one site of a real federation.
"""

EPILOG = """\
examples:
  proxyfl node init north --address north.example.org:7443 --data patients.csv
  proxyfl node card north > north.card.toml        for whoever keeps the manifest
  proxyfl node accept north manifest.toml          sign the manifest for this site
  proxyfl preflight north                          is everything in order?
  proxyfl node run north
  proxyfl node status north --json

A site's folder holds its keys, its settings (site.toml), its store, its privacy ledger and its
audit log. Only the card, the signed manifest and signed messages, which carry the proxies, leave
the site. docs/node.md is a tutorial.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    actions = add_actions(parser)
    _action(
        actions,
        "init",
        "make a site's folder: keys, certificate, settings",
        option("--name", "the site's name (default: the folder's)"),
        option(
            "--address HOST:PORT",
            "where peers reach this site; without it, the site can only dial out",
            str,
            "",
        ),
        option(
            "--data SOURCE",
            "this site's examples: a file in its folder, or a dataset of `proxyfl data`",
            str,
            "data.npz",
        ),
        option(
            "--status-port PORT",
            "of the status page, on this machine only",
            int,
            7480,
        ),
    )
    _action(actions, "card", "print the card that the others need")
    _action(
        actions,
        "certificate",
        "renew, or have your own authority sign",
        flag("--request", "print a signing request"),
        option("--install PEM", "the signed certificate", Path),
        option("--authority PEM", "whoever signed it", Path),
    )
    _action(
        actions,
        "accept",
        "sign a manifest for this site",
        option("manifest MANIFEST", "its file or folder", Path),
    )
    _action(
        actions,
        "run",
        "take part until the end",
        option(
            "--simulated-seed N",
            "for tests only: seeded noise, which protects nobody; the ledger says so",
            int,
        ),
        flag("--no-status-page", "serve no status page"),
    )
    _action(actions, "status", "how far the site is, and with whom", JSON)
    _action(actions, "stop", "ask a running site to stop after its round")
    _action(actions, "leave", "hand the site's mass on and leave the federation")
    _action(
        actions,
        "rejoin",
        "continue after a restore from an old backup",
        option("--round", "the round that a peer named", int, required=True),
    )
    _action(
        actions,
        "export",
        "the private model, for use elsewhere",
        option("out OUT", "a new folder for the files", Path),
    )


def execute(args: argparse.Namespace) -> int:
    """Do what the action says."""
    with stopping_at_once():
        from proxyfl.cli.commands.sites.node_actions import ACTIONS

    return ACTIONS[args.action](args)


def _action(actions: Actions, name: str, summary: str, *options: Option) -> None:
    folder = option("folder SITE", "the site's folder", Path)
    add_action(actions, name, summary, (folder, *options))
