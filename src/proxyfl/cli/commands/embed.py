"""``proxyfl embed``: features of images, from something that no private record has shaped."""

import argparse
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from proxyfl import _settings
from proxyfl._terminal.spinner import spinner
from proxyfl.cli.options import COLUMNS, JSON, Document, flag, option, print_json, repeatable
from proxyfl.cli.stopping import stopping_at_once
from proxyfl.errors import ModelError

DESCRIPTION = """\
Embed every image of SOURCE once and write the features to a store, which is then a source like any
other. The embedder must be public: learnt from other people's data, or from none, and chosen
without a look at these. docs/guides/images.md says why.
"""

EPILOG = """\
examples:
  proxyfl embed fashion-mnist --model scattering --out features
  proxyfl embed endoscopy.store --model scattering --set grid=2 --out features
  proxyfl embed endoscopy.store --model mine:backbone --weights resnet.safetensors --out features
  proxyfl embed images.npz --site hospital --model scattering --out features
  proxyfl embed features --model whitened --set by=public-features --set dimensions=64 --out few
  proxyfl run --set data.source=features --set models.private=mlp
"""


OPTIONS = (
    option("source SOURCE", "what `proxyfl data SOURCE` reads"),
    option("--model NAME", "scattering, whitened, or package.module:factory", required=True),
    repeatable(
        "--set KEY=VALUE", "an option of the embedder, such as grid=2", dest="options", default=[]
    ),
    option(
        "--weights FILE", "a safetensors file with the parameters of package.module:factory", Path
    ),
    option("--out STORE", "the store to write", Path, required=True),
    *COLUMNS,
    option("--data-dir DIR", "where named datasets lie"),
    flag("--offline", "fetch nothing from a publisher"),
    JSON,
)


def execute(args: argparse.Namespace) -> int:
    """Write the store; the same command continues one that was interrupted."""
    with stopping_at_once():
        from proxyfl.data.features.embedding import embed
        from proxyfl.data.sources import load

    options: Document = {}
    for text in args.options:
        _settings.override(options, text)
    _check_public(args.source, options)
    dataset = load(
        args.source,
        directory=args.data_dir,
        label=args.label,
        site=args.site,
        download=not args.offline,
    )
    total = len(dataset.train) + len(dataset.test)
    with spinner(f"embedding {total} images", total=total) as advance:
        head = embed(dataset, args.out, args.model, options, weights=args.weights, advance=advance)
    features = head.content.shape[0]
    if args.json:
        document = {"store": str(args.out), "features": features, "images": total}
        print_json({**document, "made": head.content.made, "skipped": head.skipped})
        return 0
    Console(soft_wrap=True).print(
        f"[bold]{escape(str(args.out))}[/bold]: {features:,} features of each of {total:,} images "
        f"by {escape(args.model)}. Use it with data.source={escape(str(args.out))}"
    )
    return 0


def _check_public(source: str, options: Document) -> None:
    """Refuse to whiten records by their own statistics, which no epsilon would cover."""
    for name in ("by", "centre"):
        store = options.get(name)
        if isinstance(store, str) and Path(store).resolve() == Path(source).resolve():
            raise ModelError(
                f"Whitening {source} by its own statistics would let every record move every "
                "feature, and the printed epsilon would be wrong. Name a store of other, public "
                f"features in {name}."
            )
