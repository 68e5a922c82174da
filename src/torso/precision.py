"""How exactly an accelerator computes: `run.precision`.

fp32: every product in float32. tf32: the matrix units round the factors of a product to 10 bits, sums stay float32.
bf16: activations and products in bfloat16, while weights, BatchNorm's statistics, losses and SGD's state stay float32.
Layers compute in the dtype of their input, so bf16 is chosen where images become input (`Lens.dtype`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["fp32", "tf32", "bf16"]


def precision_of(asked: str, device: torch.device) -> Precision:
    """What `run.precision` comes to on a device: auto is tf32 on CUDA; on CPU everything is float32."""
    if device.type != "cuda" or asked == "fp32":
        return "fp32"
    return "bf16" if asked == "bf16" else "tf32"


def activation_type(precision: Precision) -> torch.dtype:
    """The dtype of a network's input."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


@contextmanager
def computing(precision: Precision) -> Iterator[None]:
    """Inside, float32 products are exact or rounded as asked; PyTorch's own switches, put back at the end."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
