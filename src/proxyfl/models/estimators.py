"""Private models that are fitted, not trained: logistic regression, boosted trees, or any other
classifier of scikit-learn's kind.

An estimator is named ``logistic``, ``trees``, or ``package.module:Class`` for a class with ``fit``
and ``predict_proba``. ``a|b`` names several, of which a client takes the best by its own validation
(``federation.fitted.choose``). Each is tried with the few settings that ``candidates`` lists.

Guarantees:
    * what ``fit`` returns is a module that maps a batch to logits over all classes, also where the
      client's own examples lack some: a class never seen gets the logit ``UNSEEN``;
    * fitting depends on the examples and the seed alone;
    * logistic regression and scikit-learn's histogram trees become tensors, and their file holds
      no code. Any other estimator is kept as a pickle in a tensor of bytes; ``rebuilt`` opens it
      only if told to.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from proxyfl._entrypoint import HERE, INSTALLED, Imports, translate_errors
from proxyfl.errors import ModelError
from proxyfl.models.architectures import set_score

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

UNSEEN = -20.0
"""The logit of a class of which the client has no example."""

PENALTIES = (100.0, 10.0, 1.0)
"""Ridge penalties of logistic regression that are tried, on the sum of losses."""

TREES = "sklearn.ensemble:HistGradientBoostingClassifier"
SHORT = {"trees": TREES}
LOGISTIC = "logistic"
PUBLISHED = "published score"
"""The name of the candidate that is a published score, unchanged."""

SMALL_TREES = {
    "max_iter": 60,
    "max_leaf_nodes": 8,
    "min_samples_leaf": 15,
    "l2_regularization": 1.0,
    "early_stopping": False,
}
"""Trees for hundreds of examples: shallow and few, where the library's defaults are for many."""

MANY = 2000
"""Examples from which on trees take the library's defaults."""


@dataclass(frozen=True)
class Candidate:
    """One estimator with its settings: (inputs, labels, sample weights, seed) -> a module."""

    name: str
    fit: Callable[[Array, Labels, int, Array | None, int], nn.Module]


def is_estimator(spec: str, imports: Imports = HERE) -> bool:
    """True if ``spec`` names something that is fitted, as opposed to a torch model."""
    if "|" in spec or spec.strip() in (LOGISTIC, *SHORT):
        return True
    if ":" not in spec:
        return False
    named = imports.resolve(spec.strip(), error=ModelError)
    return hasattr(named, "predict_proba")


def candidates(spec: str, imports: Imports = HERE) -> list[Candidate]:
    """The estimators that ``spec`` stands for, each with the settings that are tried."""
    proposals: list[Candidate] = []
    for part in spec.split("|"):
        name = part.strip()
        if name == LOGISTIC:
            proposals.extend(_logistic(penalty) for penalty in PENALTIES)
        else:
            proposals.append(_foreign(name, imports))
    return proposals


def score_candidates(score: Sequence[float]) -> list[Candidate]:
    """A published score (``set_score``) as it stands, and regressions on top of it."""
    published = nn.Linear(len(score) - 1, 2)
    set_score(published, score)
    published.requires_grad_(False)

    def as_published(
        x: Array, y: Labels, classes: int, weights: Array | None, seed: int
    ) -> nn.Module:
        return published

    def refit(penalty: float) -> Candidate:
        def fit(x: Array, y: Labels, classes: int, weights: Array | None, seed: int) -> nn.Module:
            offset = x @ published.weight.double().numpy().T + published.bias.double().numpy()
            model = softmax_fit(x, y, classes, penalty, offset=offset, weights=weights)
            with torch.no_grad():
                model.weight.add_(published.weight)
                model.bias.add_(published.bias)
            return model

        return Candidate(f"{PUBLISHED} refit, penalty {penalty:g}", fit)

    return [Candidate(PUBLISHED, as_published), *map(refit, PENALTIES)]


def rebuild(form: str, tensors: Mapping[str, Tensor], *, unpickle: bool) -> nn.Module:
    """The module of this form that had these tensors as its state."""
    if form == "Linear":
        outputs, inputs = tensors["weight"].shape
        model = nn.Linear(inputs, outputs)
        model.load_state_dict(dict(tensors))
        return model
    if form == "Trees":
        return Trees(**tensors)
    if form in ("Stacked", "PersonPeriod"):
        return _rebuilt_events(form, tensors)
    if form == "Pickled":
        if not unpickle:
            raise ModelError(
                "This private model is an estimator that is kept as a pickle, and opening a pickle "
                "runs the code in it. If the file is your own, say so with --unpickle."
            )
        return Pickled(tensors["content"], tensors["column"])
    raise ModelError(f"Unknown form {form!r} of a fitted model. Use the release that wrote it.")


def _rebuilt_events(form: str, tensors: Mapping[str, Tensor]) -> nn.Module:
    """A module of ``models.fits`` from its trees' tables."""
    from proxyfl.models.fits import PersonPeriod, Stacked

    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        where, _, table = name.rpartition(".")
        parts.setdefault(where, {})[table] = tensor
    if form == "PersonPeriod":
        return PersonPeriod(Trees(**parts["trees"]), int(tensors["intervals"]))
    return Stacked([Trees(**parts[f"parts.{number}"]) for number in range(len(parts))])


def softmax_fit(
    x: Array,
    y: Labels,
    classes: int,
    penalty: float,
    *,
    offset: Array | None = None,
    weights: Array | None = None,
) -> nn.Linear:
    """Multinomial logistic regression with a ridge penalty, on top of fixed logits ``offset``.

    Minimises sum_i w_i CE(x_i W + b + offset_i, y_i) + penalty / 2 |W|^2. A class without examples
    gets no weights and the bias UNSEEN, unless an offset speaks for it."""
    from scipy import optimize

    if offset is None:
        seen = np.unique(y)
        base = np.zeros((len(y), len(seen)))
    else:
        seen = np.arange(classes)
        base = offset
    hot = (y[:, None] == seen).astype(np.float64)
    counts = np.ones(len(y)) if weights is None else weights
    counts = counts[:, None]
    width = x.shape[1]

    def loss(theta: Array) -> tuple[float, Array]:
        table = theta.reshape(len(seen), width + 1)
        W = table[:, :-1]
        b = table[:, -1]
        z = x @ W.T + b + base
        z -= z.max(1, keepdims=True)
        total = np.exp(z).sum(1, keepdims=True)
        log_p = z - np.log(total)
        error = (np.exp(log_p) - hot) * counts
        value = -(counts * hot * log_p).sum()
        gradient = np.empty_like(table)
        gradient[:, :-1] = error.T @ x + penalty * W
        # a trace of a penalty: biases are determined up to a common constant
        gradient[:, -1] = error.sum(0) + 1e-3 * b
        value += penalty / 2 * (W**2).sum()
        value += 1e-3 / 2 * (b**2).sum()
        # per example, so that the search stops at the same accuracy whatever their number
        return float(value) / len(y), gradient.ravel() / len(y)

    start = np.zeros(len(seen) * (width + 1))
    solution = optimize.minimize(loss, start, jac=True, method="L-BFGS-B")
    table = solution.x.reshape(len(seen), width + 1)
    weight = np.zeros((classes, width))
    bias = np.full(classes, UNSEEN)
    weight[seen] = table[:, :-1]
    bias[seen] = table[:, -1]
    model = nn.Linear(width, classes)
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(weight))
        model.bias.copy_(torch.from_numpy(bias))
    return model.requires_grad_(False)


class Trees(nn.Module):
    """Boosted trees as tables: every tree's nodes in one list, a leaf being its own child.

    Of each node: ``feature``, ``threshold``, ``left``, ``right`` and ``value``. Of each tree:
    ``root``, its first node, and ``output``, the class whose logit it adds to. Of all: ``depth``
    and ``baseline``."""

    def __init__(self, **tables: Tensor) -> None:
        super().__init__()
        for name, table in tables.items():
            self.register_buffer(name, table)
        # a plain number: a program that is exported cannot branch on a tensor's value
        self._depth = int(tables["depth"])

    def forward(self, x: Tensor) -> Tensor:
        tables = cast(dict[str, Tensor], dict(self.named_buffers()))
        inputs = x.flatten(1).double()
        # not len(): a trace would take it for a constant
        examples = inputs.shape[0]
        node = tables["root"].expand(examples, -1)
        for _ in range(self._depth):
            left = tables["left"][node]
            right = tables["right"][node]
            values = inputs.gather(1, tables["feature"][node])
            goes_left = values <= tables["threshold"][node]
            node = torch.where(goes_left, left, right)
        logits = tables["baseline"].repeat(examples, 1)
        logits.index_add_(1, tables["output"], tables["value"][node])
        return logits.float()


class Pickled(nn.Module):
    """An estimator of any kind, kept as the bytes of its pickle. ``column`` names the class of each
    of its probabilities; the logits have one entry per class up to ``column``'s last entry."""

    def __init__(self, content: Tensor, column: Tensor, estimator: Any = None) -> None:
        super().__init__()
        self.register_buffer("content", content)
        self.register_buffer("column", column)
        if estimator is None:
            estimator = pickle.loads(content.numpy().tobytes())
        self.estimator = estimator

    def forward(self, x: Tensor) -> Tensor:
        *seen, classes = self.get_buffer("column").tolist()
        inputs = x.flatten(1).double().numpy()
        probabilities = self.estimator.predict_proba(inputs)
        logs = np.log(np.clip(probabilities, 1e-6, 1.0))
        logits = torch.full((len(x), classes), UNSEEN)
        logits[:, seen] = torch.from_numpy(logs).float()
        return logits


def _logistic(penalty: float) -> Candidate:
    def fit(x: Array, y: Labels, classes: int, weights: Array | None, seed: int) -> nn.Module:
        return softmax_fit(x, y, classes, penalty, weights=weights)

    return Candidate(f"{LOGISTIC}, penalty {penalty:g}", fit)


def _foreign(name: str, imports: Imports) -> Candidate:
    """A class of scikit-learn's kind, with its defaults; small trees for few examples."""
    spec = SHORT.get(name, name)
    allowed = INSTALLED if name in SHORT else imports
    make = allowed.resolve(spec, error=ModelError)
    if not hasattr(make, "predict_proba") or not hasattr(make, "fit"):
        raise ModelError(
            f"{name!r} is no classifier: expected a class with fit and predict_proba, such as "
            f"{TREES}, or {LOGISTIC}."
        )

    def fit(x: Array, y: Labels, classes: int, weights: Array | None, seed: int) -> nn.Module:
        if len(np.unique(y)) < 2:
            return softmax_fit(x, y, classes, 1.0)  # one class: nothing to tell
        small = spec == TREES and len(y) < MANY
        estimator = make(**SMALL_TREES) if small else make()
        if "random_state" in getattr(estimator, "get_params", dict)():
            estimator.set_params(random_state=seed % 2**32)
        weighted = {} if weights is None else {"sample_weight": weights}
        with translate_errors(
            ModelError,
            f"The private model {name!r} could not be fitted on {len(y)} examples: it raised",
        ):
            fitted = estimator.fit(x, y, **weighted)
        return _as_module(fitted, classes)

    return Candidate(name, fit)


def _as_module(estimator: Any, classes: int) -> nn.Module:
    from sklearn.ensemble import HistGradientBoostingClassifier

    if type(estimator) is HistGradientBoostingClassifier:
        return _tables(estimator, classes)
    pickled = bytearray(pickle.dumps(estimator))
    content = torch.frombuffer(pickled, dtype=torch.uint8)
    column = torch.tensor([*map(int, estimator.classes_), classes])
    return Pickled(content, column, estimator)


def _tables(estimator: Any, classes: int) -> Trees:
    """scikit-learn's histogram trees, node by node. The inputs have no missing values and no
    categories, so that a threshold decides everywhere."""
    seen = list(map(int, estimator.classes_))
    # with two classes there is one tree, for the logit of the second
    speaking = seen[1:] if len(seen) == 2 else seen
    baseline = np.full(classes, UNSEEN)
    if len(seen) == 2:
        baseline[seen[0]] = 0.0
    baseline[speaking] = np.ravel(estimator._baseline_prediction)
    return tables_of(estimator, speaking, classes, baseline)


def tables_of(
    estimator: Any, speaking: Sequence[int], outputs: int, baseline: Array | None = None
) -> Trees:
    """The trees of a fitted classifier or regressor: in each iteration one for every output in
    ``speaking``."""
    if baseline is None:
        baseline = np.ravel(estimator._baseline_prediction).astype(float)
    trees = []
    roots = []
    of_output = []
    size = 0
    for iteration in estimator._predictors:
        for label, tree in zip(speaking, iteration, strict=True):
            trees.append(tree.nodes)
            roots.append(size)
            of_output.append(label)
            size += len(tree.nodes)
    nodes = np.concatenate(trees)
    root = np.repeat(roots, list(map(len, trees)))
    deepest = max(1, int(nodes["depth"].max()))
    leaf = nodes["is_leaf"].astype(bool)
    own = np.arange(size)
    tables = {
        "feature": np.where(leaf, 0, nodes["feature_idx"].astype(np.int64)),
        "threshold": np.where(leaf, 0.0, nodes["num_threshold"]),
        "left": np.where(leaf, own, nodes["left"] + root),
        "right": np.where(leaf, own, nodes["right"] + root),
        "value": np.where(leaf, nodes["value"], 0.0),
        "root": np.array(roots),
        "output": np.array(of_output),
        "depth": np.array(deepest),
    }
    tables["baseline"] = baseline
    tensors = {}
    for key, table in tables.items():
        tensors[key] = torch.from_numpy(table)
    return Trees(**tensors)
