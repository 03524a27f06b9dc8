"""The private model for use elsewhere: weights, a TorchScript program, and what it is.

    private.safetensors   the weights, with the architecture in their header
    private.pt            TorchScript: inputs -> logits; needs torch and nothing of this package
    about.json            classes, input shape, rounds, and what the site's data have cost

The private model was never released by taking part: exporting it is the site's own decision. It
was trained without DP and may reveal the site's records to whoever gets it.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from proxyfl._files import finite, write_json
from proxyfl.errors import RunError
from proxyfl.node import assembly, keeping
from proxyfl.node.exchange.books import Books
from proxyfl.node.exchange.store import FILE as STORE_FILE
from proxyfl.node.exchange.store import Store
from proxyfl.node.members.identity import Identity
from proxyfl.node.members.roster import Roster
from proxyfl.node.members.site import Site
from proxyfl.node.observe import status
from proxyfl.privacy.ledger import Ledger

WARNING = (
    "The private model was trained without DP on this site's records. Whoever has it may learn "
    "about them; keep it as you keep the records."
)


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
            f"{site.name} has finished no round yet: there is nothing to export."
        )
    data = assembly.load(manifest, site, folder)
    # A throw-away client without a ledger: it takes no step.
    client = assembly.client(manifest, site, data.train, ledger=None, seed=0)
    keeping.restore(folder, client.learner, here.learner)
    model = client.learner.models()["private"].eval()
    out.mkdir(parents=True)
    example = data.test.take(torch.tensor([0]))
    weights = {
        name: value.contiguous().clone()
        for name, value in model.state_dict().items()
    }
    about = {
        "architecture": site.model.architecture,
        "site": site.name,
        "role": "private",
    }
    save_file(weights, out / "private.safetensors", metadata=about)
    with torch.no_grad():
        trace: Any = torch.jit.trace  # untyped in torch
        trace(model, example).save(str(out / "private.pt"))
    history = status.rows(folder)
    content = {
        "site": site.name,
        "federation": manifest.name,
        "rounds": len(history),
        "architecture": site.model.architecture,
        "shape": list(manifest.input.shape),
        "classes": list(manifest.input.classes),
        "residual_on": manifest.proxy.architecture if site.model.residual else None,
        "privacy_of_the_proxies": str(
            Ledger.read(folder / assembly.LEDGER_FILE).epsilon()
        ),
        "warning": WARNING,
        "last_round": history[-1] if history else None,
    }
    write_json(out / "about.json", finite(json.loads(json.dumps(content))))
    return sorted(out.iterdir())
