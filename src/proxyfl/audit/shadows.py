"""Shadow federations: the configured federation, trained many times on random halves of a client.

In each federation every record of the audited client is a member by a fair coin of its own. The
other clients keep their records. All else is drawn anew: first weights, batches, noise. Each
federation is trained twice, with DP and without, and three models of the client are asked about
all of its records, members or not:

    proxy with DP       the last one that it released, under the config's privacy
    proxy without DP    the same with privacy.enabled = false
    private model       from the federation with DP; it never leaves the client

The answer is the logit of the probability p of a record's own label, log(p / (1 - p)).

Guarantees:
    * coins and randomness depend on the config's seed and the federation's number alone, so
      federations that were recorded need not be trained again;
    * a record of federations is continued only under the settings that it was begun with.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from proxyfl import params
from proxyfl._files import read_text, short_hash, write_text, writing
from proxyfl.audit.observe import (
    Progress,
    check_client,
    initial_model,
    silent,
    watched_run,
    with_records,
)
from proxyfl.data.examples import InMemory, gather
from proxyfl.errors import ConfigError, RunError
from proxyfl.seeds import derive, stream
from proxyfl.simulation.config import Config, to_toml, with_method
from proxyfl.simulation.prepare import Prepared, prepare

METHOD = "proxyfl"
"""The method with all three models."""

TARGETS = ("proxy with DP", "proxy without DP", "private model")


@dataclass(frozen=True)
class Shadow:
    """One federation: who was a member, and each target's answers about all records."""

    number: int
    members: tuple[bool, ...]
    answers: dict[str, tuple[float, ...]]


def train(
    config: Config,
    count: int,
    *,
    client: int = 0,
    record: Path | None = None,
    progress: Progress = silent,
) -> list[Shadow]:
    """``count`` shadow federations; with ``record`` given, those in it are read, new ones added."""
    if not config.privacy.enabled:
        raise ConfigError(
            "privacy.enabled is false: there is no proxy with DP to attack. Set it to true."
        )
    if config.protects_persons:
        raise ConfigError(
            "Shadow federations flip a coin for each record, and privacy.unit is 'group'. Attack "
            "the same config with privacy.unit=record."
        )
    prepared = prepare(with_method(config, METHOD))
    check_client(prepared, client)
    if not prepared.dataset.task.is_classification:
        raise ConfigError(
            "The membership attack compares the probability of a record's own class, and the task "
            f"is {prepared.dataset.task.kind}. The audit by canaries is for every task: leave "
            "--membership out."
        )
    identity = _identity(config, client)
    shadows = []
    if record is not None:
        shadows = list(_read_record(record, identity))
        # Only whole lines are left, so that the next one begins a line.
        lines = [_line(identity, shadow) for shadow in shadows]
        write_text(record, "".join(lines))
        shadows = shadows[:count]
    progress(len(shadows))
    for number in range(len(shadows), count):
        shadow = _shadow(prepared, client, number)
        if record is not None:
            with writing(record), record.open("a", encoding="utf-8") as file:
                file.write(_line(identity, shadow))
        shadows.append(shadow)
        progress(1)
    return shadows


def _shadow(prepared: Prepared, client: int, number: int) -> Shadow:
    seed = prepared.config.seed
    pool = gather(prepared.clients[client].examples)
    generator = stream(seed, "members", client, number)
    members = torch.rand(len(pool), generator=generator) < 0.5
    examples = InMemory(pool.x[members], pool.labels[members])
    planted = with_records(prepared, METHOD, client, examples, expected=len(pool) // 2)
    config = replace(planted.config, seed=derive(seed, "shadow", number))
    no_privacy = replace(config.privacy, enabled=False)
    with_dp = replace(planted, config=config)
    without = replace(planted, config=replace(config, privacy=no_privacy))
    released, private = _train(with_dp, client)
    without_dp, _ = _train(without, client)
    proxy = initial_model(with_dp, METHOD)
    answers = []
    for theta in (released, without_dp):
        params.load_flat(proxy, theta)
        answers.append(confidences(proxy, pool))
    answers.append(confidences(private, pool))
    by_target = dict(zip(TARGETS, answers, strict=True))
    return Shadow(number, tuple(members.tolist()), by_target)


def _train(prepared: Prepared, client: int) -> tuple[Tensor, nn.Module]:
    """The parameters that the client released last, and its private model."""
    clients, seen = watched_run(prepared, METHOD)
    models = clients[client].learner.models()
    return seen[client].releases[-1], models["private"]


def confidences(model: nn.Module, records: InMemory) -> tuple[float, ...]:
    """log(p / (1 - p)) for the probability p that ``model`` gives each record's own label."""
    with torch.no_grad(), params.evaluating(model):
        logits: Tensor = model(records.x.clone()).double()
    own = nn.functional.one_hot(records.labels, logits.shape[1]).bool()
    others = logits.masked_fill(own, -torch.inf).logsumexp(dim=1)
    margins = (logits[own] - others).tolist()
    return tuple(round(margin, 5) for margin in margins)


def _identity(config: Config, client: int) -> str:
    """What must be equal for federations to belong together."""
    text = to_toml(with_method(config, METHOD)) + f"client {client}"
    return short_hash(text.encode())


def _read_record(path: Path, identity: str) -> Iterator[Shadow]:
    """The federations in a record, in order; a line that was cut off ends it."""
    if not path.is_file():
        return
    for line in read_text(path, "record of shadow federations").splitlines():
        try:
            row: dict[str, Any] = json.loads(line)
        except ValueError:
            return
        if row["settings"] != identity:
            raise RunError(
                f"{path} has federations of other settings or of another client. Remove it, or "
                "give another folder."
            )
        answers = {name: tuple(row["answers"][name]) for name in TARGETS}
        yield Shadow(row["number"], tuple(row["members"]), answers)


def _line(identity: str, shadow: Shadow) -> str:
    row = {
        "settings": identity,
        "number": shadow.number,
        "members": shadow.members,
        "answers": shadow.answers,
    }
    return json.dumps(row) + "\n"
