r"""Made-up federations of tables: sites that differ as much as you say.

A patient of site k has columns x, some of them yes/no, and is a case with

    P(y = 1 | x) = sigmoid(b_k + s z_k(x)),     z_k: a score of x with variance 1

``s`` and ``b`` follow from the AUROC that the true score has (``signal``) and the share of cases
(``prevalence``), each met to two digits. Sites of one kind have the kind's coefficients, moved by
``heterogeneity``; two kinds of sites have scores whose correlation is ``likeness``.

Guarantees:
    * a federation depends on its settings and the seed alone;
    * what is public about it (columns, ranges, prevalence) does not depend on the patients that
      were drawn, so it may shape a proxy.
"""

import math

import numpy as np
import numpy.typing as npt
import torch

from proxyfl.data.dataset import Dataset
from proxyfl.settings import Synthetic

Array = npt.NDArray[np.float64]

CLASSES = ("no", "yes")
REACH = 3.0
"""Standard deviations to which a measurement is clipped; as in a schema, -1 to 1 is the range."""

_REFERENCE = 20_000
_STEPS = 60


def generate(settings: Synthetic, seed: int) -> Dataset:
    """The federation that the settings and the seed describe."""
    federation = _Federation(settings, seed)
    parts = [federation.site(site) for site in range(settings.sites)]
    rows = [len(part[0]) for part in parts]
    site = torch.repeat_interleave(torch.arange(settings.sites), torch.tensor(rows))
    where = torch.repeat_interleave(torch.arange(settings.sites), settings.tests)
    p = settings.prevalence
    merged = [torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*parts, strict=True)]
    train_x, train_y, test_x, test_y = merged
    return Dataset(
        "synthetic",
        train_x,
        train_y,
        test_x,
        test_y,
        classes=2,
        class_names=CLASSES,
        site=site,
        site_names=[settings.name(i) for i in range(settings.sites)],
        test_site=where,
        feature_names=federation.names,
        prevalence=(1 - p, p),
    )


class _Federation:
    """The columns and the true scores, from which each site's patients are drawn."""

    def __init__(self, settings: Synthetic, seed: int) -> None:
        self.settings = settings
        self._seed = seed
        # a federation's nature is drawn apart from its patients: the prevalence is calibrated on
        # a reference population that nobody has
        nature = self._stream(0)
        width = settings.columns
        yes_no = round(settings.binary * width)
        mixed = nature.permutation(width)
        self._is_binary = np.isin(np.arange(width), mixed[:yes_no])
        self._frequency = nature.uniform(0.1, 0.5, size=width)
        self._common = nature.uniform(0.0, 0.6, size=width)
        reference = self._columns(self._stream(1), _REFERENCE)
        self._mean = reference.mean(0)
        self._scale = reference.std(0)
        self._kinds = self._draw_kinds(nature, reference)
        self._slope, self._intercept = self._calibrate(reference)

    @property
    def names(self) -> list[str]:
        """A name for each column."""
        return [
            f"{'yes_no' if binary else 'measured'}_{i}" for i, binary in enumerate(self._is_binary)
        ]

    def site(self, site: int) -> tuple[Array, ...]:
        """Training inputs and labels, test inputs and labels of a site."""
        settings = self.settings
        draw = self._stream(2, site)
        size = settings.examples
        if settings.unequal:
            factor = draw.lognormal(-(settings.unequal**2) / 2, settings.unequal)
            size = max(10, round(settings.examples * factor))
        own = self._kinds[settings.kind(site)]
        own = self._standardise(own + settings.heterogeneity * self._other(draw, own))
        intercept = self._intercept + draw.normal(0.0, settings.shift)
        parts: list[Array] = []
        for count in (size, settings.tests):
            x = self._columns(draw, count)
            z = (x - self._mean) / self._scale @ own
            risk = 1 / (1 + np.exp(-(intercept + self._slope * z)))
            y = draw.random(count) < risk
            parts += [x.astype(np.float32), y.astype(np.int64)]
        return tuple(parts)

    def _columns(self, draw: np.random.Generator, count: int) -> Array:
        """Columns with something in common, as a schema encodes them."""
        shared = draw.standard_normal((count, 1))
        own = draw.standard_normal((count, self.settings.columns))
        latent = self._common * shared + np.sqrt(1 - self._common**2) * own
        measured = np.clip(latent, -REACH, REACH) / REACH
        answers = latent < _normal_quantile(self._frequency)
        return np.where(self._is_binary, answers.astype(float), measured)

    def _draw_kinds(self, nature: np.random.Generator, reference: Array) -> list[Array]:
        """The coefficients of each kind, for standardised columns; the score has variance 1."""
        self._correlations = np.corrcoef((reference - self._mean) / self._scale, rowvar=False)
        self._correlations = np.atleast_2d(self._correlations)
        first = self._draw_score(nature)
        kinds = [first]
        for _ in range(1, self.settings.kinds):
            kinds.append(self._alike(nature, first, self.settings.likeness))
        return kinds

    def _draw_score(self, draw: np.random.Generator) -> Array:
        width = self.settings.columns
        relevant = max(1, round(self.settings.relevant * width))
        strength = np.zeros(width)
        places = draw.permutation(width)[:relevant]
        strength[places] = 1 / np.sqrt(1 + np.arange(relevant))
        return self._standardise(strength * draw.choice([-1.0, 1.0], size=width))

    def _other(self, draw: np.random.Generator, score: Array) -> Array:
        """A score that has nothing in common with ``score``."""
        other = self._draw_score(draw)
        overlap = other @ self._correlations @ score
        rest: Array = other - overlap * score
        variance = float(rest @ self._correlations @ rest)
        if variance < 1e-6:  # one column: there is no other score
            return np.zeros_like(rest)
        rest /= math.sqrt(variance)
        return rest

    def _alike(self, draw: np.random.Generator, score: Array, correlation: float) -> Array:
        """A score that has this correlation with ``score``."""
        other = self._other(draw, score)
        alike: Array = correlation * score + math.sqrt(1 - correlation**2) * other
        return alike

    def _standardise(self, score: Array) -> Array:
        return score / math.sqrt(float(score @ self._correlations @ score))

    def _calibrate(self, reference: Array) -> tuple[float, float]:
        z = (reference - self._mean) / self._scale @ self._kinds[0]
        return calibrate(z, self.settings.signal, self.settings.prevalence)

    def _stream(self, *numbers: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, *numbers])


def calibrate(z: Array, signal: float, prevalence: float) -> tuple[float, float]:
    """The slope and intercept with which a score ``z`` has the AUROC ``signal`` and this share of
    cases, by bisection."""
    order = np.argsort(z)
    low, high = 0.0, 20.0
    intercept = 0.0
    for _ in range(_STEPS):
        slope = (low + high) / 2
        intercept = _intercept(slope * z, prevalence)
        risk = 1 / (1 + np.exp(-(intercept + slope * z)))
        if _expected_auroc(risk[order]) < signal:
            low = slope
        else:
            high = slope
    return (low + high) / 2, intercept


def _intercept(logits: Array, prevalence: float) -> float:
    low, high = -60.0, 60.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if float((1 / (1 + np.exp(-(logits + middle)))).mean()) < prevalence:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _expected_auroc(risk: Array) -> float:
    """The AUROC of a score whose patients, sorted by it, have these risks."""
    healthy_below = np.concatenate([[0.0], np.cumsum(1 - risk)[:-1]])
    pairs = float((risk * (healthy_below + (1 - risk) / 2)).sum())
    return pairs / (float(risk.sum()) * float((1 - risk).sum()))


def _normal_quantile(p: Array) -> Array:
    from scipy import special

    quantile: Array = special.ndtri(p)
    return quantile
