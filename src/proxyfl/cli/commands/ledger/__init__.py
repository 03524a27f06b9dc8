"""``proxyfl ledger``: what releases about the same data cost together, and what is left."""

import argparse

from proxyfl.cli.commands.ledger import keeping, reading, sum
from proxyfl.cli.options import add_actions

DESCRIPTION = """\
An institution takes part in more than one study. Each study has a ledger of its own. Together they
reveal more about the same people than any one of them: the cost is that of all charges composed by
the accountants, which is less than their epsilons added.

An account is a folder in which an institution keeps this, one account for all of its datasets:
  1. open it once, with the epsilon that any dataset may cost in all;
  2. name it in every config (privacy.account) and site.toml ([privacy] account): each round's
     charge is then entered before its first step, and refused where the budget is spent;
  3. look at it with list and show.

A dataset is known by a fingerprint of its records' ids: persons where the data name them, else the
file's name and the row. Datasets that share ids count for each other. The same people under other
ids cannot be seen.
"""

EPILOG = """\
examples:
  proxyfl ledger open accounts --delta 1e-6 --budget-epsilon 5 --unit group
  proxyfl ledger list accounts                     every dataset: spent, left
  proxyfl ledger show accounts 3fa1                who spent what, when
  proxyfl ledger enter accounts north/ledger.jsonl     a study from before the account
  proxyfl ledger sum north/ledger.jsonl old-study/ledger.jsonl --budget-epsilon 5
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    actions = add_actions(parser)
    keeping.add(actions)
    reading.add(actions)
    sum.add(actions)
