"""`SimplexHead`: a head whose classes are the corners of a regular simplex, so as far apart as possible (FedETF,
FedGELA; spec 19.9).

G clients, B samples, d features, C classes.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torso.nets.layers import Linear

PROJECTION, CLASSIFIER = "head.projection", "head.classifier"  # names of parts of the network


def simplex(orthonormal: Tensor) -> Tensor:
    """The corners of a regular simplex [C, d], from orthonormal rows U [C, d]: √(C/(C−1))·(I − 11ᵀ/C)·U.

    The rows have length 1, and the cosine of any two is −1/(C−1)."""
    classes = len(orthonormal)
    return math.sqrt(classes / max(classes - 1, 1)) * (orthonormal - orthonormal.mean(dim=0, keepdim=True))


class SimplexHead(nn.Module):
    """A head with logits β·V·p/‖p‖, with p = projection(f) and V the corners. β learns if there is a projection."""

    def __init__(self, features: int, classes: int, scale: float, projects: bool) -> None:
        super().__init__()
        self.projection = Linear(features, features) if projects else None
        self.classifier = Linear(features, classes, bias=False)
        start = torch.full((1,), scale)
        self.scale = nn.Parameter(start) if projects else None
        self.fixed = scale

    def extra_repr(self) -> str:
        p = "x" if self.projection is None else "projection(x)"
        return f"{self.fixed if self.scale is None else 'scale'} · classifier(p / max(‖p‖, 1e-12)), p = {p}"

    @property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """Parts of the network that a method can name."""
        names = tuple(f"head.{name}" for name in self.state_dict())
        corners = tuple(name for name in names if name.startswith("head.classifier."))
        rest = tuple(name for name in names if name not in corners)
        return {CLASSIFIER: corners, **({PROJECTION: rest} if rest else {})}

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.projection is None else self.projection(x)
        cosines: Tensor = self.classifier(F.normalize(x, dim=-1))
        return cosines * (self.fixed if self.scale is None else self.scale.unsqueeze(-1))  # [1, 1] or [G, 1, 1]
