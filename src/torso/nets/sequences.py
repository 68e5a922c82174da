"""Layers and bodies for token sequences, for one client or for G clients at once (shapes: see layers.py).

G clients, B samples, L tokens, V ids in the vocabulary, d the width
ids [G, B, L]   mask [G, B, L], true for a token   tokens [G, B, L, d]   flat [G, B, d]
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torso.nets.blocks import Chain
from torso.nets.body import Body
from torso.nets.layers import Linear


class Embedding(nn.Module):
    """A table with a vector for each id and, if there is a `length`, one for each position, drawn from N(0, std²)."""

    def __init__(self, vocabulary: int, width: int, length: int = 0, std: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width))
        self.places = nn.Parameter(torch.empty(length, width)) if length else None
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=std)

    def extra_repr(self) -> str:
        vocabulary, width = self.weight.shape[-2:]
        return f"{vocabulary}, {width}{'' if self.places is None else ', plus a vector for each place'}"

    def forward(self, ids: Tensor) -> Tensor:
        """[G, B, L] -> [G, B, L, d]."""
        if self.weight.ndim == 2:
            tokens = F.embedding(ids, self.weight)
        else:  # the clients' tables are concatenated, and a client's ids are moved to its own rows
            clients, vocabulary, _ = self.weight.shape
            first_row = torch.arange(clients, device=ids.device).view(-1, 1, 1) * vocabulary
            tokens = F.embedding(ids + first_row, self.weight.flatten(0, 1))
        if self.places is None:
            return tokens
        places = self.places[..., : ids.shape[-1], :]  # a batch may be cut to its longest sequence
        return tokens + (places if places.ndim == 2 else places.unsqueeze(1))


class LayerNorm(nn.LayerNorm):
    """Layer normalisation of each of the tokens [G, B, L, d]."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (p if p.ndim == 1 else p[:, None, None] for p in (self.weight, self.bias))
        return F.layer_norm(x, self.normalized_shape, None, None, self.eps) * weight + bias


class Encoder(nn.Module):
    """One layer of a transformer encoder: attention over the tokens, then two linear layers.

    Both have a LayerNorm before them, and both are added to their input. `wider`: the factor of the hidden width."""

    def __init__(self, width: int, heads: int, wider: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = LayerNorm(width), LayerNorm(width)
        self.mixes, self.joins = Linear(width, 3 * width), Linear(width, width)
        self.widens, self.narrows = Linear(width, wider * width), Linear(wider * width, width)

    def extra_repr(self) -> str:
        return (
            f"x = x + joins(attention of {self.heads} heads over mixes(before_attention(x)))\n"
            "x + narrows(gelu(widens(before_mlp(x))))"
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self._attention(self.before_attention(x), mask)
        return x + _each(self.narrows, F.gelu(_each(self.widens, self.before_mlp(x))))

    def _attention(self, x: Tensor, mask: Tensor) -> Tensor:
        """Attention over the tokens that the mask names. No fused kernel is used, because some methods differentiate a
        step twice."""
        shape = (*x.shape[:3], 3, self.heads, -1)
        query, key, value = _each(self.mixes, x).view(shape).permute(3, 0, 1, 4, 2, 5)  # [G, B, heads, L, d / heads]
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        scores = scores.masked_fill(~mask[:, :, None, None], torch.finfo(scores.dtype).min)
        seen = scores.softmax(dim=-1) @ value
        return _each(self.joins, seen.transpose(2, 3).flatten(3))


def _each(layer: Linear, x: Tensor) -> Tensor:
    """A linear layer on each token [G, B, L, d]."""
    out: Tensor = layer(x.flatten(1, 2))
    return out.view(*x.shape[:3], -1)


class SequenceBody(Body):
    """A body for token sequences: an embedding, layers on the tokens and their mask, the mean over the tokens, and
    blocks on the mean.

    `pad`: the id of padding. The mean of a sequence without tokens is 0."""

    trims = True

    def __init__(
        self,
        pad: int,
        embedding: nn.Module,
        layers: Sequence[nn.Module],
        after: Sequence[nn.Module],
        features: int,
    ) -> None:
        nn.Module.__init__(self)
        self.features, self.pad = features, pad
        self.blocks = Chain([embedding, *layers, *after])
        self.layers = len(layers)

    def extra_repr(self) -> str:
        return f"mean over the tokens (ids other than {self.pad}) after block {self.layers}"

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        embedding, *others = self.blocks
        mask = x != self.pad
        tokens: Tensor = embedding(x)
        for layer in others[: self.layers]:
            tokens = layer(tokens, mask)
        weights = mask.unsqueeze(-1).to(tokens.dtype)
        flat = (tokens * weights).sum(dim=2) / weights.sum(dim=2).clamp(min=1)
        for block in others[self.layers :]:
            flat = block(flat, real)
        return flat
