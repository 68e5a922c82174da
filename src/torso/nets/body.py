"""`Body`: turns samples into features, for one client or for G clients at once (shapes: see layers.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from torso.data.batches import KeyedBy
from torso.nets.blocks import Chain
from torso.nets.dropout import Dropout
from torso.nets.layers import concatenated, flat
from torso.nets.lora import Lora
from torso.nets.parts import (
    Predicate,
    check_named,
    chosen,
    is_norm,
)


class Body(nn.Module):
    """Blocks in order of depth that turn samples, here images [G, B, C, H, W], into features [G, B, features].

    `pool`: average over the map that the last block gives. `parts`: further parts of the network, by name. The part
    `norm`, all normalisation layers, always exists.
    """

    native = True  # whether its layers are Torso's own, which take weights with a client dimension
    draws: bool | None = None  # if not native: whether it draws random numbers in training; None: not yet known
    draws_there = False  # if it draws: whether it does so only on the device of its input
    trims = False  # whether tokens may be cut to the longest sequence of a batch, because padding changes nothing
    vmaps = True  # if not native: whether vmap can compute it for several clients
    lora: Lora | None = None  # the kind of its adapters, if it has any (adapters.py)
    drops = False  # whether it has Torso's dropout layers, which draw from the keys [G] of a batch (dropout.py)
    once = False  # whether one call can compute G clients' concatenated samples with one copy of the frozen tensors
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
        """Check predicates over the tensors of a module, and add them to the body's parts."""
        if parts:
            check_named(module, parts)
            self.predicates = {**self.predicates, **parts}

    def extra_repr(self) -> str:
        """What `forward` does around the blocks, so that a printed network says all that it computes."""
        if not self.native:
            return ""
        return "blocks, then the mean over height and width" if self.pool else "blocks, then flatten"

    @property
    def keyed(self) -> bool:
        """Whether the body may draw random numbers in training, from keys on the host that come with a batch."""
        return not self.native or self.draws is True

    @property
    def keyed_by(self) -> KeyedBy:
        """Which keys a batch must bring for the body: none (False), keys on the host (True), or on the device."""
        return self.keyed or ("device" if self.drops else False)

    @property
    def one_pass(self) -> bool:
        """Whether G clients of any sizes can learn in one forward pass that draws no random numbers."""
        if self.lora is None:
            return self.native
        takes_all = self.native or (self.once and self.lora.base == "eval")
        return takes_all and self.draws is False

    @property
    def passes_once(self) -> bool:
        """Whether `once` holds in the present mode.

        A body that is not Torso's was tried in eval mode only (adapters.py), and may mix samples in train mode."""
        if not self.once or self.native:
            return self.once
        return not self.training or self.lora is None or self.lora.base == "eval"

    def own_parts(self) -> dict[str, tuple[str, ...]]:
        """The names of the body's tensors by part; empty parts are left out."""
        found = {name: chosen(self, predicate) for name, predicate in self.predicates.items()}
        return {name: held for name, held in found.items() if held}

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        clients, x = x.shape[0], concatenated(x)
        for block in self.blocks:
            x = block(x, real)
        if self.pool:
            x = x.mean((2, 3), keepdim=True)
        x = flat(x, clients) if x.ndim == 4 else x.reshape(clients, -1, x.shape[-1])
        return x.float() if x.dtype == torch.bfloat16 else x  # heads and losses compute in float32


class FlatBody(Body):
    """A body that flattens its samples [G, B, *] first; its blocks map flat features."""

    def extra_repr(self) -> str:
        return "flatten, then blocks"

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        x = x.flatten(2)
        for block in self.blocks:
            x = block(x, real)
        return x.float() if x.dtype == torch.bfloat16 else x
