"""A body turns samples into features, for one client or for G at once (shapes: see layers.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from torso.data.batches import KeyedBy
from torso.nets.blocks import Chain
from torso.nets.dropout import Dropout
from torso.nets.layers import flat, in_line
from torso.nets.lora import Lora
from torso.nets.parts import (
    Predicate,
    check_named,
    chosen,
    is_norm,
)


class Body(nn.Module):
    """Blocks in order of depth that turn samples, here images [G, B, C, H, W], into features [G, B, features].

    `native`: the layers know of the client dimension. `pool`: average over the map that the last block leaves.
    `parts`: further parts of the network by name; `norm`, its normalisation layers, needs no telling.
    """

    native = True
    draws: bool | None = None  # of one that is not native: random numbers in training; None: nobody has looked yet
    draws_there = False  # … all of them on the device of its input
    trims = False  # whether tokens may be cut to the longest sequence of a batch: padding changes nothing
    vmaps = True  # of one that is not native: whether vmap can compute it for several clients
    lora: Lora | None = None  # its adapters, where it has any (adapters.py)
    drops = False  # whether it has dropout of Torso's own, which draws from keys [G] of a batch (dropout.py)
    once = False  # whether all that is frozen can be given once, while G clients' samples stand in line
    features: int
    blocks: Chain | tuple[nn.Module, ...]
    predicates: Mapping[str, Predicate] = MappingProxyType({"norm": is_norm})

    def __init__(
        self,
        blocks: Iterable[nn.Module],
        features: int,
        pool: bool = False,
        parts: Mapping[str, Predicate] | None = None,
    ) -> None:
        super().__init__()
        self.features, self.pool = features, pool
        self.blocks = Chain(blocks)
        self.drops = any(isinstance(module, Dropout) for module in self.modules())
        self.name_parts(self, parts)

    def name_parts(self, module: nn.Module, parts: Mapping[str, Predicate] | None) -> None:
        """Take predicates over the tensors of a module, once they are known to make sense."""
        if parts:
            check_named(module, parts)
            self.predicates = {**self.predicates, **parts}

    def extra_repr(self) -> str:
        """A printed network says all that it computes: also what no module does."""
        if not self.native:
            return ""
        return "blocks, then the mean over height and width" if self.pool else "blocks, then flatten"

    @property
    def keyed(self) -> bool:
        """Whether it may draw random numbers in training, from keys that come with a batch."""
        return not self.native or self.draws is True

    @property
    def keyed_by(self) -> KeyedBy:
        """Whether it draws from keys, and whether these are on the device."""
        return self.keyed or ("device" if self.drops else False)

    @property
    def in_line(self) -> bool:
        """Whether G clients of any sizes learn in one forward pass that draws no random number."""
        if self.lora is None:
            return self.native
        return (self.native or (self.once and self.lora.base == "eval")) and self.draws is False

    @property
    def passes_once(self) -> bool:
        """Whether what is frozen can be given once, in its present mode: a body that is not Torso's was tried in
        evaluation, and may mix samples in training."""
        return self.once and (self.native or not self.training or self.lora is None or self.lora.base == "eval")

    def own_parts(self) -> dict[str, tuple[str, ...]]:
        """The body's tensors by part; parts that hold nothing are left out."""
        return {name: held for name, holds in self.predicates.items() if (held := chosen(self, holds))}

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        clients, x = x.shape[0], in_line(x)
        for block in self.blocks:
            x = block(x, real)
        if self.pool:
            x = x.mean((2, 3), keepdim=True)
        x = flat(x, clients) if x.ndim == 4 else x.reshape(clients, -1, x.shape[-1])
        return x.float() if x.dtype == torch.bfloat16 else x  # heads and losses compute in float32


class FlatBody(Body):
    """The same for samples of any shape [G, B, *], which are flattened first: its blocks map flat features."""

    def extra_repr(self) -> str:
        return "flatten, then blocks"

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        x = x.flatten(2)
        for block in self.blocks:
            x = block(x, real)
        return x.float() if x.dtype == torch.bfloat16 else x
