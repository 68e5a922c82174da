"""Attention between similar clients: the server mixes a model for each client from all uploads (FedAMP, spec 19.21).

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
    """A mix of all uploads for each client: the visit begins at u_k = w_k + Σ_j ξ_kj·(w_j − w_k), and the drift
    correction pulls towards it. The weights of the clients' last uploads w_j are ξ_kj = (α/σ)·exp(−‖w_k − w_j‖²/σ)
    (FedAMP, spec 19.21).

    `sigma = "auto"`: the mean of the squared distances; `alpha = "auto"`: σ over the number of other clients. If the
    weights of the others sum to more than one, they are scaled to one."""

    alpha: Positive | Literal["auto"] = "auto"
    sigma: Positive | Literal["auto"] = "auto"
    mixes: ClassVar[bool] = True
    needs_uploads: ClassVar[bool] = True

    def to_one(self, held: ServerView, client: int) -> Tensors:
        """The mix for one client. Distances are between parameters; running statistics are mixed too, counters are
        not."""
        if not held.uploads:
            return {}  # all clients have the same model
        own = held.uploads.get(client, held.model)
        differences = {n: theirs - own[n] for n, theirs in held.every.items()}  # [J, *]
        squares = torch.stack([differences[n].flatten(1).square().sum(dim=1) for n in held.parameters]).sum(dim=0)
        is_other = on_device(squares.device, [float(other != client) for other in sorted(held.uploads)])
        weights = self.attention(squares, is_other)
        return {n: own[n] + torch.tensordot(weights, d, dims=1) for n, d in differences.items()}

    def attention(self, squares: Tensor, is_other: Tensor) -> Tensor:
        """ξ_kj [J] from squared distances [J]; `is_other` [J] is 0 for the client's own upload and 1 for the others."""
        others = is_other.sum().clamp(min=1)
        sigma = (squares * is_other).sum() / others if self.sigma == "auto" else torch.full_like(others, self.sigma)
        sigma = sigma.clamp(min=torch.finfo(squares.dtype).tiny)
        share = 1 / others if self.alpha == "auto" else self.alpha / sigma
        weights = share * torch.exp(-squares / sigma) * is_other
        return weights / weights.sum().clamp(min=1)
