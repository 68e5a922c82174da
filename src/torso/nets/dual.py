"""Two heads in one: what the server has learned, and what a client adds to it (Fed-RoD, spec 6.2 and 6.3).

G clients, B samples, d features, C classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torso.nets.layers import Linear


class HyperLinear(nn.Module):
    """A linear layer whose weight is V₂·relu(V₁·a), a the client's class proportions; no biases.

    `own`, where it is given, is added to that: a layer of the client's own that begins where the made one stands."""

    mix: Tensor
    own: Tensor | None

    def __init__(self, features: int, classes: int, hidden: int) -> None:
        super().__init__()
        self.features, self.classes = features, classes
        self.first = Linear(classes, hidden, bias=False)
        self.second = Linear(hidden, classes * features, bias=False)
        # facts about the client, not weights: they are given with every call, and neither travel nor are saved
        self.register_buffer("mix", torch.full((classes,), 1 / classes), persistent=False)
        self.register_buffer("own", None, persistent=False)

    def extra_repr(self) -> str:
        return "x @ weight.mT, weight = second(relu(first(class proportions))) as [classes, features], plus own if any"

    def forward(self, x: Tensor) -> Tensor:
        mix = self.mix if self.mix.ndim == 2 else self.mix.unsqueeze(0)  # [G, C]
        made: Tensor = self.second(F.relu(self.first(mix.unsqueeze(1))))  # [G, 1, C·d]
        weight = made.view(-1, self.classes, self.features)
        weight = weight if self.own is None else weight + self.own
        return x @ (weight if x.ndim == 3 else weight[0]).mT


class DualHead(nn.Module):
    """Generic logits; `own` adds the personal ones, or has these alone. The personal loss reaches the personal head
    only (spec 6.2)."""

    def __init__(self, generic: Linear, personal: nn.Module, adds: bool = True) -> None:
        super().__init__()
        self.adds = adds
        self.generic = generic
        self.personal = personal

    def extra_repr(self) -> str:
        own = "generic(x) + personal(x)" if self.adds else "personal(x)"
        return f"generic model: generic(x); a client's: {own}"

    def forward(self, x: Tensor) -> Tensor:
        return self.generic(x)  # type: ignore[no-any-return]

    def own(self, features: Tensor, logits: Tensor) -> Tensor:
        own: Tensor = self.personal(features.detach())
        return logits.detach() + own if self.adds else own

    @property
    def told(self) -> dict[str, tuple[int, ...]]:
        """What it may be told of a client beside weights: tensors that no state_dict holds, with their shapes."""
        if not isinstance(self.personal, HyperLinear):
            return {}
        classes, features = self.personal.classes, self.personal.features
        return {"personal.mix": (classes,), "personal.own": (classes, features)}

    def facts(self, counts: Tensor, held: dict[str, Tensor]) -> dict[str, Tensor]:
        """The class proportions of G clients [G, C], where the personal head is made from them; `held`: the clients'
        models [G, *]."""
        if not isinstance(self.personal, HyperLinear):
            return {}
        return {"personal.mix": counts / counts.sum(dim=1, keepdim=True).clamp(min=1)}
