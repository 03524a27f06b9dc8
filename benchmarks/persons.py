"""Protecting persons with several records: accounting per record, or the person as the unit.

    python -m benchmarks.persons FOLDER [--seeds 10] [--json FILE]

FOLDER holds HAM10000 as 64 x 48 images with an ``index.csv`` (image_id, lesion_id, dx). A lesion,
which has one to five images, stands for a person. The task is a naevus or not, the model a linear
proxy on images of 16 x 12 pixels, trained in one place by DP-SGD at one rate for so many steps. All
arms promise every *lesion* the same epsilon:

    per record, times k    all images are records; the noise is that of a lesion with k = 5 of them
    at most K per lesion   the same, after all but K images of each lesion were left out
    person                 privacy.unit = "group": lesions are drawn, their mean gradient is clipped

Each arm has its own learning rate, the one of ``RATES`` with the best AUROC on validation lesions
over three seeds. A seed draws the parts (by lesion), batches and noise. What is reported is the
AUROC on test lesions, which no choice has seen.
"""

import argparse
import csv
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from proxyfl import DPSGD, Ledger
from proxyfl.data.examples import InMemory, Subset, pixels
from proxyfl.measures import MEASURES, Predictions
from proxyfl.models import build
from proxyfl.privacy.accounting import Segment
from proxyfl.privacy.calibration import noise_for
from proxyfl.privacy.guarantee import Kind, Relation, Unit
from proxyfl.privacy.persons import person_epsilon
from proxyfl.seeds import Seeded, numpy_stream
from proxyfl.settings import DP

EPSILON, DELTA = 3.0, 1e-5
RATE, STEPS = 0.05, 400
RATES = (0.1, 0.3, 1.0, 3.0)
TRIED = 3


@dataclass(frozen=True)
class Arm:
    """One way to promise a lesion epsilon. ``kept``: images of a lesion that are not left out."""

    name: str
    unit: Unit
    kept: int


ARMS = (
    Arm("per record, times 5", Unit.RECORD, 5),
    Arm("at most 2 per lesion", Unit.RECORD, 2),
    Arm("at most 1 per lesion", Unit.RECORD, 1),
    Arm("person", Unit.GROUP, 5),
)


def read(folder: Path) -> InMemory:
    """The images, whether each is a naevus, and its lesion."""
    from PIL import Image

    with (folder / "index.csv").open() as file:
        rows = list(csv.DictReader(file))
    numbers = {name: i for i, name in enumerate({row["lesion_id"]: 0 for row in rows})}
    images = np.empty((len(rows), 3, 12, 16), dtype=np.uint8)
    for i, row in enumerate(rows):
        with Image.open(folder / f"{row['image_id']}.webp") as image:
            small = image.convert("RGB").resize((16, 12), Image.Resampling.BOX)
            images[i] = np.asarray(small).transpose(2, 0, 1)
    labels = torch.tensor([int(row["dx"] == "nv") for row in rows])
    groups = torch.tensor([numbers[row["lesion_id"]] for row in rows])
    return InMemory(pixels(images) - 0.5, labels, groups)


def parts(examples: InMemory, seed: int) -> list[torch.Tensor]:
    """Rows of the training, validation and test lesions: three, one and one fifth of them."""
    groups = _groups(examples)
    lesions = numpy_stream(seed, "split").permutation(int(groups.max()) + 1)
    cuts = [3 * len(lesions) // 5, 4 * len(lesions) // 5]
    found = []
    for part in np.split(lesions, cuts):
        chosen = torch.isin(groups, torch.from_numpy(part))
        found.append(chosen.nonzero().view(-1))
    return found


def thinned(examples: InMemory, rows: torch.Tensor, kept: int, seed: int) -> torch.Tensor:
    """``rows`` with at most ``kept`` of each lesion, chosen by chance."""
    order = torch.from_numpy(numpy_stream(seed, "batches").permutation(len(rows)))
    seen: dict[int, int] = {}
    chosen = []
    for row in rows[order].tolist():
        lesion = int(_groups(examples)[row])
        seen[lesion] = seen.get(lesion, 0) + 1
        if seen[lesion] <= kept:
            chosen.append(row)
    return torch.tensor(sorted(chosen))


def noise(arm: Arm) -> float:
    """The least noise multiplier, to a thousandth, with which a lesion is promised epsilon."""
    if arm.unit is Unit.GROUP or arm.kept == 1:
        return noise_for(EPSILON, sampling_rate=RATE, steps=STEPS, delta=DELTA)
    low, high = 0.5, 64.0
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        cost = person_epsilon(Segment(RATE, middle, STEPS), arm.kept, DELTA)
        low, high = (low, middle) if cost <= EPSILON else (middle, high)
    return high


def trained(arm: Arm, sigma: float, rate: float, train: Subset, seed: int) -> torch.nn.Module:
    """A linear proxy after all steps."""
    model = build("linear", shape=train.shape, classes=2, seed=seed)
    ledger = Ledger(
        "benchmark",
        delta=DELTA,
        kind=Kind.END_TO_END,
        simulated=True,
        relation=Relation.ADD_OR_REMOVE,
        unit=arm.unit,
    )
    units = len(train) if arm.unit is Unit.RECORD else len(set(_groups(train).tolist()))
    private = DPSGD(
        model,
        torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9),
        train,
        dp=DP(
            clip_norm=1.0, noise_multiplier=sigma, sampling_rate=RATE, unit=arm.unit, delta=DELTA
        ),
        classes=2,
        batch_size=round(RATE * units),
        ledger=ledger,
        batches=Seeded(seed, "batches"),
        noise=Seeded(seed, "noise"),
    )
    private.begin_round(0, STEPS)
    for _ in range(STEPS):
        private.step(private.draw())
    return model


def auroc(model: torch.nn.Module, part: Subset) -> float:
    """The area under the curve on the part's images."""
    with torch.no_grad():
        logits = model.eval()(part.take(torch.arange(len(part))))
    found = Predictions(logits.numpy(), part.labels.numpy())
    return MEASURES["auroc"].compute(found) or 0.0


def scores(
    arm: Arm, sigma: float, rate: float, examples: InMemory, seed: int
) -> tuple[float, float]:
    """AUROC on validation and on test lesions."""
    train, validation, test = parts(examples, seed)
    kept = Subset(examples, thinned(examples, train, arm.kept, seed))
    model = trained(arm, sigma, rate, kept, seed)
    return auroc(model, Subset(examples, validation)), auroc(model, Subset(examples, test))


def results(examples: InMemory, seeds: int) -> Iterator[dict[str, object]]:
    """For each arm its noise, its learning rate and its test scores."""
    for arm in ARMS:
        sigma = noise(arm)
        best: dict[float, float] = {}
        for rate in RATES:
            tried = [scores(arm, sigma, rate, examples, seed)[0] for seed in range(TRIED)]
            best[rate] = sum(tried) / len(tried)
        rate = max(best, key=lambda each: best[each])
        found: NDArray[np.float64] = np.array(
            [scores(arm, sigma, rate, examples, seed)[1] for seed in range(seeds)]
        )
        yield asdict(arm) | {
            "noise_multiplier": sigma,
            "learning_rate": rate,
            "validation": best,
            "auroc": found.tolist(),
            "mean": float(found.mean()),
            "std": float(found.std(ddof=1)),
        }


def _groups(examples: InMemory | Subset) -> torch.Tensor:
    groups = examples.groups
    if groups is None:
        raise ValueError("the images name no lesions")
    return groups


def main() -> None:
    """Print a line for each arm as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json", type=Path, help="also write everything there")
    args = parser.parse_args()
    torch.set_num_threads(1)
    examples = read(args.folder)
    rows = []
    for row in results(examples, args.seeds):
        rows.append(row)
        print(
            f"{row['name']:22}  noise {row['noise_multiplier']:7.3f}  rate "
            f"{row['learning_rate']:4}  AUROC {row['mean']:.3f} ({row['std']:.3f})",
            flush=True,
        )
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
