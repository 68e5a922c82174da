"""`ShiftedHead`: adds a vector of the client to the features before it classifies them (FedDBE, spec 19.15).

G clients, B samples, d features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torso.nets.layers import Linear

SHIFT = "head.shift"  # name of a part of the network


class ShiftedHead(nn.Module):
    """A head with logits W·(f + shift) + b. The shift starts at zero."""

    def __init__(self, features: int, classes: int, bias: bool) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(features))
        self.linear = Linear(features, classes, bias=bias)

    def extra_repr(self) -> str:
        return "linear(x + shift)"

    @property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """Parts of the network that a method can name."""
        return {SHIFT: (SHIFT,)}

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x + self.shift.unsqueeze(-2))  # type: ignore[no-any-return]  # [1, d] or [G, 1, d]
