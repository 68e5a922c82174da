"""`TokenLens`: cuts the token sequences of a batch to the longest of them, so that padding costs little.

G clients, n samples, B samples of a batch, L tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from torso.data.augment import Lens

_STEP = 16  # lengths are multiples of it, so that few shapes occur and few CUDA graphs are recorded
_lengths: WeakIdKeyDictionary = WeakIdKeyDictionary()  # stored samples → pad → lengths, computed once


@dataclass(frozen=True)
class TokenLens(Lens):
    """The lens of token sequences. `trims`: columns at the end of a batch that hold only padding are left out; for
    bodies whose output does not depend on them."""

    pad: int = field(default=0, kw_only=True)
    trims: bool = field(default=False, kw_only=True)

    def for_body(self, trims: bool) -> TokenLens:
        return replace(self, trims=trims)

    def widths(self, samples: Tensor, order: Tensor, batch_size: int) -> list[int] | None:
        """The number of columns of each batch of an order [G, n]. It waits for the device once per epoch, not once per
        batch."""
        if not self.trims or not order.numel():
            return None
        longest = lengths_of(samples, self.pad)[order].amax(dim=0)  # [n], over the clients
        missing = -len(longest) % batch_size
        of_batches = torch.nn.functional.pad(longest, (0, missing)).view(-1, batch_size).amax(dim=1)
        return [_columns(length, samples.shape[1]) for length in of_batches.tolist()]

    def by_length(self, samples: Tensor) -> Tensor | None:
        return lengths_of(samples, self.pad).argsort(descending=True, stable=True) if self.trims else None


def trimmed(ids: Tensor, pad: int) -> Tensor:
    """Sequences [n, L], cut as `TokenLens` cuts one batch of them."""
    place = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    longest = int(((ids != pad) * place).max())
    return ids[:, : _columns(longest, ids.shape[1])]


def _columns(longest: int, most: int) -> int:
    """The number of columns of a batch whose longest sequence has `longest` tokens; at most `most`."""
    return min(most, max(1, -(-longest // _STEP)) * _STEP)


def lengths_of(samples: Tensor, pad: int) -> Tensor:
    """The length of each sequence up to its last token, int64 [n], on the device of the samples [n, L]."""
    known: dict[int, Tensor] = _lengths.setdefault(samples, {})  # type: ignore[no-untyped-call]
    if pad not in known:
        place = torch.arange(1, samples.shape[1] + 1, dtype=torch.int32, device=samples.device)
        lengths = [((part != pad) * place).amax(dim=1) for part in torch.split(samples, 1 << 16)]
        known[pad] = torch.cat(lengths).long()
    return known[pad]
