"""A published risk score on its own: ``python -m benchmarks.published data/gusto.csv``.

The TIMI risk score for heart attacks with ST elevation (Morrow et al., Circulation 2000;102:2031)
was developed on InTIME II, other patients than GUSTO-I's. Points: age 65 to 74 (2), 75 and more
(3); diabetes, hypertension or angina (1); systolic pressure below 100 (3); pulse above 100 (2);
Killip II to IV (2); weight below 67 kg (1); anterior infarction (1). GUSTO-I's table has no time to
treatment and no bundle branch block: their points are left out.

Prints the AUROC for death within 30 days, over all records and as the mean over groups of
hospitals that have deaths; nothing is fitted, so there is no test part."""

import argparse
import csv
import statistics
from pathlib import Path

import numpy as np

from benchmarks.draws import ranked


def timi(row: dict[str, str]) -> int:
    """The points of one patient; what is missing has none."""

    def value(name: str) -> float:
        try:
            return float(row[name])
        except ValueError:
            return float("nan")

    age = value("age")
    points = 3 if age >= 75 else 2 if age >= 65 else 0
    points += int(row["dia"] == "1" or row["htn"] == "2" or row["pan"] == "2")
    points += 3 * (value("sysbp") < 100) + 2 * (value("pulse") > 100)
    points += 2 * (row["Killip"] in ("II", "III", "IV"))
    points += (value("weight") < 67) + (row["miloc"] == "Anterior")
    return int(points)


def main() -> None:
    """Score the patients of a file and print the AUROC."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="GUSTO-I as a CSV file")
    args = parser.parse_args()
    with args.file.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    scores = np.array([timi(row) for row in rows], dtype=float)
    died = np.array([int(row["day30"]) for row in rows])
    print(f"{len(rows)} patients, {died.mean():.1%} died, AUROC {ranked(scores, died):.3f}")
    groups = np.array([row["grps"] for row in rows])
    each = [ranked(scores[groups == g], died[groups == g]) for g in np.unique(groups)]
    known = [score for score in each if score == score]
    print(f"mean over {len(known)} groups of hospitals {statistics.mean(known):.3f}")


if __name__ == "__main__":
    main()
