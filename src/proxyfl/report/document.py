"""The content of the page, as one document of plain data: the browser draws from it and from
nothing else. Every number on the page is computed here or in ``records``, none in the browser."""

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib import metadata
from typing import Any

from proxyfl._files import Document, finite
from proxyfl._settings import flat
from proxyfl.errors import ProxyFLError
from proxyfl.measures import better_by, is_lower_better, named, title_of
from proxyfl.privacy.guarantee import Epsilon, Kind, Unit, shown
from proxyfl.records import folder
from proxyfl.records import verdict as sentences
from proxyfl.records.answers import Answer, Question, answers
from proxyfl.records.certainty import (
    answer_interval,
    is_estimator,
    is_within_noise,
    majority_rate,
    plain_name,
    reference_of,
    warnings_over,
)
from proxyfl.records.groups import Group, distinct, groups
from proxyfl.records.judged import judged, shares
from proxyfl.records.palette import looks
from proxyfl.records.row import Row, measures_in
from proxyfl.records.run import Run
from proxyfl.records.verdict import bet, noun_of
from proxyfl.report.graph import graph
from proxyfl.report.series import costs, curves, epsilons


def document(runs: Sequence[Run], *, live: Mapping[str, Any] | None = None) -> Document:
    """Returns everything about ``runs``; ``live`` is what a page that follows a run needs to ask
    for more."""
    methods = distinct(run.methods for run in runs)
    recorded = _list_measures(runs)
    now = datetime.datetime.now(datetime.UTC)
    content = {
        "study": study_name(runs),
        "made": now.isoformat(timespec="seconds"),
        "live": live,
        "looks": looks(methods),
        "measures": {name: title_of(name) for name in recorded},
        "version": metadata.version("proxyfl"),
        "lower": [name for name in recorded if is_lower_better(name)],
        "kinds": {str(kind): kind.sentence for kind in Kind},
        "units": {str(unit): unit.sentence for unit in Unit},
        "groups": [_group(group, runs, recorded) for group in groups(runs)],
        "runs": [about(run) for run in runs],
    }
    plain: Document = finite(content)
    return plain


def study_name(runs: Sequence[Run]) -> str:
    """The title of the page: the first run's name, or that of the folder whose splits they are,
    without the time at which it was begun."""
    first = runs[0]
    splits = [re.fullmatch(r"split-\d+", run.name) for run in runs]
    parents = {run.path.resolve().parent for run in runs if run.path is not None}
    if all(splits) and len(parents) == 1:
        return _undated(parents.pop().name)
    more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    return f"{_undated(first.name)}{more}"


def _undated(name: str) -> str:
    return re.sub(r"^\d{8}-\d{6}-", "", name)


def about(run: Run) -> Document:
    """A run's own part of the document, besides what it shares with its group."""
    environment = dict(run.environment)
    notes = environment.pop("notes", [])
    methods = {}
    for name in run.methods:
        methods[name] = asdict(run.method(name))
    return {
        "name": run.name,
        "seed": run.seed,
        "rounds": run.rounds,
        "progress": run.progress,
        "finished": run.finished,
        "ended": run.summary is not None,
        "settings": run.flat,
        "environment": flat(environment),
        "simulation": bool(environment.get("simulation", False)),
        "methods": methods,
        "names": run.clients,
        "classes": run.classes,
        "task": dict(run.task),
        "clients": run.described,
        "confusion": _confusion(run),
        "judged": judgements(run),
        "majority": majority_rate(run),
        "alone_is_estimator": is_estimator(run),
        "notes": notes,
        "by_class": _by_class(run),
        "additions": run.additions,
        "graph": graph(run),
        "peers": _peers(run),
    }


def _peers(run: Run) -> Document | None:
    """What a real site knows of the other members; None for a simulation, or a folder from which
    the site's own files were left out."""
    if run.path is None or not folder.is_site(run.path):
        return None
    from proxyfl.node.observe import status  # needed for real sites only

    try:
        return status.peers_of(run.path)
    except ProxyFLError:
        return None


def verdict(answer: Answer) -> Document:
    """An answer as plain data."""
    gain = answer.gain
    interval = answer_interval(answer)
    return {
        "method": answer.method,
        "measure": answer.asked.measure,
        "clients": len(answer.gains),
        "gaining": answer.gaining,
        "losing": answer.losing,
        "mean_gain": gain.mean if gain else None,
        "lowest_gain": gain.low if gain else None,
        "highest_gain": gain.high if gain else None,
        "interval": interval,
        "within_noise": is_within_noise(interval),
        "after": answer.after,
        **cost(answer.epsilon),
    }


def told(group: Group) -> list[Document]:
    """Per method but ``alone``: how many clients gain over it, by how much, and the largest epsilon
    with its kind."""
    verdicts_of = answers(group, Question(group.runs[0].measure))
    return [verdict(one) for one in verdicts_of if one.method != "alone"]


def cost(epsilon: Epsilon) -> Document:
    """An epsilon as plain data: never without its kind."""
    return {
        "epsilon": None if epsilon.kind is Kind.NONE else epsilon.best,
        "delta": epsilon.delta,
        "epsilon_kind": str(epsilon.kind),
        "epsilon_unit": str(epsilon.unit),
        "epsilon_noun": epsilon.unit.noun,
        "epsilon_all_others": None if epsilon.kind is Kind.NONE else epsilon.against_all,
        "epsilon_against": list(epsilon.sentences),
    }


def _list_measures(runs: Sequence[Run]) -> list[str]:
    """The runs' own measures, then the others that some run has a score in."""
    own = [run.measure for run in runs if named(run.measure) is not None]
    finals: list[Row] = []
    for run in runs:
        for name in run.methods:
            finals += run.finals(name)
    return list(dict.fromkeys([*own, *measures_in(finals)]))


def _group(group: Group, runs: Sequence[Run], measures: Sequence[str]) -> Document:
    members = [number for number, run in enumerate(runs) if run in group.runs]
    by_measure = {}
    finish = {}
    for measure in measures:
        answers_of = answers(group, Question(measure))
        by_measure[measure] = [_answer(one) for one in answers_of]
        finish[measure] = _finish(answers_of)
    charts: Document = {"curves": {}, "epsilons": {}, "costs": {}}
    for name in group.methods:
        charts["curves"][name] = curves(group, name)
        charts["epsilons"][name] = epsilons(group, name)
        charts["costs"][name] = costs(group, name)
    return {
        "label": group.label,
        "runs": members,
        "clients": group.clients,
        "budget": _budget(group.runs[0]),
        "noun": noun_of(group),
        "warnings": warnings_over(group.runs),
        "finish": finish,
        "plain_name": plain_name(group.runs[0]).removesuffix(" regression"),
        "plain": {measure: _plain(group, measure) for measure in measures},
        "answers": by_measure,
        **charts,
    }


def is_without_width(interval: Sequence[float] | None) -> bool:
    """True for an interval that says nothing: no test person is answered otherwise than before."""
    return interval is not None and interval[0] == interval[1] == 0


def _finish(candidates: Sequence[Answer]) -> Document | None:
    """The score of the model that has all records, as far as there is one."""
    for name in ("pooled", "joint"):
        for one in candidates:
            if one.method == name:
                return {"method": name, "score": one.score.mean}
    return None


def _alone(answer: Answer, client: int) -> list[float]:
    """What a client has alone, in every run in which it was compared."""
    asked = answer.asked
    scores = []
    for number, who in answer.gains:
        run = answer.group.runs[number]
        if who == client and asked.against in run.methods:
            after = answer.rounds[number]
            scores.append(run.kept(asked.against, client, asked.measure, after=after))
    return [score for score in scores if score is not None]


def _answer(answer: Answer) -> Document:
    names = answer.group.clients
    clients = []
    for client, gain in answer.by_client().items():
        interval = answer_interval(answer, client)
        own = [value for (_, who), value in answer.scores.items() if who == client]
        scores = own or list(answer.scores.values())
        about = {
            "client": client,
            "name": names.get(client, f"client {client}"),
            "score": sum(scores) / len(scores),
            "alone": _mean(_alone(answer, client)),
            "within_noise": is_within_noise(interval),
            "unchanged": gain.mean == 0 and is_without_width(interval),
            "gain": gain.mean,
            "low": gain.low,
            "high": gain.high,
            "n": gain.n,
            "interval": interval,
        }
        clients.append(about)
    weak = answer.epsilon.kind is not Kind.NONE and answer.epsilon.weak
    words = shown(answer.epsilon.best, 2)
    alone: list[float] = []
    for client in answer.by_client():
        own_alone = _mean(_alone(answer, client))
        if own_alone is not None:
            alone.append(own_alone)
    said = None
    if answer.gain is not None and answer.method != "alone":
        said = asdict(sentences.verdict(answer))
    epsilon = answer.epsilon
    return verdict(answer) | {
        "said": said,
        "score": answer.score.mean,
        "alone": _mean(alone),
        "bet": None if epsilon.kind is Kind.NONE else bet(epsilon.best, epsilon.delta),
        "shares": answer.shares,
        "shown": words,
        "shown_all_others": shown(answer.epsilon.against_all, 2),
        "weak": weak,
        "by_client": clients,
    }


def _plain(group: Group, measure: str) -> float | None:
    """The mean score of plain regressions on the clients' records, where it is known."""
    scores = []
    for run in group.runs:
        for client in run.clients:
            score = reference_of(run, client, measure)
            if score is not None:
                scores.append(score)
    return _mean(scores)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _budget(run: Run) -> Document | None:
    """The epsilon that each client may spend, and by which accountant."""
    given = run.flat.get("privacy.budget")
    if not isinstance(given, int | float | tuple):
        return None
    each = {}
    for client in run.clients:
        if not isinstance(given, tuple):
            each[client] = given
        elif client < len(given):
            each[client] = given[client]
    return {"epsilon": each, "accountant": run.flat.get("privacy.accountant", "pld")}


def _confusion(run: Run) -> Document:
    """Method -> client -> role -> counts and their shares of each true class; ROLE_own is the
    client's own test part."""
    by_method: Document = {}
    for name in run.summed_up.get("methods", ()):
        by_method[name] = {}
        for client, by_role in run.confusion(name).items():
            about = {}
            for role, counts in by_role.items():
                about[role] = {"counts": counts, "shares": shares(counts)}
            by_method[name][client] = about
    return by_method


def judgements(run: Run) -> list[Document]:
    """Every kept model on every test set that it was judged on: measure -> [value, low, high] and
    the calibration curve."""
    documents = []
    for one in judged(run):
        scores = {}
        for measure, value in one.measures.items():
            low, high = one.intervals.get(measure) or (None, None)
            scores[measure] = [_short(value), _short(low), _short(high)]
        curve = []
        for said, true, n in one.calibration:
            curve.append([_short(said), _short(true), n])
        about = {
            "method": one.method,
            "client": one.client,
            "name": one.name,
            "on": one.on,
            "scores": scores,
            "calibration": curve,
            "probabilities": one.probabilities,
            "roc": one.roc,
            "survival": [list(point) for point in one.survival],
            "risk_groups": one.risk_groups,
            "confusion": one.confusion,
        }
        documents.append(about)
    return documents


def _short(value: float | None) -> float | None:
    """To four digits: all that a test set can tell."""
    return None if value is None else round(value, 4)


def _by_class(run: Run) -> Document:
    """Method -> client -> the accuracy of the kept model within each class, and how much better
    that is than ``alone``."""
    kept = {}
    for one in judged(run):
        if one.on == "common" and one.shares is not None:
            right = [row[number] for number, row in enumerate(one.shares)]
            kept[one.method, one.client] = right
    by_method: Document = {}
    for name in run.methods:
        for client in run.clients:
            own = kept.get((name, run.holder(name, client)))
            alone = kept.get(("alone", client))
            if own is not None:
                gain = alone and list(map(partial(better_by, "accuracy"), own, alone))
                entry = {"accuracy": own, "gain": gain}
                by_method.setdefault(name, {})[client] = entry
    return by_method
