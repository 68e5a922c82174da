"""Personal heads that combine the shared head with the row norms of the client's own (FedLoGe, spec 19.23)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torso.errors import RequestError
from torso.nets import Network, Tensors
from torso.nets.sparse_simplex import SparseSimplexHead
from torso.personal.base import OwnModelStart, Personal, personals

_NEVER = -1e4  # logit of a class that the client lacks: finite, but never the largest


@personals.register("realigned")
@dataclass(frozen=True)
class Realigned(Personal):
    """The model that a client holds, with a personal head of rows ψ_c·(‖φ_c‖ + 1): the shared auxiliary head ψ, plus ψ
    with each row scaled by the norm of the client's own row φ_c. A class that the client lacks is never predicted
    (FedLoGe, spec 19.23)."""

    def check(self, net: Network) -> None:
        if not isinstance(net.head, SparseSimplexHead):
            raise RequestError(
                "method.personal = 'realigned' scales an auxiliary head by the norms of the client's own, and "
                f"{type(net.head).__name__} has no auxiliary head. Accepted: method.head = 'sparse-simplex'"
            )

    def begin(self, at: OwnModelStart) -> Tensors:
        common, own = "head.auxiliary.", "head.personal."
        norms = at.held[f"{own}weight"].norm(dim=-1, keepdim=True)  # [G, C, 1]
        lacks = at.counts() == 0
        weight = at.held[f"{common}weight"] * (norms + 1)
        bias = at.held[f"{common}bias"] + at.held[f"{own}bias"]
        return {
            **at.held,
            f"{own}weight": weight.masked_fill(lacks.unsqueeze(-1), 0.0),
            f"{own}bias": torch.where(lacks, _NEVER, bias),
        }
