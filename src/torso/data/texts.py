"""`Texts`: raw texts. A data set has them only until fit.py turns them into Tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from torch import Tensor

from torso.data.augment import Lens
from torso.data.input_base import CPU, Array, Input, refuse_none
from torso.errors import RequestError


@dataclass(frozen=True)
class Texts(Input):
    """Raw texts, str [n] in an array of objects. No network takes them."""

    many: ClassVar[str] = "texts"
    noun: ClassVar[str] = "texts"
    stored: ClassVar[torch.dtype] = torch.int32
    given: ClassVar[torch.dtype] = torch.int64

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    @property
    def words(self) -> str:
        return "texts"

    size = words

    @property
    def preparation(self) -> str:
        return "texts"

    def lens(self, device: torch.device) -> Lens:
        _not_yet()

    def example(self, samples: int, device: torch.device = CPU) -> Tensor:
        _not_yet()

    def accept(self, where: str, samples: Any) -> Array:
        """Texts of unknown origin as an array of objects; an empty text is refused."""
        texts = np.empty(len(samples), dtype=object)
        for row, text in enumerate(samples):
            if not isinstance(text, str):
                raise RequestError(f"{where}: text {row + 1} is {type(text).__name__}. Expected: a text")
            if not text.strip():
                raise RequestError(f"{where}: text {row + 1} is empty. Expected: at least one word")
            texts[row] = text
        refuse_none(where, "texts", texts)
        return texts


def _not_yet() -> NoReturn:
    raise RequestError("texts must be turned into token ids first (torso.data.fit.fitted)")
