"""Copies of numbers from the host to the device that do not block the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def on_device(device: torch.device, numbers: Sequence[float] | Sequence[Sequence[int]]) -> Tensor:
    """Copy numbers to the device without blocking the host."""
    made = torch.tensor(numbers)
    return _to(device, made) if device.type == "cuda" else made


_FEW_BYTES = 1 << 15  # up to this size the CUDA driver copies pageable memory at once and does not block


def _to(device: torch.device, made: Tensor) -> Tensor:
    if device.type == "cuda" and made.nbytes > _FEW_BYTES:
        made = made.pin_memory()
    return made.to(device, non_blocking=True)


def sent_to(device: torch.device, numbers: NDArray[Any]) -> Tensor:
    """Copy an array to the device without blocking the host."""
    return _to(device, torch.from_numpy(numbers))
