"""Losses in plain PyTorch, one client, written from the papers' equations: nothing here calls the code under test.

x [B, …] samples, y [B] labels, n [C] the client's training samples of each class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Seen:
    """A batch and what a client knows: its network now, the one received, the one that its last visit left."""

    net: Any
    received: Any
    previous: Any
    x: Tensor
    y: Tensor
    n: Tensor


Loss = Callable[[Seen], Tensor]


def cross_entropy(at: Seen) -> Tensor:
    return F.cross_entropy(at.net(at.x), at.y)


def calibrated(at: Seen) -> Tensor:
    """−log e^(z_y − τ n_y^(−1/4)) / Σ_c e^(z_c − τ n_c^(−1/4)), τ = 1; e^(−∞) = 0 for n_c = 0."""
    weights = torch.exp(-at.n.pow(-0.25))
    e = torch.exp(at.net(at.x)) * weights
    return -(e[range(len(at.y)), at.y] / e.sum(dim=1)).log().mean()


def restricted(at: Seen) -> Tensor:
    """Soft-max of α_c z_c: α_c = 1 for classes that the client has, ½ for the others."""
    e = torch.exp(at.net(at.x) * torch.tensor([1.0 if count else 0.5 for count in at.n.tolist()]))
    return -(e[range(len(at.y)), at.y] / e.sum(dim=1)).log().mean()


def not_true(at: Seen) -> Tensor:
    """CE + Σ_{c≠y} q̃ᵍ_c log(q̃ᵍ_c / q̃_c), soft-max over the wrong classes; sample by sample."""
    z = at.net(at.x)
    with torch.no_grad():
        teacher = at.received(at.x)
    total = torch.zeros(())
    for mine, theirs, label in zip(z, teacher, at.y.tolist(), strict=True):
        wrong = [c for c in range(len(mine)) if c != label]
        p, q = torch.exp(theirs[wrong]), torch.exp(mine[wrong])
        p, q = p / p.sum(), q / q.sum()
        total = total + (p * (p / q).log()).sum()
    return F.cross_entropy(z, at.y) + total / len(at.y)


def contrast(at: Seen) -> Tensor:
    """CE − log e^(s_g/τ) / (e^(s_g/τ) + e^(s_p/τ)), μ = 1, τ = ½, s cosines of features."""
    features = at.net.features(at.x)
    with torch.no_grad():
        others = [model.features(at.x) for model in (at.received, at.previous)]
    near, before = (torch.exp((features * o).sum(1) / (features.norm(dim=1) * o.norm(dim=1)) / 0.5) for o in others)
    return F.cross_entropy(at.net.classify(features), at.y) - (near / (near + before)).log().mean()


def plain_steps(steps: int, momentum: float) -> float:
    """The sum of all velocities of SGD with momentum when every gradient is 1."""
    speed = moved = 0.0
    for _ in range(steps):
        speed = momentum * speed + 1
        moved += speed
    return moved
