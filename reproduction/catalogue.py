"""The experiments: which file, which data, and where the paper shows them."""

from dataclasses import dataclass
from pathlib import Path

from proxyfl._validate import choice

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
        (
            "fashion-mnist",
            "Fashion-MNIST, all methods",
            "image benchmarks, middle panels",
        ),
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


def experiment(name: str) -> Experiment:
    """The experiment called ``name``."""
    return EXPERIMENTS[choice("experiment", name, EXPERIMENTS)]
