r"""Puts the public prevalence back into probabilities.

A loss with a balance (``proxyfl.losses``) trains a model whose softmax holds for classes that are
equally common. For classes with the public shares pi, its logits z become

    P(c | x) = softmax(z + b log pi)_c

with b = 1 for ``prior`` and ``weights``, and b = 0 without a balance. The logits of a kept model
are a sum (``federation.home``), and so is its b: s b_proxy + (1 - s) b_own for a sum with the share
s of the proxy. A regression on top of the proxy was fitted with the site's own loss: b = b_own.

Exact where the softmax is the posterior for balanced classes, and records of a class look alike
wherever they come from: P(x | c) is that of the population. A model that minimises its expected
loss is such a posterior (Menon et al. 2020, arXiv:2007.07314v2); clipping, noise, penalties, few
steps and a teacher with another balance leave an error that no constant takes away.

Guarantee: what is added follows from settings and public shares alone, never from records. The
class that a model decides for is that of its own logits: a balance is for decisions.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from proxyfl.federation.home import Home
from proxyfl.federation.methods import Method, Role
from proxyfl.models.estimators import PUBLISHED
from proxyfl.settings import Local, Study

BALANCED = "balanced classes"
PUBLIC = "the public prevalence"

_KEY = "probabilities"


@dataclass(frozen=True)
class Meaning:
    """The population that a model's probabilities are for, and the shift of its logits for that.

    ``of`` is BALANCED, PUBLIC, or empty for a model that no balance has moved."""

    of: str = ""
    offsets: tuple[float, ...] = ()
    prevalence: tuple[float, ...] = ()

    def shifted(self, logits: Tensor) -> Tensor:
        """Logits whose softmax is for the public prevalence, where there is one."""
        return logits + logits.new_tensor(self.offsets) if self.offsets else logits

    def about(self) -> dict[str, str]:
        """The entry of a model's file; none for a model that no balance has moved."""
        if not self.of:
            return {}
        offsets, shares = list(self.offsets), list(self.prevalence)
        content = {"for": self.of, "offsets": offsets, "prevalence": shares}
        return {_KEY: json.dumps(content)}

    @classmethod
    def read(cls, about: Mapping[str, str]) -> "Meaning":
        """The meaning from the entries of a model's file."""
        if _KEY not in about:
            return cls()
        stated = json.loads(about[_KEY])
        return cls(stated["for"], tuple(stated["offsets"]), tuple(stated["prevalence"]))

    def __str__(self) -> str:
        if not self.prevalence:
            return self.of
        return f"{self.of} ({', '.join(f'{share:g}' for share in self.prevalence)})"


NOTHING = Meaning()


def headings(names: Sequence[str], meaning: Meaning) -> list[str]:
    """The headings of columns with probabilities, which say so where they are for classes that are
    equally common."""
    if meaning.of == BALANCED:
        return [f"{name} ({BALANCED})" for name in names]
    return list(names)


@dataclass(frozen=True)
class Balances:
    """The balance of the losses of a client's own and of its shared model, and the publicly known
    share of each class, if there is one."""

    own: str = "none"
    shared: str = "none"
    shares: tuple[float, ...] = ()

    @classmethod
    def of(cls, study: Study, local: Local, method: Method) -> "Balances":
        """Those of a client under a method."""
        own = local.learning.balance
        # without DP what is shared learns by the client's own loss
        shared = study.proxy.balance if method.dp else own
        return cls(own, shared, tuple(study.prevalence))

    def meaning(self, role: Role, model: nn.Module) -> Meaning:
        """Returns the population that the probabilities of the client's model in this role are
        for."""
        part = self._part(role, model)
        if not part:
            return NOTHING
        if not self.shares:
            return Meaning(BALANCED)
        offsets = tuple(part * math.log(share) for share in self.shares)
        return Meaning(PUBLIC, offsets, self.shares)

    def _part(self, role: Role, model: nn.Module) -> float:
        """b of the module's equation."""
        own = float(self.own != "none")
        shared = float(self.shared != "none")
        if role != "private":
            return shared
        if not isinstance(model, Home):
            return own
        if self.own == "weights" and model.name.endswith(f"({PUBLISHED})"):
            own = 0.0  # a published score is taken as it stands, whatever an example weighs
        own_weight, proxy_weight = model.weights
        if own_weight == proxy_weight == 1:  # fitted on top of the proxy
            return own
        return own_weight * own + proxy_weight * shared
