"""The experiments: which file, which data, and where the paper shows them."""

from dataclasses import dataclass
from pathlib import Path

from proxyfl.errors import ConfigError

HOME = Path(__file__).resolve().parents[1]
FOLDER = HOME / "experiments"
RESULTS = FOLDER / "results"
FIGURES = HOME / "docs" / "figures"


@dataclass(frozen=True)
class Experiment:
    """One sweep file of ``experiments/``."""

    name: str
    title: str
    place: str
    """Where the paper shows it; "beyond" for ours."""

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.name}.toml"

    @property
    def record(self) -> Path:
        return RESULTS / f"{self.name}.jsonl"


EXPERIMENTS = {
    name: Experiment(name, title, place)
    for name, title, place in (
        ("mnist", "MNIST, all methods", "image benchmarks, left panels"),
        ("fashion-mnist", "Fashion-MNIST, all methods", "image benchmarks, middle panels"),
        ("cifar10", "CIFAR-10, all methods", "image benchmarks, right panels"),
        ("skew", "how one-sided the data are", "ablations, a"),
        ("heterogeneous", "different private architectures", "ablations, b"),
        ("without-dp", "every method without DP", "ablations, c"),
        ("both-mlp", "private and proxy both MLP", "appendix"),
        ("batch-size", "batch size", "appendix"),
        ("weight", "DML weight alpha = beta", "appendix"),
        ("honest", "beta = 0: the guarantee is end-to-end", "beyond"),
        ("mixing", "proxies averaged on their way", "beyond"),
        ("epsilon", "accuracy against epsilon", "beyond"),
    )
}


JOINING = {
    name: Experiment(f"joining/{name}", title, "beyond")
    for name, title in (
        ("heart", "heart disease, 4 hospitals"),
        ("gusto", "heart attacks (GUSTO-I), 121 groups of hospitals"),
        ("ist", "strokes (IST), 24 countries"),
        ("impact", "brain injuries (IMPACT), 15 studies"),
        ("loans", "business loans, 16 banks"),
        ("ham", "skin lesions (HAM10000), 4 collections"),
        ("fashion-two", "clothing (Fashion-MNIST), 8 sites with 2 of 10 kinds"),
        ("fashion-five", "clothing, 8 sites with 5 of 10 kinds"),
        ("fashion-many", "clothing, 32 sites of 100 images"),
    )
}
"""What joining is worth to true sites (docs/research/joining.md)."""

IMAGES = {
    name: Experiment(f"images/{name}", title, place)
    for name, title, place in (
        ("kvasir", "Kvasir, pixels", "endoscopy"),
        ("kvasir-features", "Kvasir, public features", "endoscopy"),
        ("histopathology", "BreaKHis by patient, pixels", "histopathology"),
        ("histopathology-features", "BreaKHis by patient, public features", "histopathology"),
        ("slides", "generated slides of four scanners", "histopathology"),
        ("ham10000", "HAM10000 by its four collections", "beyond"),
        ("ham10000-lesions", "HAM10000, epsilon per lesion", "beyond"),
    )
}
"""Medical images (docs/research/medical.md)."""


def experiment(name: str) -> Experiment:
    """The experiment called ``name``."""
    studies = (*JOINING.values(), *IMAGES.values())
    known = EXPERIMENTS | {study.name: study for study in studies}
    if name not in known:
        raise ConfigError(f"Unknown experiment {name!r}. Known: {', '.join(known)}.")
    return known[name]
