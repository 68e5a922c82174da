"""The kinds of input: `Pixels`, `Floats` (arrays of numbers) and `Tokens` (sequences). What depends on the kind of a
sample is a method of these classes.

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
"""The kinds that a file can store; their field `kind` tells them apart."""


def known(found: Input) -> Known:
    """The same kind of input with the type `Known`; Torso makes no others."""
    assert isinstance(found, Known)
    return found


def as_input(found: Input | tuple[int, int, int]) -> Input:
    """The kind itself, or for (channels, height, width) the kind of images without given mean and std."""
    return found if isinstance(found, Input) else Pixels(*found)
