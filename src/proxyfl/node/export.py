"""The private model for use elsewhere: weights, programs that need nothing of this package, and
what it is.

    private.safetensors   the weights, with the architecture in their header
    private.pt2           torch.export, and further programs (``node.programs``); not for an
                          estimator of another library, whose pickle is in the weights
    predict.py            predicts from raw columns, by encoding.json, if there is a schema
    schema.toml           how a table's columns become the inputs, if the manifest has a schema
    about.json            classes, input shape, rounds, and what the site's data have cost
    certificate.md        what the site's releases have cost, signed with the site's key;
    certificate.json      `proxyfl certificate SITE --check` compares either with the ledger, and
                          with `--card` anybody can check who signed it

Guarantee: weights and program give the predictions of the site's own private model. Where a balance
trained it, the programs put the public prevalence back (``federation.prevalence``): the softmax of
their outputs is what `proxyfl predict` says. The weights have the model's own logits.

The private model was never released by taking part: exporting it is the site's own decision. It
was trained without DP and may reveal the site's records to anybody who gets it.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from proxyfl._files import finite, write_json, write_text
from proxyfl.data.tables import schema as schemas
from proxyfl.errors import RunError
from proxyfl.federation.home import Home
from proxyfl.federation.modelfile import save_model
from proxyfl.federation.prevalence import Meaning
from proxyfl.node import assembly, keeping, recording
from proxyfl.node.assembly import SiteData
from proxyfl.node.exchange.store import FILE as STORE_FILE
from proxyfl.node.exchange.store import Books, Store
from proxyfl.node.members.identity import Identity
from proxyfl.node.members.manifest import Manifest
from proxyfl.node.members.roster import Roster
from proxyfl.node.members.site import Site
from proxyfl.node.members.trust import code_of
from proxyfl.node.observe import status
from proxyfl.node.programs import write_encoding, write_programs
from proxyfl.privacy import certificate as certificates
from proxyfl.privacy.ledger import Ledger
from proxyfl.records import certified

WARNING = (
    "The private model was trained without DP on this site's records. Whoever has it may learn "
    "about them; keep it as you keep the records."
)

_EXAMPLES = 64
"""Examples on which programs are compared with the model."""


def export(site: Site, folder: Path, out: Path) -> list[Path]:
    """Write the private model of the site in ``folder`` into the new folder ``out``."""
    manifest = Roster(folder, Identity(folder, site.name)).current
    store = Store(folder / STORE_FILE)
    try:
        books = Books(
            store,
            federation=manifest.federation,
            me=site.name,
            version=manifest.version,
            rounds=manifest.rounds,
        )
        here = books.position()
    finally:
        store.close()
    if not here.learner:
        raise RunError(
            f"{site.name} has finished no round yet: there is nothing to export. Wait for its "
            "first round."
        )
    data = assembly.load(manifest, site, folder)
    model, meaning = _private_model(manifest, site, folder, data, here.learner)
    try:
        out.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise RunError(f"{out} exists already. Name a new folder.") from None
    inputs = data.test.take(torch.arange(min(len(data.test), _EXAMPLES)))
    about = recording.about_model(manifest, site, code_of(site, folder))
    about |= {"site": site.name, "client": site.name, "method": manifest.method}
    about |= meaning.about()
    save_model(out / "private.safetensors", model, about)
    _, missing = write_programs(model, inputs, out, meaning)
    if manifest.schema is not None:
        write_encoding(manifest.schema, out, meaning)
        write_text(out / "schema.toml", schemas.to_toml(manifest.schema))
    ledger = Ledger.read(folder / assembly.LEDGER_FILE)
    signer = Identity(folder, site.name)
    document = certificates.certificate(ledger, certified.site_facts(folder), signer)
    write_text(out / "certificate.json", certificates.to_json([document]))
    write_text(out / "certificate.md", certificates.markdown(document, signer))
    history = status.rows(folder)
    content = {
        "site": site.name,
        "federation": manifest.name,
        "rounds": len(history),
        "architecture": site.model.architecture,
        "shape": list(manifest.input.shape),
        "classes": list(manifest.input.classes),
        **_task(manifest),
        **_probabilities(meaning),
        "residual_on": about.get("residual_on"),
        "keeps": model.name if isinstance(model, Home) else None,
        "privacy_of_the_proxies": str(ledger.epsilon()),
        "warning": WARNING,
        "notes": missing,
        "last_round": history[-1] if history else None,
    }
    write_json(out / "about.json", finite(json.loads(json.dumps(content))))
    return sorted(out.iterdir())


def _task(manifest: Manifest) -> dict[str, Any]:
    """What the outputs mean, if they are not the logits of classes."""
    task = manifest.task
    return {} if task.is_classification else {"task": dataclasses.asdict(task)}


def _probabilities(meaning: Meaning) -> dict[str, Any]:
    """What the softmax of a program's outputs is for, if a balance trained the model."""
    if not meaning.of:
        return {}
    return {
        "probabilities_for": meaning.of,
        "prevalence": list(meaning.prevalence),
        "added_to_the_logits_of_the_weights": list(meaning.offsets),
    }


def _private_model(
    manifest: Manifest, site: Site, folder: Path, data: SiteData, name: str
) -> tuple[torch.nn.Module, Meaning]:
    # A throw-away client without a ledger: it takes no step. Without a seed, as the site runs: the
    # folds by which a model is chosen at home are then those that the site chose by.
    code = code_of(site, folder)
    client = assembly.client(manifest, site, data.train, ledger=None, code=code)
    keeping.restore(folder, client, name)
    model = client.learner.models()["private"].eval()
    return model, client.balances.meaning("private", model)
