"""What can be wrong with images, slides and stores: each kind has a name and is counted.

Nothing is left out in silence. A fault is refused, unless the user chose to skip its kind.
"""

import threading
from collections import Counter
from collections.abc import Collection, Mapping

from proxyfl._validate import choice
from proxyfl.errors import DataError

KINDS = {
    "unreadable": "a file that is no image, or one of a kind that has no stated scale",
    "misplaced": "a file that does not lie where the layout says, or outside of the folder",
    "repeated": "a file that the index names again",
    "unnamed": "a row of the index without a label, site, person or part that others have",
    "two-sites": "a person at two sites",
    "two-parts": "a person in the training part and in the test part",
    "orphan": "a contour file without a slide",
    "no-contours": "a slide without a contour file, or with one that is empty",
    "outside": "a contour that leaves its slide",
    "no-area": "a contour that encloses nothing, such as a point or a line",
    "unknown-group": "a contour of a group that is neither tumour nor hole",
    "no-scale": "a slide that does not say how large its pixels are",
    "blank": "a slide without tissue, or without a patch that has enough of it",
    "damaged": "a region of a slide that cannot be read",
    "short": "a site with fewer patches than were asked for",
}
"""Every kind of fault, in words."""

SHOWN = 3
"""Examples of each kind in a message."""


class Faults:
    """Counts faults of the kinds in ``skip``, and raises DataError at any other. Threads may share
    it."""

    def __init__(self, skip: Collection[str] = ()) -> None:
        for kind in skip:
            choice("kind of fault", kind, KINDS, error=DataError)
        self.skip = frozenset(skip)
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def report(self, kind: str, what: str) -> None:
        """Count a fault of ``kind``, or refuse it; ``what`` names the file and what was found."""
        if kind not in self.skip:
            raise DataError(
                f"{what} ({kind}: {KINDS[kind]}). Mend it, or leave such out with --skip {kind}."
            )
        with self._lock:
            self.counts[kind] += 1
            shown = self.examples.setdefault(kind, [])
            if len(shown) < SHOWN:
                shown.append(what)

    def lines(self) -> list[str]:
        """One line for each kind that was skipped: the count, the kind, examples."""
        lines = []
        for kind, count in self.counts.items():
            examples = self.examples[kind]
            more = count - len(examples)
            rest = f"; and {more} more" if more else ""
            listed = "; ".join(examples)
            lines.append(f"skipped {count} x {kind} ({KINDS[kind]}): {listed}{rest}")
        return lines


def persons_at_one_place(
    faults: Faults, kind: str, places: Mapping[str, Collection[str]]
) -> set[str]:
    """The persons to leave out because they are at two of ``places``: a set for each person."""
    strays = set()
    for person, own_places in places.items():
        if len(own_places) > 1:
            faults.report(kind, f"person {person!r} is in {' and '.join(sorted(own_places))}")
            strays.add(person)
    return strays
