"""Divides examples among clients: pure functions from labels (or sites) and a generator to indices.

For simulations alone. A division looks at all labels and permutes all rows, so one record more in
the pool moves others to another client. What a simulated client's epsilon compares are two datasets
of that client, after the division: an institution's records are not dealt to it from a pool, and a
simulation protects nobody. With ``by_site`` each client has the records of its own file, held out
by the rule of a real site (``data.holdout``), and nothing is dealt.

Guarantees of every function here:
    * the parts, one sorted int64 array for each client, do not overlap;
    * equal arguments and an equal generator give equal parts;
    * a division that cannot be made is a DataError that says what is short; no part is silently
      smaller than asked.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from proxyfl._validate import number, whole
from proxyfl.errors import DataError

Indices = npt.NDArray[np.int64]
TRIES = 1000


def iid(
    labels: Indices, *, clients: int, examples: int | None = None, generator: np.random.Generator
) -> list[Indices]:
    """``examples`` for each client, drawn uniformly without replacement; as many as there are for
    None."""
    labels = _labels(labels)
    size = _size(len(labels), clients, examples)
    order = generator.permutation(len(labels))[: clients * size]
    return _sort(order.reshape(clients, size))


def majority(
    labels: Indices,
    *,
    clients: int,
    examples: int | None = None,
    p_major: float,
    generator: np.random.Generator,
) -> list[Indices]:
    """The paper's non-IID division: each client has one majority class and a little of everything
    else.

    Each client gets a randomly chosen class, round(p_major * examples) examples of it, and the rest
    uniformly from the other classes. Classes are drawn with replacement, among those that still
    have enough examples for one more client: where classes are large that is the uniform choice of
    the paper, where they are small it is what makes it fit.

    ``examples=None`` takes as many for each client as fit: at most len(labels) // clients, fewer
    where that asks more of the majority classes than there are."""
    labels = _labels(labels)
    number("p_major", p_major, at_least=0, at_most=1, error=DataError)
    most = _size(len(labels), clients, examples)
    counts = np.bincount(labels)
    problem = ""
    for size in (most,) if examples is not None else range(most, 0, -1):
        major = round(p_major * size)
        chosen = _majority_classes(counts, clients, major, generator)
        problem = _shortage(counts, chosen, clients, size, major)
        if not problem:
            return _deal(labels, chosen, size, major, generator)
    raise DataError(problem)


def dirichlet(
    labels: Indices,
    *,
    clients: int,
    concentration: float,
    generator: np.random.Generator,
    minimum: int = 1,
) -> list[Indices]:
    """Every example goes to someone: each class is cut by proportions drawn from
    Dirichlet(concentration) over clients.

    As in Yurochkin et al. (2019, arXiv:1905.12022v1). Small concentrations give each class to few
    clients. Proportions are drawn again until each client has at least ``minimum`` examples, at
    most 1000 times."""
    labels = _labels(labels)
    whole("clients", clients, error=DataError)
    whole("minimum", minimum, at_least=0, error=DataError)
    number("concentration", concentration, above=0, error=DataError)
    counts = np.bincount(labels)
    if clients * minimum > len(labels):
        raise DataError(
            f"{clients} clients with at least {minimum} examples need {clients * minimum}, there "
            f"are {len(labels)}. Lower clients or minimum."
        )
    alpha = np.full(clients, concentration)
    for _ in range(TRIES):
        proportions = generator.dirichlet(alpha, size=len(counts))
        ends = proportions.cumsum(axis=1) * counts[:, None]
        cuts = np.floor(ends).astype(np.int64)
        # a sum of proportions that rounds below 1 must not count one example less
        cuts[:, -1] = counts
        if np.diff(cuts, prepend=0, axis=1).sum(axis=0).min() >= minimum:
            break
    else:
        raise DataError(
            f"No division in {TRIES} draws gives each of {clients} clients at least {minimum} "
            f"examples at concentration={concentration}. Raise concentration, or lower minimum or "
            "clients."
        )
    pieces = []
    for label, ends in enumerate(cuts):
        shuffled = generator.permutation(np.flatnonzero(labels == label))
        pieces.append(np.split(shuffled, ends[:-1]))
    return _sort(map(np.concatenate, zip(*pieces, strict=True)))


def by_class(
    labels: Indices,
    *,
    clients: int,
    classes: int,
    examples: int | None = None,
    generator: np.random.Generator,
) -> list[Indices]:
    """Each client has examples of ``classes`` classes alone, equally many of each.

    Classes are drawn among those that the fewest clients have so far, so that they are spread as
    evenly as can be. ``examples`` is a multiple of ``classes``; None takes the most that fit."""
    labels = _labels(labels)
    whole("clients", clients, error=DataError)
    whole("classes", classes, error=DataError)
    counts = np.bincount(labels)
    known = np.flatnonzero(counts)
    if classes > len(known):
        raise DataError(
            f"Each client is to have {classes} classes, there are {len(known)}. Lower "
            "partition.classes."
        )
    chosen: list[Indices] = []
    takers = np.zeros(len(counts), dtype=np.int64)
    for _ in range(clients):
        shuffled = generator.permutation(known)
        fewest = shuffled[np.argsort(takers[shuffled], kind="stable")][:classes]
        takers[fewest] += 1
        chosen.append(fewest)
    most = int((counts[takers > 0] // takers[takers > 0]).min())
    each = most if examples is None else _of_each(examples, classes, most)
    stock = _shuffle(labels, known, generator)
    parts = []
    for fewest in chosen:
        own = []
        for label in fewest:
            own.append(stock[label][:each])
            stock[label] = stock[label][each:]
        parts.append(np.concatenate(own))
    return _sort(parts)


def by_site(site: Indices) -> list[Indices]:
    """One client for each site 0, 1, ... up to the largest; each has what is its own."""
    site = _labels(site, what="site")
    parts = [np.flatnonzero(site == i) for i in range(int(site.max()) + 1)]
    for i, part in enumerate(parts):
        if not len(part):
            raise DataError(
                f"Site {i} has no training example: leave it out, or keep fewer examples for the "
                f"test."
            )
    return _sort(parts)


def class_counts(labels: Indices, parts: Sequence[Indices], classes: int) -> Indices:
    """The number of examples of each class that each client has: an array (clients, classes)."""
    labels = np.asarray(labels)
    counts = [np.bincount(labels[part], minlength=classes) for part in parts]
    return np.array(counts, dtype=np.int64)


def _majority_classes(
    counts: Indices, clients: int, major: int, generator: np.random.Generator
) -> list[int]:
    """A class for each client, among those with ``major`` examples left; fewer than ``clients``
    where they run out.

    Each draw uses up one of a class's counts // major places, so the order of draws never decides
    whether all fit."""
    left = counts.copy()
    # a number without examples is no class, even where no majority is asked
    left[counts == 0] = -1
    chosen: list[int] = []
    while len(chosen) < clients:
        possible = np.flatnonzero(left >= major)
        if not len(possible):
            break
        chosen.append(int(generator.choice(possible)))
        left[chosen[-1]] -= major
    return chosen


def _shortage(counts: Indices, chosen: Sequence[int], clients: int, size: int, major: int) -> str:
    """Why ``size`` examples with ``major`` of the ``chosen`` class cannot be dealt; empty if they
    can."""
    left = counts - major * np.bincount(chosen, minlength=len(counts))
    if len(chosen) < clients:
        best = int(left.argmax())
        return (
            f"Client {len(chosen)} of {clients} asks for {major} examples of a majority class, "
            f"but class {best}, which "
            f"has the most left, has {left[best]} of its {counts[best]}. Lower examples={size}, "
            f"p_major or clients."
        )
    for label in sorted(set(chosen)):
        asked = (size - major) * chosen.count(label)
        available = int(left.sum() - left[label])
        if asked > available:
            return (
                f"The clients with majority class {label} ask for {asked} examples of other "
                f"classes, "
                f"there are {available} left. Lower examples={size} or clients, or raise p_major."
            )
    return ""


def _deal(
    labels: Indices, chosen: Sequence[int], size: int, major: int, generator: np.random.Generator
) -> list[Indices]:
    """The majority parts, then the rest: shuffled over all clients, and own-class examples traded
    away."""
    stock = _shuffle(labels, sorted(set(chosen)), generator)
    own: list[Indices] = []
    for label in chosen:
        own.append(stock[label][:major])
        stock[label] = stock[label][major:]
    free = np.ones(len(labels), dtype=bool)
    free[np.concatenate(own)] = False
    pool = generator.permutation(np.flatnonzero(free))
    rest = size - major
    owner_class = np.full(len(pool), -1)  # -1: nobody's
    owner_class[: len(chosen) * rest] = np.repeat(chosen, rest)
    for label in sorted(set(chosen)):
        # Trade with places whose owner may have this class and which hold another. _shortage saw
        # that there are enough.
        owned = owner_class == label
        of_class = labels[pool] == label
        unwanted = np.flatnonzero(owned & of_class)
        partners = np.flatnonzero(~owned & ~of_class)
        partners = generator.choice(partners, size=len(unwanted), replace=False)
        pool[unwanted], pool[partners] = pool[partners], pool[unwanted]
    others = pool[: len(chosen) * rest].reshape(len(chosen), rest)
    return _sort(map(np.concatenate, zip(own, others, strict=True)))


def _shuffle(
    labels: Indices, classes: Iterable[int], generator: np.random.Generator
) -> dict[int, Indices]:
    """The examples of each class, in a random order."""
    orders = {}
    for label in classes:
        orders[label] = generator.permutation(np.flatnonzero(labels == label))
    return orders


def _of_each(examples: int, classes: int, most: int) -> int:
    """The examples of each of a client's classes; DataError if they cannot be had."""
    whole("examples", examples, error=DataError)
    if examples % classes:
        raise DataError(
            f"Expected a multiple of classes={classes} for examples, got {examples}. Each class "
            f"gets the same number: take {classes}, {2 * classes} or another multiple."
        )
    each = examples // classes
    if not 1 <= each <= most:
        raise DataError(
            f"Expected at most {most} examples of each of {classes} classes for each client, got "
            f"{each}. Lower examples={examples} or clients."
        )
    return each


def _size(available: int, clients: int, examples: int | None) -> int:
    whole("clients", clients, error=DataError)
    if examples is None:
        if available < clients:
            raise DataError(
                f"{clients} clients need at least {clients} examples, there are {available}. "
                "Set fewer with partition.clients."
            )
        return available // clients
    whole("examples", examples, error=DataError)
    if clients * examples > available:
        raise DataError(
            f"{clients} clients with {examples} examples each need {clients * examples}, there "
            f"are {available}. "
            f"Lower examples to {available // clients} or less, or lower clients."
        )
    return examples


def _labels(labels: Indices, what: str = "label") -> Indices:
    labels = np.asarray(labels)
    whole_numbers = labels.ndim == 1 and labels.dtype.kind in "iu"
    if not whole_numbers or not len(labels) or labels.min() < 0:
        raise DataError(
            f"Expected each {what} as a whole number from 0, in one dimension, "
            f"got {labels.dtype} of shape {labels.shape}."
        )
    return labels.astype(np.int64)


def _sort(parts: Iterable[Indices]) -> list[Indices]:
    return [np.sort(part).astype(np.int64) for part in parts]
