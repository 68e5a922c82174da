"""In which precision products of float32 numbers are taken. Only on accelerators is there a choice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["fp32", "tf32", "bf16"]


def precision_of(asked: str, device: torch.device) -> Precision:
    """What `run.precision` comes to on a device: auto is tf32 on CUDA; on CPU everything is float32."""
    if device.type != "cuda":
        return "fp32"
    return {"fp32": "fp32", "bf16": "bf16"}.get(asked, "tf32")  # type: ignore[return-value]


@contextmanager
def computing(precision: Precision, device: torch.device) -> Iterator[None]:
    """Inside, matrix products and convolutions of float32 tensors are taken so; bf16 is the business of the input."""
    if device.type != "cuda":
        yield
        return
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions
