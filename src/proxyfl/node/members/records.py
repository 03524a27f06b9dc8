"""A check that the records of a site are those with which it began.

A table or the answer of a query may change between two starts: a correction, new patients, a view
that somebody has edited. The promise holds all the same if the number of examples was declared, but
scores and test part would be of other records than before, unnoticed. So ``records.json`` remembers
a checksum from the first start on.

What else decides how records are read and divided (the schema, the test part's share and key) may
change: then the site remembers the new ones.

Guarantee: a site whose table changed does not start, and so charges nothing, unless ``data.changes
= "accept"``. What it remembers stays in the site's folder.
"""

from pathlib import Path

from proxyfl._examples import Examples
from proxyfl._files import read_json, write_json
from proxyfl.data.examples import checksum
from proxyfl.errors import DataError

FILE = "records.json"


def check_records(
    folder: Path, train: Examples, test: Examples, *, read_by: str, accept: bool
) -> str:
    """Compare the records with those of the last start, and remember them; ``read_by`` says how
    they were read. Returns a remark for the operator if a change was accepted, else an empty
    text."""
    now = {
        "train": len(train),
        "test": len(test),
        "checksum": checksum(test, checksum(train)),
        "read_by": read_by,
    }
    path = folder / FILE
    before = read_json(path) if path.exists() else now
    if before["read_by"] != read_by:
        before = now
    remark = ""
    if before != now:
        change = (
            f"The records have changed since this site last ran: {before['train']} examples for "
            f"training and {before['test']} for the test then, {now['train']} and {now['test']} "
            "now"
        )
        if not accept:
            raise DataError(
                f"{change}, or as many with other values. Nothing was charged. Put the earlier "
                "table back, for example as a dated copy. To go on with the new one, set changes = "
                '"accept" in [data] of site.toml; later scores are then of other records.'
            )
        remark = f"{change}. data.changes accepts that."
    write_json(path, now)
    return remark
