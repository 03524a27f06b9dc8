"""Fit the rule of ``proxyfl worth`` to made-up federations: ``python -m benchmarks.calibration``.

Federations are drawn with random knobs (``benchmarks.draws``, ``drawn-N``). For each, ``alone``,
``pooled``, the shared proxy and what sites keep are measured under gossip and the masked sum
(t = K // 2), at epsilon 1 and 3, over several draws of noise. What is in ``--measured`` already is
not run again. Then the rule's constants are fitted three times over:

    own, noise, width, power    least squares of the AUROC of ``alone`` and of the shared proxy
    reach                       least squares of the mean gain of what sites keep
    spread                      the quantile of single runs' gains that one in six falls below

Every federation is also predicted by a rule that was fitted to all the others. ``--out`` has the
rule, the predictions and what was measured, as one small JSON file. The score that the literature
would give is the federation's ``pooled``. With ``--fit-only`` nothing is measured: the file is made
of what ``--measured`` has, and a federation without kept models counts for the first fit alone.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import draws
from proxyfl.privacy.worth import RULE, WORTH, Facts, Rule, own_error, proxy_error, step_for, worth

RESULTS = Path(__file__).resolve().parents[1] / "experiments" / "results" / "worth.json"
FEDERATIONS = [f"{draws.DRAWN}{n}" for n in range(40)]
MECHANISMS = ("gossip", "masked")
LITTLE = 0.01
"""AUROC that pooling must add for a share of it to mean anything."""
ONE_IN_SIX = 5 / 6


@dataclass(frozen=True)
class Case:
    """A federation under one mechanism and budget: its public facts, and what was measured."""

    federation: str
    facts: Facts
    mechanism: str
    alone: float
    shared: float
    runs: tuple[float, ...]
    """The gain of each run, the mean over sites, in AUROC; empty where no kept model was
    measured."""
    worse: float | None
    """The share of sites that keep something more than a point below their own model."""

    @property
    def gain(self) -> float:
        return statistics.mean(self.runs)

    @property
    def most(self) -> float:
        return self.facts.score - self.alone


def cases_of(lines: Sequence[dict[str, Any]]) -> list[Case]:
    """The cases of one federation, from its measurements with each seed."""
    lines = sorted(lines, key=lambda line: not any(each["kept"] for each in line["joined"]))
    first = lines[0]
    sizes = [n for line in lines for n in line["sizes"]]
    clients = len(first["sizes"])
    score = statistics.mean(line["pooled"] for line in lines)
    alone = statistics.mean(_merged(line["alone"]) for line in lines)
    found = []
    for joined in first["joined"]:
        if joined["mechanism"] not in MECHANISMS:
            continue
        colluders = clients // 2 if joined["mechanism"] == "masked" else None
        facts = Facts(
            clients,
            round(statistics.mean(sizes)),
            first["parameters"],
            joined["epsilon"],
            first["delta"],
            score=round(min(max(score, 0.51), 0.99), 3),
            prevalence=round(statistics.mean(line["prevalence"] for line in lines), 3),
            colluders=colluders,
        )
        if any(each["kept"] for each in first["joined"]):
            is_the_rules = bool(joined["kept"])
        else:
            is_the_rules = joined["step"] == step_for(facts)
        if not is_the_rules:
            continue
        runs = [
            _merged(kept) - _merged(line["alone"])
            for line in lines
            for kept in _same(line, joined)["kept"]
        ]
        shared = [score for line in lines for score in _same(line, joined)["shared"]]
        found.append(
            Case(
                first["study"],
                facts,
                joined["mechanism"],
                alone,
                statistics.mean(shared),
                tuple(runs),
                _worse(lines, joined),
            )
        )
    return found


def _merged(scores: Sequence[Sequence[float]]) -> float:
    """The mean over sites of the scores on the merged test part."""
    return statistics.mean(merged for merged, _ in scores)


def _same(line: dict[str, Any], joined: dict[str, Any]) -> dict[str, Any]:
    """What was measured with another seed under the same mechanism, budget and step."""
    keys = ("epsilon", "mechanism", "step")
    found: dict[str, Any] = next(
        each for each in line["joined"] if all(each[key] == joined[key] for key in keys)
    )
    return found


def _worse(lines: Sequence[dict[str, Any]], joined: dict[str, Any]) -> float | None:
    lost = [
        after[0] < before[0] - LITTLE
        for line in lines
        for kept in _same(line, joined)["kept"]
        for after, before in zip(kept, line["alone"], strict=True)
    ]
    return statistics.mean(lost) if lost else None


def fit(cases: Sequence[Case]) -> Rule:
    """The rule that describes these cases best."""
    from scipy.optimize import least_squares

    def rule_of(theta: Sequence[float]) -> Rule:
        own, noise, width, power = (float(value) for value in theta)
        return replace(
            RULE, own=float(np.exp(own)), noise=float(np.exp(noise)), width=width, power=power
        )

    def errors(theta: Sequence[float]) -> list[float]:
        rule = rule_of(theta)
        found = []
        for case in cases:
            facts = case.facts
            found.append(facts.auroc(own_error(facts, rule=rule)) - case.alone)
            found.append(facts.auroc(proxy_error(facts, rule)) - case.shared)
        return found

    start = [np.log(RULE.own), np.log(RULE.noise), RULE.width, RULE.power]
    solved = least_squares(errors, start, loss="soft_l1", f_scale=0.02).x
    rule = replace(rule_of(solved), reach=1.0)
    joined = [case for case in cases if case.runs]
    expected = np.array([worth(case.facts, rule=rule).gain for case in joined]) / 100
    measured = np.array([case.gain for case in joined])
    # nobody keeps more than what pooling gives, in the mean
    rule = replace(rule, reach=min(1.0, float(expected @ measured / (expected @ expected))))
    below: list[float] = []
    for case in joined:
        found = worth(case.facts, rule=replace(rule, spread=1.0))
        unit = found.gain - found.low
        below.extend((found.gain - 100 * run) / unit for run in case.runs)
    return replace(rule, spread=float(np.quantile(below, ONE_IN_SIX)))


def compare(case: Case, rule: Rule) -> dict[str, Any]:
    """Predicted against measured, as the record has it."""
    found = worth(case.facts, rule=rule)
    measurable = case.most >= LITTLE and case.runs
    return {
        "federation": case.federation,
        "mechanism": case.mechanism,
        "epsilon": case.facts.epsilon,
        "facts": {k: v for k, v in asdict(case.facts).items() if v is not None},
        "alone": [round(found.alone, 4), round(case.alone, 4)],
        "shared": [
            round(case.facts.auroc(proxy_error(case.facts, rule)), 4),
            round(case.shared, 4),
        ],
        "gain": [round(found.gain, 2), round(100 * case.gain, 2) if case.runs else None],
        "share": [round(found.share, 3), round(case.gain / case.most, 3) if measurable else None],
        "low": round(found.low, 2),
        "runs": [round(100 * run, 2) for run in case.runs],
        "join": found.join,
        "sites_worse": None if case.worse is None else round(case.worse, 3),
    }


def summary(compared: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How far the predictions are off, and how often the advice is wrong."""
    shared = [row["shared"] for row in compared]
    alone = [row["alone"] for row in compared]
    compared = [row for row in compared if row["runs"]]
    shares = [row["share"] for row in compared if row["share"][1] is not None]
    runs = [(run, row["low"]) for row in compared for run in row["runs"]]
    joining = [row for row in compared if row["join"]]
    return {
        "cases": len(shared),
        "cases_with_kept_models": len(compared),
        "mean_error_gain": round(_mean_error([row["gain"] for row in compared]), 2),
        "mean_error_alone": round(100 * _mean_error(alone), 2),
        "mean_error_shared": round(100 * _mean_error(shared), 2),
        "mean_error_share": round(_mean_error(shares), 3),
        "median_error_share": round(
            statistics.median(abs(said - seen) for said, seen in shares), 3
        ),
        "runs_below_low": round(sum(run < low for run, low in runs) / len(runs), 3),
        "advised_to_join": len(joining),
        "advised_and_lost": sum(row["gain"][1] < 0 for row in joining),
        "sites_worse_where_advised": round(
            statistics.mean(row["sites_worse"] for row in joining) if joining else 0.0, 4
        ),
        "not_advised_and_gained": sum(
            row["gain"][1] >= WORTH for row in compared if not row["join"]
        ),
    }


def _mean_error(pairs: Sequence[Sequence[float]]) -> float:
    return statistics.mean(abs(said - seen) for said, seen in pairs)


def main() -> None:
    """Measure what is missing, fit, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("federations", nargs="*", default=FEDERATIONS, metavar="FEDERATION")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument(
        "--measured", type=Path, nargs="+", default=[Path("calibration.jsonl")], metavar="FILE"
    )
    parser.add_argument("--fit-only", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if not args.fit_only:
        draws.measure_missing(args.federations, args.seeds, args.measured[0], draws=6, kept=2)
    lines: dict[str, list[dict[str, Any]]] = {}
    known: set[tuple[str, int]] = set()
    for line in (line for path in args.measured for line in draws.records(path)):
        key = (line["study"], line["seed"])
        if key not in known and line["study"] in args.federations and line["seed"] in args.seeds:
            known.add(key)
            lines.setdefault(line["study"], []).append(line)
    cases = [case for name in lines for case in cases_of(lines[name])]
    compared: list[dict[str, Any]] = []
    for name in lines:
        rule = fit([case for case in cases if case.federation != name])
        compared.extend(compare(case, rule) for case in cases if case.federation == name)
    fitted = fit(cases)
    found = summary(compared)
    document = {
        "command": "python -m benchmarks.calibration",
        "seeds": args.seeds,
        "rule": {key: round(value, 4) for key, value in asdict(fitted).items()},
        "left_out": found,
        "cases": compared,
    }
    rows = ",\n  ".join(json.dumps(row) for row in document.pop("cases"))
    text = json.dumps(document, indent=1)[:-2] + f',\n "cases": [\n  {rows}\n ]\n}}\n'
    args.out.write_text(text, encoding="utf-8")
    print(json.dumps(document, indent=1), file=sys.stderr)


if __name__ == "__main__":
    main()
