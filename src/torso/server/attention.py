"""Clients that are alike attend to each other: the server mixes a model for each client (FedAMP, spec 19.21).

J clients whose last uploads the server has, * a tensor's shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from torso.data.sending import on_device
from torso.kinds import Positive
from torso.nets import Tensors
from torso.server.statistics import ServerView, Statistics, statistics


@statistics.register("attention")
@dataclass(frozen=True)
class Attention(Statistics):
    """A client begins at, and is held near, u_k = w_k + Σ_j ξ_kj·(w_j − w_k), which the server makes of the clients'
    last uploads with ξ_kj = (α/σ)·exp(−‖w_k − w_j‖²/σ) (FedAMP, spec 19.21).

    `sigma = "auto"`: the mean of the squared distances; `alpha = "auto"`: σ over the number of other clients. Weights
    of others that sum to more than one are scaled to one."""

    alpha: Positive | Literal["auto"] = "auto"
    sigma: Positive | Literal["auto"] = "auto"
    mixes: ClassVar[bool] = True
    needs_uploads: ClassVar[bool] = True

    def to_one(self, held: ServerView, client: int) -> Tensors:
        """Distances are those of parameters; running statistics are mixed like these, counters are not."""
        if not held.uploads:
            return {}  # everybody has the same model
        every, own = held.every, held.uploads.get(client, held.model)
        away = {n: theirs - own[n] for n, theirs in every.items()}
        squares = torch.stack([away[n].flatten(1).square().sum(dim=1) for n in held.parameters]).sum(dim=0)
        apart = on_device(squares.device, [float(other != client) for other in sorted(held.uploads)])
        weights = self.attention(squares, apart)
        return {n: own[n] + torch.tensordot(weights, d, dims=1) for n, d in away.items()}

    def attention(self, squares: Tensor, apart: Tensor) -> Tensor:
        """ξ_kj [J] from squared distances [J]; `apart` [J] is 0 for the client's own upload and 1 for others'."""
        others = apart.sum().clamp(min=1)
        sigma = (squares * apart).sum() / others if self.sigma == "auto" else torch.full_like(others, self.sigma)
        sigma = sigma.clamp(min=torch.finfo(squares.dtype).tiny)
        share = 1 / others if self.alpha == "auto" else self.alpha / sigma
        weights = share * torch.exp(-squares / sigma) * apart
        return weights / weights.sum().clamp(min=1)
