"""The kernel that makes network input from stored images, against the plain path."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from torso.data.augment import Augmentation, PixelLens
from torso.fast import kernels_run_here, plain_path

DEVICE = torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")


@pytest.mark.skipif(not kernels_run_here(), reason="no Triton with CUDA, nor TRITON_INTERPRET=1")
@pytest.mark.parametrize("change", [Augmentation(2, True), Augmentation(0, True), Augmentation(3), None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_bytes_same_input(change: Augmentation | None, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (5, 6, 7, 3), dtype=torch.uint8, generator=generator).to(DEVICE)
    index = torch.randint(0, 5, (2, 40), generator=generator).to(DEVICE)
    bits = torch.randint(0, 1 << 62, (2, 40), generator=generator).to(DEVICE)
    lens = replace(PixelLens.of((0.1, 0.2, 0.3), (0.5, 0.6, 0.7), DEVICE), dtype=dtype)
    seen = lens.look(images, index[:, 3:], change, bits[:, 3:])
    with plain_path():
        wanted = lens.look(images, index[:, 3:], change, bits[:, 3:])
    assert seen.dtype == dtype
    assert seen.stride() == wanted.stride()
    torch.testing.assert_close(seen, wanted)
