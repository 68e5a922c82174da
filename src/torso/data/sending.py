"""Numbers of the host on the device, without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def on_device(device: torch.device, numbers: Sequence[float] | Sequence[Sequence[int]]) -> Tensor:
    """Numbers of the host on the device, without waiting for it."""
    made = torch.tensor(numbers)
    return _to(device, made) if device.type == "cuda" else made


_FEW_BYTES = 1 << 15  # up to these the driver takes a copy of what is sent, and nobody waits


def _to(device: torch.device, made: Tensor) -> Tensor:
    if device.type == "cuda" and made.nbytes > _FEW_BYTES:
        made = made.pin_memory()
    return made.to(device, non_blocking=True)


def sent_to(device: torch.device, numbers: NDArray[Any]) -> Tensor:
    """An array of the host on the device, without waiting for it."""
    return _to(device, torch.from_numpy(numbers))
