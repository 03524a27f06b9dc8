"""Two records of one experiment, of different seeds or settings, as one record.

Studies take days: what was run yesterday, or on another machine, is kept when more is recorded.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from proxyfl.errors import RunError
from reproduction.records import MEASURES, Group, Record

_VARIES = ("seed", "methods")
"""Settings of the first run that another run of the same experiment has otherwise."""


def merged(old: Record, new: Record) -> Record:
    """Both records as one.

    Guarantees:
        * a seed that both have is the new record's;
        * a group has the rounds that all of its seeds have;
        * records of different settings are refused, with the first setting that differs.

    Times stay the old record's, and those of other methods are brought to its machine."""
    _refuse_others(old, new)
    groups = {_key(group): group for group in old.groups}
    for group in new.groups:
        before = groups.get(_key(group))
        groups[_key(group)] = group if before is None else _joined(before, group)
    speed = old.yardstick / new.yardstick
    seconds = {method: round(taken * speed, 4) for method, taken in new.seconds_per_round.items()}
    return replace(
        old,
        rounds=new.rounds,
        seeds=new.seeds,
        seconds_per_round={**seconds, **old.seconds_per_round},
        groups=list(groups.values()),
    )


def _refuse_others(old: Record, new: Record) -> None:
    for key in sorted(old.base.keys() & new.base.keys()):
        if key in _VARIES or old.base[key] == new.base[key]:
            continue
        raise RunError(
            f"{old.experiment}: recorded with {key}={old.base[key]}, run with "
            f"{key}={new.base[key]}. Record it without --add, or to another file."
        )


def _key(group: Group) -> tuple[str, str, str]:
    settings = json.dumps(dict(group.settings), sort_keys=True)
    return group.method, group.role, settings


def _joined(old: Group, new: Group) -> Group:
    """One group of the seeds of both."""
    rounds = [done for done in old.rounds if done in new.rounds]
    if not rounds:
        raise RunError(
            f"{new.method} {new.role}: scored after rounds {list(new.rounds)}, recorded after "
            f"{list(old.rounds)}: none in common. Run it further."
        )
    owner = dict.fromkeys(old.seeds, old)
    owner.update(dict.fromkeys(new.seeds, new))
    owner = dict(sorted(owner.items()))
    scores: dict[str, Any] = {}
    for measure in MEASURES:
        scores[measure] = _scores(owner, measure, rounds)
    return replace(
        new,
        seeds=list(owner),
        rounds=rounds,
        epsilon=[_largest(old, new, done) for done in rounds],
        keeps=_by_seed(owner, "keeps"),
        **scores,
    )


def _scores(
    owner: dict[int, Group], measure: str, rounds: Sequence[int]
) -> list[list[Sequence[float]]]:
    """Each seed's scores after ``rounds``; none if not all seeds have this measure."""
    found: list[list[Sequence[float]]] = []
    scored = _by_seed(owner, measure)
    if not scored:
        return found
    for group, by_round in zip(owner.values(), scored, strict=True):
        places = [list(group.rounds).index(done) for done in rounds]
        found.append([by_round[place] for place in places])
    return found


def _by_seed(owner: dict[int, Group], name: str) -> list[Any]:
    """What each seed has of ``name``; nothing if one of them has not."""
    if not all(getattr(group, name) for group in owner.values()):
        return []
    found = []
    for seed, group in owner.items():
        place = list(group.seeds).index(seed)
        found.append(getattr(group, name)[place])
    return found


def _largest(old: Group, new: Group, done: int) -> float | None:
    spent = [group.epsilon_at(done) for group in (old, new)]
    known = [epsilon for epsilon in spent if epsilon is not None]
    return max(known, default=None)
