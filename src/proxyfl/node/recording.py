"""Makes a site's folder a run's folder with one client, which ``proxyfl.records`` reads.

    config.toml        the manifest's terms and the site's settings, by the keys of a run
    environment.json   releases and machine; it says that nothing here is simulated
    metrics.jsonl      one line a round, written as the rounds end; one more for ``alone``
    models/            the final models
    summary.json       final scores, once the site has ended

So ``report``, ``table``, ``watch``, ``predict`` and ``proxyfl.load`` take a site as they take a
run. Nothing of this leaves the site.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import torch

from proxyfl import _journal, _settings
from proxyfl._files import Document, read_json, write_json, write_text
from proxyfl.data.tables import schema as schemas
from proxyfl.errors import RunError
from proxyfl.federation.client import Client
from proxyfl.federation.exchange import Traffic
from proxyfl.federation.home import Home
from proxyfl.federation.learners import Losses
from proxyfl.federation.methods import METHODS, Role
from proxyfl.federation.metrics import Judge
from proxyfl.federation.modelfile import save_model
from proxyfl.federation.rounds import ClientRound
from proxyfl.measures import Interval
from proxyfl.models.estimators import is_estimator
from proxyfl.node import assembly
from proxyfl.node.assembly import SiteData
from proxyfl.node.members.manifest import Manifest
from proxyfl.node.members.site import Site
from proxyfl.node.members.study import run_settings
from proxyfl.node.members.trust import Code
from proxyfl.node.observe import status
from proxyfl.privacy.guarantee import Kind
from proxyfl.privacy.ledger import Ledger
from proxyfl.records import folder as runs
from proxyfl.records import reading, summary
from proxyfl.records.answers import Question, answer
from proxyfl.records.certainty import answer_interval, is_within_noise
from proxyfl.records.groups import Group
from proxyfl.records.reading import SITE_CLIENT
from proxyfl.records.row import Row, row_of, score_keys


def describe(folder: Path, manifest: Manifest, site: Site, data: SiteData) -> None:
    """Writes what the site is about to run, and on what."""
    tree = run_settings(manifest, [site])
    tree |= {"threads": site.resources.threads, "device": site.resources.device}
    tree["data"] = _settings.flat(site.data)
    del tree["data"]["changes"]  # of starting again, which a run does not do
    file = folder / "environment.json"
    environment = runs.environment()
    if file.is_file():  # a later start of the same study
        with contextlib.suppress(RunError, TypeError, KeyError):  # damaged: it is written anew
            before = read_json(file)
            if before["federation"] == manifest.name:
                environment["started"] = before["started"]
    environment |= {
        "format": runs.FORMAT,
        "simulation": False,
        "site": site.name,
        "federation": manifest.name,
        "manifest_version": manifest.version,
        "notes": list(data.notes),
    }
    write_text(folder / "config.toml", _settings.tree_to_toml(tree))
    write_json(file, environment)


def is_concluded(folder: Path) -> bool:
    """True if the end of the site's last round is on record, with its gain over ``alone``.

    A site that is started again after its end keeps what it has stated: ``alone`` trained a second
    time, from other batches, would give another gain."""
    done, alone = status.rows(folder), status.rows(folder, "alone")
    if not done or not alone or alone[-1]["round"] != done[-1]["round"]:
        return False
    try:
        return reading.read(folder).finished
    except RunError:
        return False


def conclude(
    folder: Path,
    manifest: Manifest,
    site: Site,
    data: SiteData,
    client: Client,
    code: Code,
    metrics: _journal.Log,
    *,
    seed: int | None,
    check: Callable[[], None],
) -> None:
    """Scores the models that the site ends with, trains its private model ``alone`` for as many
    steps, and writes both down. ``check`` raises where the site is asked to stop meanwhile."""
    done = status.rows(folder)
    if not done:
        return
    # Every model on the same bootstrap samples, so that the gain has an interval.
    judge = Judge(
        data.test,
        manifest.measure,
        manifest.proxy.seed,
        device=site.resources.device,
        task=manifest.task,
    )
    last = dict(done[-1])
    counts = dict(last.get("confusion", {}))
    joined = client.learner.models()
    judged: dict[Role, torch.nn.Module] = {
        "private": joined["private"],
        "received": client.learner.snapshot(),
    }
    for role, model in judged.items():
        meaning = client.balances.meaning(role, model)
        score = judge(model, client.id, last=True, meaning=meaning)
        last |= score_keys(role, score)
        if score.confusion is not None:
            counts[role] = score.confusion.tolist()
    if counts:
        last["confusion"] = counts
    metrics.append(last)
    alone, other = _train_alone(manifest, site, data, code, judge, last, seed=seed, check=check)
    metrics.append(alone)
    _save_models(folder, manifest, site, client, code)
    model = other.learner.models()["private"]
    own = {"epsilon": "never released"} | other.balances.meaning("private", model).about()
    _save_model(folder, manifest, site, code, "alone", "private", model, own)
    about: Document = {"name": site.name, "examples": len(data.train)}
    kind: Document = {"classes": list(manifest.input.classes)}
    if manifest.task.is_classification:
        by_class = data.train.labels.bincount(minlength=manifest.task.outputs)
        about["class_counts"] = by_class.tolist()
    else:
        kind = {"classes": [], "task": dataclasses.asdict(manifest.task)}
    methods = {}
    for name in ("alone", manifest.method):
        methods[name] = summary.of_method(METHODS[name], status.rows(folder, name))
    content = {
        "finished": True,
        "measure": manifest.measure,
        **kind,
        "clients": [about],
        "methods": methods,
    }
    runs.end_run(folder, content)


def _train_alone(
    manifest: Manifest,
    site: Site,
    data: SiteData,
    code: Code,
    judge: Judge,
    last: Row,
    *,
    seed: int | None,
    check: Callable[[], None],
) -> tuple[Row, Client]:
    """Trains the private model by itself; returns the row of its last round, and the client."""
    client = assembly.client(
        manifest, site, data.train, ledger=None, seed=seed, method="alone", code=code
    )
    for round in range(last["round"] + 1):
        check()
        client.learner.train(round, client.steps)
    model = client.learner.models()["private"]
    meaning = client.balances.meaning("private", model)
    nothing = Ledger(site.name, delta=client.ledger.delta, kind=Kind.NONE, simulated=True)
    record = ClientRound(
        round=last["round"],
        client=SITE_CLIENT,
        name=site.name,
        present=1,
        expected=1,
        steps=client.steps,
        losses=Losses(),
        scores={"private": judge(model, client.id, last=True, meaning=meaning)},
        epsilon=nothing.epsilon(),
        traffic=Traffic(),
        weight=1.0,
        seconds={},
        keeps=model.name if isinstance(model, Home) else None,
    )
    return row_of("alone", record), client


def _save_models(folder: Path, manifest: Manifest, site: Site, client: Client, code: Code) -> None:
    for role, model in client.learner.models().items():
        epsilon = "never released"
        if role != "private":
            epsilon = f"released under: {client.ledger.epsilon()}"
        own = {"epsilon": epsilon} | client.balances.meaning(role, model).about()
        _save_model(folder, manifest, site, code, manifest.method, role, model, own)


def _save_model(
    folder: Path,
    manifest: Manifest,
    site: Site,
    code: Code,
    method: str,
    role: str,
    model: torch.nn.Module,
    own: dict[str, str],
) -> None:
    """Writes a model into models/METHOD of the site, for its owner alone."""
    below = runs.subfolder(folder, "models", method)
    for secret in (below.parent, below):
        secret.chmod(0o700)  # the private model was trained without DP
    about = about_model(manifest, site, code) if role == "private" else _about_proxy(manifest)
    if method == "alone":
        about.pop("residual_on", None)  # there was no proxy to correct
    about |= {"method": method, "client": site.name, "role": role} | own
    path = below / f"{SITE_CLIENT:03d}-{role}.safetensors"
    save_model(path, model, about)
    path.chmod(0o600)


def about_model(manifest: Manifest, site: Site, code: Code) -> dict[str, str]:
    """The header of the private model's file, enough to build the model again."""
    about = _about_proxy(manifest) | {"architecture": site.model.architecture, "role": "private"}
    if site.model.residual or is_estimator(site.model.architecture, code.own):
        about["residual_on"] = manifest.proxy.architecture
    return about


def _about_proxy(manifest: Manifest) -> dict[str, str]:
    about = {
        "architecture": manifest.proxy.architecture,
        "shape": json.dumps(manifest.input.shape),
        "classes": str(len(manifest.input.classes)),
        "class_names": json.dumps(manifest.input.classes),
    }
    if not manifest.task.is_classification:
        about["task"] = json.dumps(dataclasses.asdict(manifest.task))
    if manifest.schema is not None:
        about["schema"] = schemas.to_toml(manifest.schema)
    return about


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The gain that joining gave a site, on its own test examples."""

    measure: str
    alone: float | None
    joined: float | None
    gain: float | None
    interval: Interval | None
    """The middle 95 % of the gain over bootstrap samples of the test part."""
    epsilon: str

    def __str__(self) -> str:
        if self.alone is None or self.joined is None or self.gain is None:
            return f"The test part is too small for {self.measure}. {self.epsilon}"
        points = f"{100 * self.gain:+.1f} points"
        if self.interval is not None:
            low, high = self.interval
            points += f", 95 % interval {100 * low:+.1f} to {100 * high:+.1f}"
        sentence = (
            f"{self.measure} on this site's own test examples: {self.joined:.3f}, alone "
            f"{self.alone:.3f} ({points})."
        )
        if is_within_noise(self.interval):
            sentence += " The test part is too small to tell whether joining paid."
        return f"{sentence} {self.epsilon}"


def verdict(folder: Path) -> Verdict | None:
    """Reads what joining gave the site in ``folder``; None before it has ended."""
    try:
        run = reading.read(folder)
    except RunError:
        return None
    if not run.finished:
        return None
    method = next(name for name in run.methods if name in status.METHODS)
    joined = answer(Group({}, [run], []), method, Question(run.measure))
    return Verdict(
        run.measure,
        run.kept("alone", SITE_CLIENT),
        run.kept(method, SITE_CLIENT),
        run.gain(method, SITE_CLIENT),
        answer_interval(joined) if joined is not None else None,
        f"Spent: {run.spent(method, SITE_CLIENT)}.",
    )
