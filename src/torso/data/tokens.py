"""`Tokens`: sequences of token ids, int32 [n, L] with L tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from torso.data.augment import Lens
from torso.data.input_base import CPU, Array, Input, as_array, axes, plural, refuse_none, seeded_generator
from torso.data.token_lens import TokenLens
from torso.errors import RequestError
from torso.kinds import Count, CountOrZero


@dataclass(frozen=True)
class Tokens(Input):
    """Sequences of token ids, 0 to `vocabulary` − 1, all padded to `length` with the id `pad`.

    One tensor holds both ids and mask, because no token has the id `pad`. A body unpacks x [G, B, L] as
    `ids, mask = x, x != pad`."""

    length: Count
    vocabulary: Count
    pad: CountOrZero = 0
    tokenizer: str = field(default="", repr=False)  # identity of the tokenizer (tokenizers.py), if known
    kind: Literal["tokens"] = "tokens"

    many: ClassVar[str] = "token sequences"
    noun: ClassVar[str] = "sequences"
    stored: ClassVar[torch.dtype] = torch.int32
    given: ClassVar[torch.dtype] = torch.int64

    def __post_init__(self) -> None:
        if self.pad >= self.vocabulary:
            raise RequestError(
                f"pad = {self.pad} with a vocabulary of {self.vocabulary} ids. Expected: 0 to {self.vocabulary - 1}"
            )

    @staticmethod
    def array(where: str, ids: Any, mask: Any = None, pad: int | None = None) -> Array:
        """Sequences of unknown origin, checked, as int32 [n, L]; ids at which the mask is 0 become `pad`."""
        ids = as_array(ids)
        if ids.dtype.kind not in "iu" or ids.ndim != 2 or 0 in ids.shape[1:]:
            raise RequestError(
                f"{where}: sequences are {ids.dtype} {list(ids.shape)}. "
                "Expected: integers (token ids), shape [n, length]"
            )
        refuse_none(where, "sequences", ids)
        if mask is not None:
            mask = as_array(mask)
            if mask.shape != ids.shape or not np.isin(mask, (0, 1)).all():
                raise RequestError(
                    f"{where}: the mask is {mask.dtype} {list(mask.shape)}. "
                    f"Expected: 1 for a token and 0 for padding, shape {list(ids.shape)}"
                )
            taken = np.argwhere((ids == pad) & (mask == 1))
            if len(taken):
                raise RequestError(
                    f"{where}: the mask takes place {taken[0][1]} of sequence {taken[0][0]} for a token, and its id is "
                    f"that of padding, {pad}. Expected: an id for padding that no token has"
                )
            ids = np.where(mask == 1, ids, pad)
        if ids.min() < 0 or ids.max() > np.iinfo(np.int32).max:
            raise RequestError(f"{where}: ids are {ids.min()} to {ids.max()}. Expected: 0 or more, below 2³¹")
        return np.ascontiguousarray(ids, dtype=np.int32)

    @property
    def shape(self) -> tuple[int]:
        return (self.length,)

    @property
    def words(self) -> str:
        return f"sequences of at most {plural(self.length, 'token')}"

    size = words

    @property
    def argument(self) -> str:
        texts = "a list of texts, or " if self.tokenizer else ""
        return f"{texts}integers {axes(self.shape)}, padded with {self.pad}"

    @property
    def preparation(self) -> str:
        return (
            f"int64 {axes(self.shape)}: token ids from 0 to {self.vocabulary - 1}, with {self.pad} in every "
            "place\nthat holds no token"
        )

    def lens(self, device: torch.device) -> Lens:
        return TokenLens(pad=self.pad)

    def example(self, samples: int, device: torch.device = CPU) -> Tensor:
        if device.type == "meta":
            return torch.empty(samples, self.length, dtype=self.given, device=device)
        return torch.randint(self.vocabulary, (samples, self.length), generator=seeded_generator()).to(device)

    def accept(self, where: str, samples: Any) -> Array:
        """Sequences as int32 [n, length]; shorter ones are padded."""
        found = self.array(where, samples)
        if found.shape[1] > self.length:
            raise RequestError(
                f"{where}: sequences are {list(found.shape)}. Expected: at most {self.length} tokens, as those that "
                "the model was trained on"
            )
        if found.max() >= self.vocabulary:
            raise RequestError(
                f"{where}: id {found.max()} is not in the vocabulary. Expected: 0 to {self.vocabulary - 1}"
            )
        return np.pad(found, ((0, 0), (0, self.length - found.shape[1])), constant_values=self.pad)
