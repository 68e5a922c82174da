"""`GpflHead`: one valve makes generic features, compared with shared class embeddings, and personal features, which
the client's own head classifies (GPFL, spec 19.24).

G clients, B samples, d features, C classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torso.nets.dual import DualHead
from torso.nets.layers import Linear

EMBEDDINGS, VALVE = "head.embeddings", "head.valve"  # names of parts of the network


class ConditionMap(nn.Module):
    """LayerNorm(relu(linear(x))) of a condition x: [1, d], or [G, 1, d] with the weights of G clients."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = Linear(features, features)
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def extra_repr(self) -> str:
        return "weight · normalised(relu(linear(x))) + bias"

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.linear(x))
        return F.layer_norm(x, x.shape[-1:]) * self.weight.unsqueeze(-2) + self.bias.unsqueeze(-2)


class Valve(nn.Module):
    """relu((γ(c) + 1) ⊙ f + β(c)) of features f under a condition c."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.gamma = ConditionMap(features)
        self.beta = ConditionMap(features)

    def extra_repr(self) -> str:
        return "relu((gamma(c) + 1) · x + beta(c))"

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return F.relu((self.gamma(condition) + 1) * x + self.beta(condition))


class GpflHead(DualHead):
    """A head whose generic logits are the cosines of the generic features with the embeddings of the classes, and whose
    personal logits come from the client's own head on the personal features.

    Both conditions of the valve are made from embeddings without a gradient: `anchors`, the embeddings at the begin of
    the client's visit, or the present ones if no anchors are given. A client's condition is the mean over the classes
    of embeddings times class shares; with `by_samples` the mean over its samples, which is as many times longer as
    there are classes."""

    mix: Tensor  # [C] or [G, C], the client's class proportions
    anchors: Tensor | None  # [C, d] or [G, C, d]

    def __init__(self, features: int, classes: int, bias: bool, by_samples: bool = False) -> None:
        nn.Module.__init__(self)
        self.adds, self.by_samples = False, by_samples
        self.embeddings = Linear(features, classes, bias=False)
        self.valve = Valve(features)
        self.personal = Linear(features, classes, bias=bias)
        self.register_buffer("mix", torch.full((classes,), 1 / classes), persistent=False)
        self.register_buffer("anchors", None, persistent=False)

    def extra_repr(self) -> str:
        return (
            "generic model: cos(embeddings, valve(x, mean of embeddings)); a client's: "
            "personal(valve(x, mean of embeddings "
            + ("by its class shares))" if self.by_samples else "times its class shares))")
        )

    @property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """Parts of the network that a method can name."""
        return {
            part: tuple(f"{part}.{name}" for name in module.state_dict())
            for part, module in ((EMBEDDINGS, self.embeddings), (VALVE, self.valve))
        }

    @property
    def client_facts(self) -> dict[str, tuple[int, ...]]:
        classes, features = self.embeddings.out_features, self.embeddings.in_features
        return {"mix": (classes,), "anchors": (classes, features)}

    def facts(self, counts: Tensor, held: dict[str, Tensor]) -> dict[str, Tensor]:
        """The class proportions of G clients [G, C], and the embeddings that they hold now."""
        shares = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
        return {"mix": shares, "anchors": held[f"{EMBEDDINGS}.weight"]}

    def forward(self, x: Tensor) -> Tensor:
        rows = F.normalize(self.embeddings.weight, dim=-1)
        return F.normalize(self._generic(x), dim=-1) @ rows.mT

    def own(self, features: Tensor, logits: Tensor) -> Tensor:
        """The client's own logits [G, B, C], from its personal features."""
        condition = self.mix.unsqueeze(-2) @ self._fixed()
        if not self.by_samples:
            condition = condition / self.mix.shape[-1]
        return self.personal(self.valve(features, condition))  # type: ignore[no-any-return]

    def gaps(self, features: Tensor) -> Tensor:
        """Squared distances of the generic features to every anchor [G, B, C]."""
        x, anchors = self._generic(features), self._fixed()
        squares = x.square().sum(dim=-1, keepdim=True) + anchors.square().sum(dim=-1).unsqueeze(-2)
        return squares - 2 * (x @ anchors.mT)

    def _generic(self, x: Tensor) -> Tensor:
        """The generic features."""
        return self.valve(x, self._fixed().mean(dim=-2, keepdim=True))  # type: ignore[no-any-return]

    def _fixed(self) -> Tensor:
        """The embeddings without a gradient: the anchors if they are given, else the present embeddings."""
        return (self.embeddings.weight if self.anchors is None else self.anchors).detach()
