"""The commands. Each is a module with ``DESCRIPTION``, ``EPILOG``, ``OPTIONS`` and
``execute(args)``; one that has actions adds those instead (``add(parser)``)."""

COMMANDS = {
    "run": ("runs.run", "run one or more methods and compare them"),
    "resume": ("runs.resume", "continue an interrupted run"),
    "sweep": ("runs.sweep", "run a grid of settings and seeds over one config"),
    "table": (
        "reading.table",
        "compare runs: mean and spread over clients and seeds, significance",
    ),
    "report": (
        "reading.report",
        "make one self-contained page about one or more runs",
    ),
    "watch": ("runs.watch", "follow a run in the browser while it runs"),
    "predict": (
        "reading.predict",
        "predict with a client's private model from a finished run",
    ),
    "epsilon": (
        "budget.epsilon",
        "what a training costs in privacy, or what a target epsilon allows",
    ),
    "certificate": (
        "budget.certificate",
        "what each client's releases cost, on a page; check such a page",
    ),
    "audit": (
        "budget.audit",
        "test a claimed epsilon: how much peers really learn from the proxies",
    ),
    "ledger": (
        "ledger",
        "what all studies on the same data cost together, and what is left of a budget",
    ),
    "plan": (
        "budget.plan",
        "which batch, noise and rounds fit a budget, and which proxies it rules out",
    ),
    "worth": (
        "budget.worth",
        "whether joining can be expected to pay, and with which settings",
    ),
    "methods": ("parts.methods", "list the methods and what distinguishes them"),
    "models": (
        "parts.models",
        "the model architectures, their sizes, and which may be a proxy",
    ),
    "topology": (
        "parts.topology",
        "who sends to whom in each round, and how fast news spreads",
    ),
    "data": ("parts.data", "the datasets found here, or what is in one"),
    "images": ("images.images", "bring folders of images to one shape, in a store"),
    "slides": (
        "images.slides",
        "cut labelled patches out of whole slides, in a store",
    ),
    "embed": (
        "images.embed",
        "features of images, from public networks or fixed wavelets, in a store",
    ),
    "node": ("sites.node", "run one site of a real federation"),
    "federation": (
        "sites.federation",
        "found a federation, change its manifest, or try one out",
    ),
    "preflight": (
        "sites.preflight",
        "check a site before it takes part: keys, peers, data, models, budget, disk",
    ),
    "schema": (
        "schema",
        "draft a table's schema, check files against it, estimate ranges with DP",
    ),
}
"""Every command: its module below this one, and what it does in one line."""
