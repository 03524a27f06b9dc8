"""Divides BreaKHis's patients among four sites: ``python breakhis_sites.py INDEX OUT``.

Patients are sorted by diagnosis and name and dealt in turn, so that each site has both diagnoses
and a patient is at one site.
"""

import csv
import sys
from pathlib import Path


def main() -> None:
    """Write the index with a column ``site``."""
    with Path(sys.argv[1]).open(newline="") as file:
        rows = list(csv.DictReader(file))
    patients = sorted({(row["label"], row["patient_slide"]) for row in rows})
    site_of = {patient: f"site-{i % 4}" for i, (_, patient) in enumerate(patients)}
    with Path(sys.argv[2]).open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "site"])
        writer.writeheader()
        for row in rows:
            writer.writerow({**row, "site": site_of[row["patient_slide"]]})


if __name__ == "__main__":
    main()
