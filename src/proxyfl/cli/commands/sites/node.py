"""``proxyfl node``: one site of a real federation."""

import argparse
from pathlib import Path

from proxyfl.cli.options import (
    Actions,
    add_action,
    add_actions,
    add_json,
    flag,
    option,
)

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
audit log. Nothing of it leaves the site but the card and the proxies. docs/node.md is a tutorial.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    actions = add_actions(parser)
    init = _action(
        actions, "init", "make a site's folder: keys, certificate, settings"
    )
    option(init, "--name", "the site's name (default: the folder's)")
    option(
        init,
        "--address HOST:PORT",
        "where peers reach this site; without it, the site can only dial out",
        str,
        "",
    )
    option(
        init,
        "--data SOURCE",
        "this site's examples: a file in its folder, or a dataset of `proxyfl data`",
        str,
        "data.npz",
    )
    option(
        init,
        "--status-port PORT",
        "of the status page, on this machine only",
        int,
        7480,
    )
    _action(actions, "card", "print the card that the others need")
    certificate = _action(
        actions, "certificate", "renew, or have your own authority sign"
    )
    flag(certificate, "--request", "print a signing request")
    option(certificate, "--install PEM", "the signed certificate", Path)
    option(certificate, "--authority PEM", "whoever signed it", Path)
    accept = _action(actions, "accept", "sign a manifest for this site")
    option(accept, "manifest MANIFEST", "its file or folder", Path)
    run = _action(actions, "run", "take part until the end")
    option(
        run,
        "--simulated-seed N",
        "for tests only: seeded noise, which protects nobody; the ledger says so",
        int,
    )
    flag(run, "--no-status-page", "serve no status page")
    status = _action(actions, "status", "how far the site is, and with whom")
    add_json(status)
    _action(actions, "stop", "ask a running site to stop after its round")
    _action(actions, "leave", "hand the site's mass on and leave the federation")
    rejoin = _action(
        actions, "rejoin", "continue after a restore from an old backup"
    )
    option(rejoin, "--round", "the round that a peer named", int, required=True)
    export = _action(actions, "export", "the private model, for use elsewhere")
    option(export, "out OUT", "a new folder for the files", Path)


def execute(args: argparse.Namespace) -> int:
    """Do what the action says."""
    from proxyfl.cli.commands.sites.node_actions import ACTIONS

    return ACTIONS[args.action](args)


def _action(actions: Actions, name: str, summary: str) -> argparse.ArgumentParser:
    parser = add_action(actions, name, summary)
    option(parser, "folder SITE", "the site's folder", Path)
    return parser
