"""The switch between fused kernels and plain PyTorch.

The fast path needs CUDA, Triton, and float32 or bfloat16. Everything else (CPU, float64, second derivatives) takes the
plain path. The plain path defines the result; the kernels are tested against it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec

import torch
from torch import Tensor

from torso.caches import keep_compiled

_has_triton = find_spec("triton") is not None
_interpreted = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's own switch: kernels run slowly, on CPU too
_plain: ContextVar[bool] = ContextVar("plain path", default=False)
if _has_triton:
    keep_compiled()


@contextmanager
def plain_path() -> Iterator[None]:
    """Use no fused kernel inside this context: for second derivatives (create_graph), or to compare with a kernel."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


def kernels_run_here() -> bool:
    """Whether this machine can run the kernels at all."""
    return _has_triton and (_interpreted or torch.cuda.is_available())


def is_fast(x: Tensor) -> bool:
    """Whether a computation that starts from x may use the fused kernels."""
    right_device = x.is_cuda or (_interpreted and x.device.type == "cpu")
    return _has_triton and right_device and x.dtype in (torch.float32, torch.bfloat16) and not _plain.get()


EXACT = "ieee"  # Triton's input_precision for exact float32 products; tf32x3 is tried by bench/looking.py alone


def dot_precision(x: Tensor) -> str:
    """Triton's `input_precision` for matrix products of x. For float32, torch's own switch decides."""
    if x.dtype != torch.float32:
        return "tf32"  # no effect on 16-bit types
    return EXACT if torch.get_float32_matmul_precision() == "highest" else "tf32"
