"""A text encoder of the transformers library as a body: token ids in, one vector of features out.

B texts, L tokens, d the width
ids [B, L]   seen [B, L], true for a token   tokens [B, L, d]
"""

from __future__ import annotations

from typing import Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torso.nets.split import ForeignBody

Pooling = Literal["mean", "cls", "max"]
POOLINGS: tuple[str, ...] = get_args(Pooling)
_LEAST = -3.0e38  # added to the attention score of padding, and the value of padding under the maximum


class Pooled(nn.Module):
    """A text encoder and a pooling of its tokens: their mean, the first one (`cls`) or their maximum.

    `normalize`: the pooled vector gets length 1. Padding is neither attended to nor pooled."""

    def __init__(self, encoder: nn.Module, pad: int, pooling: Pooling, normalize: bool = False) -> None:
        super().__init__()
        self.encoder, self.pad, self.pooling, self.normalize = encoder, pad, pooling, normalize
        self.wide_mask = True  # whether the encoder gets the mask [B, 1, 1, L] of `_mask`; the check below needs it set
        self.wide_mask = self._takes_wide_mask()

    def extra_repr(self) -> str:
        return f"{self.pooling} of the tokens (ids other than {self.pad}){', of length 1' if self.normalize else ''}"

    def forward(self, ids: Tensor) -> Tensor:
        seen = ids != self.pad
        pooled = self._pooled(self.tokens(ids, seen), seen)
        return F.normalize(pooled, dim=-1) if self.normalize else pooled

    def tokens(self, ids: Tensor, seen: Tensor) -> Tensor:
        """The encoder's output [B, L, d] for each token."""
        mask = self._mask(seen) if self.wide_mask else seen.long()
        return cast("Tensor", self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state)

    @staticmethod
    def _mask(seen: Tensor) -> Tensor:
        """The numbers [B, 1, 1, L] that attention adds to its scores.

        The library reads the values of a plain mask [B, L], to skip it if nothing is padded. Under vmap and in a CUDA
        graph no values may be read."""
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
        """Whether the encoder gives the same with the mask of `_mask` as with a plain mask."""
        ids = torch.arange(8).view(2, 4) + self.pad + 1
        seen = torch.tensor([[True] * 4, [True, True, False, False]])
        ids = torch.where(seen, ids, self.pad)
        was = self.encoder.training
        self.encoder.eval()
        try:
            wide, plain = self.tokens(ids, seen), self._plain(ids, seen)
            return torch.allclose(wide[seen], plain[seen], atol=1e-4)
        except Exception:  # the forward of another library may raise anything
            return False
        finally:
            self.encoder.train(was)

    def _plain(self, ids: Tensor, seen: Tensor) -> Tensor:
        """The encoder's output [B, L, d] with a plain mask."""
        return cast("Tensor", self.encoder(input_ids=ids, attention_mask=seen.long()).last_hidden_state)


def is_embedding(name: str, layer: nn.Module) -> bool:
    """Whether the layer that holds a tensor is an embedding table."""
    return isinstance(layer, nn.Embedding)


class EncoderBody(ForeignBody):
    """A text encoder as a body. Its blocks are the embeddings and then each layer. Its part `embeddings` is all
    embedding tables."""

    trims = True

    def __init__(self, pooled: Pooled, features: int) -> None:
        super().__init__(pooled, features, {"embeddings": is_embedding})
        self.blocks = tuple(_layers(pooled.encoder))

    def extra_repr(self) -> str:
        return self.module.extra_repr()


def _layers(encoder: nn.Module) -> list[nn.Module]:
    """The direct children that have parameters. A child that is or holds a list of layers is replaced by these."""
    found: list[nn.Module] = []
    for child in encoder.children():
        layers = _layer_list(child)
        found += [child] if layers is None else list(layers)
    return [layer for layer in found if any(True for _ in layer.parameters())]


def _layer_list(module: nn.Module) -> nn.ModuleList | None:
    """The module itself or the first of its children that is a list of layers; None if there is none."""
    return next((each for each in (module, *module.children()) if isinstance(each, nn.ModuleList)), None)
