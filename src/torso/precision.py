"""The precision of training on an accelerator (`run.precision`): fp32, tf32 or bf16.

fp32: every product in float32. tf32: the matrix units round the factors of a product to 10 bits, sums stay float32.
bf16: activations and products in bfloat16, while weights, BatchNorm's statistics, losses and SGD's state stay float32.
Layers compute in the dtype of their input, so bf16 is switched on by the dtype of the network's input (`Lens.dtype`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["fp32", "tf32", "bf16"]


def precision_of(asked: str, device: torch.device) -> Precision:
    """The precision that `run.precision` means on a device: auto is tf32 on CUDA; on CPU everything is float32."""
    if device.type != "cuda" or asked == "fp32":
        return "fp32"
    return "bf16" if asked == "bf16" else "tf32"


def activation_type(precision: Precision) -> torch.dtype:
    """The dtype of a network's input."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


@contextmanager
def computing(precision: Precision) -> Iterator[None]:
    """Compute float32 products at this precision inside the context. It sets PyTorch's switches and restores them."""
    matmul_before = torch.get_float32_matmul_precision()
    cudnn_before = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul_before)
        torch.backends.cudnn.allow_tf32 = cudnn_before
