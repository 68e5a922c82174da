"""`Encoded`: the kind of input for features that a frozen encoder has computed from other samples.

n samples, d features.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from torso.data.images import Ints
from torso.data.input_base import Array
from torso.data.inputs import Floats, Known


@dataclass(frozen=True)
class Encoded(Floats):
    """Features [d] that an encoder has computed from samples of another kind; standardised like other numbers."""

    raw: Known | None = None  # the kind of the original samples
    encoder: str = ""  # name of the encoder
    weights: str = ""  # value of `model.encoder_weights`, with "auto" replaced by its meaning
    digest: str = ""  # checksum of the encoder's tensors

    @property
    def words(self) -> str:
        return f"{super().words} (features by model.encoder = {self.encoder!r})"

    @property
    def identity(self) -> str:
        return f"features by {self.encoder} with weights {self.digest[:12]}"


def origins_of(samples: Array) -> Ints:
    """A checksum of each sample [n]."""
    rows = np.ascontiguousarray(samples).reshape(len(samples), -1).view(np.uint8)
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows]
    return np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)
