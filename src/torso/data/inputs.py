"""What a sample is: pixels, an array of numbers, or a sequence of tokens. Whatever depends on the kind is asked here.

n samples, G clients, B samples of a batch; images of H × W pixels with C channels, F features, L tokens.

| kind     | stored               | a network takes (per batch) |
|----------|----------------------|-----------------------------|
| `Pixels` | uint8 [n, H, W, C]   | float [G, B, C, H, W]       |
| `Floats` | float32 [n, F, …]    | float [G, B, F, …]          |
| `Tokens` | int32 [n, L]         | int64 [G, B, L]             |
"""

from __future__ import annotations

from torso.data.floats import Floats, Moments
from torso.data.input_base import Array, Input, axes, check_constants, is_missing
from torso.data.pixels import Pixels
from torso.data.tokens import Tokens

__all__ = [
    "Array",
    "Floats",
    "Input",
    "Known",
    "Moments",
    "Pixels",
    "Tokens",
    "as_input",
    "axes",
    "check_constants",
    "is_missing",
    "known",
]

Known = Pixels | Floats | Tokens
"""The kinds that exist, as a file names them by `kind`."""


def known(found: Input) -> Known:
    """A kind of input that a file can name; others come from nowhere in Torso."""
    assert isinstance(found, Known)
    return found


def as_input(found: Input | tuple[int, int, int]) -> Input:
    """A kind of input as it is; (channels, height, width) stands for images whose constants do not matter."""
    return found if isinstance(found, Input) else Pixels(*found)
