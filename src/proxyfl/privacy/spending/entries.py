"""The lines of an account: who spent what, on which dataset, when, and by which mechanism."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from proxyfl.errors import PrivacyError
from proxyfl.privacy.guarantee import Kind, Relation
from proxyfl.privacy.spending.charges import Charge

EVERY = "every"
"""In place of a fingerprint: a study whose records are not known counts for every dataset."""


@dataclass(frozen=True)
class Entry:
    """One charge of one study. ``ledger`` is the file of the study's own ledger, and its number."""

    date: str
    dataset: str
    ids: str
    study: str
    client: str
    ledger: str
    mechanism: str
    kind: Kind
    relation: Relation
    simulated: bool
    charge: Charge

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> Self:
        """The entry in a line of the account's file."""
        try:
            about = {**line, "charge": Charge(**line["charge"])}
            about["kind"] = Kind(line["kind"])
            about["relation"] = Relation(line["relation"])
            return cls(**about)
        except (KeyError, TypeError, ValueError) as error:
            raise PrivacyError(
                f"The account has a line that this release cannot use: {error}"
            ) from error

    def line(self) -> dict[str, Any]:
        """The entry as a line of the account's file."""
        return {
            **dataclasses.asdict(self),
            "kind": str(self.kind),
            "relation": str(self.relation),
        }

    def repeats(self, other: "Entry") -> bool:
        """Whether the two are the same but for when they were made."""
        return dataclasses.replace(self, date=other.date) == other
