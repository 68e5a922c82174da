"""Token sequences cut to the longest of their batch, so that padding costs little.

G clients, n samples, B samples of a batch, L tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from torso.data.augment import Lens

_STEP = 16  # lengths are multiples of it: few shapes occur, so few CUDA graphs are recorded
_lengths: WeakIdKeyDictionary = WeakIdKeyDictionary()  # of stored samples, worked out once


@dataclass(frozen=True)
class TokenLens(Lens):
    """Ids as they are stored. `trims`: without the columns at the end that only hold padding, for a body to which these
    make no difference."""

    pad: int = field(default=0, kw_only=True)
    trims: bool = field(default=False, kw_only=True)

    def for_body(self, trims: bool) -> TokenLens:
        return replace(self, trims=trims)

    def widths(self, samples: Tensor, order: Tensor, batch_size: int) -> list[int] | None:
        """How many columns each batch of an order [G, n] needs: one look at the device for a whole pass."""
        if not self.trims or not order.numel():
            return None
        most = lengths_of(samples, self.pad)[order].amax(dim=0)  # [n]
        spare = -len(most) % batch_size
        batches = torch.nn.functional.pad(most, (0, spare)).view(-1, batch_size).amax(dim=1)
        return [_columns(longest, samples.shape[1]) for longest in batches.tolist()]

    def by_length(self, samples: Tensor) -> Tensor | None:
        return lengths_of(samples, self.pad).argsort(descending=True, stable=True) if self.trims else None


def trimmed(ids: Tensor, pad: int) -> Tensor:
    """Sequences [n, L] as `TokenLens` cuts them where they are a batch of their own."""
    place = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    return ids[:, : _columns(int(((ids != pad) * place).max()), ids.shape[1])]


def _columns(longest: int, most: int) -> int:
    """How many columns a batch needs whose longest sequence has so many tokens."""
    return min(most, max(1, -(-longest // _STEP)) * _STEP)


def lengths_of(samples: Tensor, pad: int) -> Tensor:
    """The place behind the last token of each sequence, int64 [n], on the device of the samples [n, L]."""
    held: dict[int, Tensor] = _lengths.setdefault(samples, {})  # type: ignore[no-untyped-call]
    if pad not in held:
        place = torch.arange(1, samples.shape[1] + 1, dtype=torch.int32, device=samples.device)
        some = [((part != pad) * place).amax(dim=1) for part in torch.split(samples, 1 << 16)]
        held[pad] = torch.cat(some).long()
    return held[pad]
