"""A text encoder of the transformers library as a body: token ids in, one vector of features out.

B texts, L tokens, d the width
ids [B, L]   seen [B, L], true for a token   tokens [B, L, d]
"""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torso.nets.split import ForeignBody

Pooling = Literal["mean", "cls", "max"]
POOLINGS: tuple[str, ...] = get_args(Pooling)
_LEAST = -3.0e38  # what is added to the score of padding


class Pooled(nn.Module):
    """An encoder, and what it makes of its tokens: their mean, the first one (`cls`) or their maximum, perhaps
    normalised to length 1. Padding is neither attended to nor pooled."""

    def __init__(self, encoder: nn.Module, pad: int, pooling: Pooling, normalize: bool = False) -> None:
        super().__init__()
        self.encoder, self.pad, self.pooling, self.normalize = encoder, pad, pooling, normalize
        self.wide_mask = True
        self.wide_mask = self._takes_wide_mask()

    def extra_repr(self) -> str:
        return f"{self.pooling} of the tokens (ids other than {self.pad}){', of length 1' if self.normalize else ''}"

    def forward(self, ids: Tensor) -> Tensor:
        seen = ids != self.pad
        made = self._pooled(self.tokens(ids, seen), seen)
        return F.normalize(made, dim=-1) if self.normalize else made

    def tokens(self, ids: Tensor, seen: Tensor) -> Tensor:
        mask = self._mask(seen) if self.wide_mask else seen.long()
        return cast("Tensor", self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state)

    @staticmethod
    def _mask(seen: Tensor) -> Tensor:
        """What attention adds to its scores [B, 1, 1, L]. A plain mask [B, L] is looked at by the library, to skip it
        where nothing is padded: under vmap and in a CUDA graph nobody may look."""
        every = torch.zeros(seen.shape, device=seen.device)
        return every.masked_fill(~seen, _LEAST)[:, None, None, :].expand(-1, 1, seen.shape[1], -1)

    def _pooled(self, tokens: Tensor, seen: Tensor) -> Tensor:
        if self.pooling == "cls":
            return tokens[:, 0]
        weights = seen.unsqueeze(-1)
        if self.pooling == "max":
            return tokens.masked_fill(~weights, _LEAST).amax(dim=1)
        return (tokens * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)

    @torch.no_grad()
    def _takes_wide_mask(self) -> bool:
        """Whether the encoder gives the same with the mask that it need not look at."""
        ids = torch.arange(8).view(2, 4) + self.pad + 1
        seen = torch.tensor([[True] * 4, [True, True, False, False]])
        ids = torch.where(seen, ids, self.pad)
        was = self.encoder.training
        self.encoder.eval()
        try:
            wide, plain = self.tokens(ids, seen), self._plain(ids, seen)
            return torch.allclose(wide[seen], plain[seen], atol=1e-4)
        except Exception:  # somebody's own forward: nobody knows what it may raise
            return False
        finally:
            self.encoder.train(was)

    def _plain(self, ids: Tensor, seen: Tensor) -> Tensor:
        return cast("Tensor", self.encoder(input_ids=ids, attention_mask=seen.long()).last_hidden_state)


def is_embedding(name: str, layer: nn.Module) -> bool:
    """Whether a tensor is of a table of embeddings."""
    return isinstance(layer, nn.Embedding)


class EncoderBody(ForeignBody):
    """An encoder as a body. Its blocks: the embeddings, then layer by layer. Its part `embeddings`: all tables."""

    trims = True

    def __init__(self, pooled: Pooled, features: int) -> None:
        super().__init__(pooled, features, {"embeddings": is_embedding})
        self.blocks = tuple(_layers(pooled.encoder))

    def extra_repr(self) -> str:
        return self.module.extra_repr()


def _layers(encoder: nn.Module) -> list[nn.Module]:
    """The direct children that have parameters; where one holds a list of layers, these in its place."""
    found: list[nn.Module] = []
    for child in encoder.children():
        inside = child if isinstance(child, nn.ModuleList) else next(_lists(child), None)
        found += [child] if inside is None else list(inside)
    return [layer for layer in found if any(True for _ in layer.parameters())]


def _lists(module: nn.Module) -> Any:
    return (child for child in module.children() if isinstance(child, nn.ModuleList))
