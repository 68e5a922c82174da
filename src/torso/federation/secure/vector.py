"""Encodes numbers as integers that can be masked and added up, and decodes their sum.

A number x in [-R, R] becomes an integer in [0, L], L = 2^bits: (x + R)·L/2R, rounded up or down at random so that the
expectation is exact. The sum over K clients does not wrap around if K·L < 2³². A number that needs a wide range and
small steps becomes an integer in [0, L²] instead. It is sent as two digits in base L, which are added up separately.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torso.errors import RequestError
from torso.federation.secure.crypto import Vector
from torso.nets import Tensors

CLIPPED = "clipped"  # how many numbers of a vector were beyond their range


@dataclass(frozen=True)
class Slot:
    """One tensor of a vector, and how its numbers are encoded."""

    name: str
    shape: tuple[int, ...]
    range: float  # R; 0: whole numbers from 0 to L, which are not scaled
    digits: int = 1  # per number, 1 or 2

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def step(self, levels: int) -> float:
        """The rounding step: the distance between two neighbouring numbers that can be sent."""
        return 2 * self.range / float(levels**self.digits)


@dataclass(frozen=True)
class VectorLayout:
    """The layout of a vector: its tensors in order. The last entry is the number of values that were clipped."""

    slots: tuple[Slot, ...]
    bits: int  # L = 2^bits

    @property
    def size(self) -> int:
        return sum(slot.size * slot.digits for slot in self._all)

    @property
    def levels(self) -> int:
        return 1 << self.bits

    @property
    def _all(self) -> Sequence[Slot]:
        return (*self.slots, Slot(CLIPPED, (), 0.0))

    def encode(self, values: Tensors, draw: np.random.Generator) -> Vector:
        """A client's vector. `draw`: the random numbers for the rounding."""
        found, clipped = [], 0
        for slot in self.slots:
            value = values[slot.name].detach().cpu().to(torch.float64).reshape(-1).numpy()
            if len(value) != slot.size:
                raise RequestError(f"{slot.name} has {len(value)} numbers. Expected: {slot.size}")
            if slot.range:
                clipped += int((np.abs(value) > slot.range).sum())
                scaled = (np.clip(value, -slot.range, slot.range) + slot.range) / slot.step(self.levels)
                value = np.minimum(np.floor(scaled + draw.random(len(scaled))), self.levels**slot.digits)
            elif len(value) and not (value.min() >= 0 and value.max() <= self.levels):
                raise RequestError(  # sent to the server, so it must not have the numbers
                    f"{slot.name} has numbers out of range. Expected: 0 to {self.levels} (run.flower.secure.bits)"
                )
            found += self._digits(value.astype(np.int64), slot.digits)
        found.append(np.array([min(clipped, self.levels)], dtype=np.uint32))
        return np.concatenate(found)

    def decode(self, total: Vector, clients: int) -> dict[str, Tensor]:
        """The sums over `clients` clients, in float64; RequestError if no vectors of clients could have this sum."""
        if len(total) != self.size or bool((total > clients * self.levels).any()):
            raise RequestError("the opened sum is not a sum of valid vectors: a client has not kept to the protocol")
        found: dict[str, Tensor] = {}
        place = 0
        for slot in self._all:
            whole = np.zeros(slot.size, dtype=np.int64)
            for _ in range(slot.digits):
                whole = whole * self.levels + total[place : place + slot.size].astype(np.int64)
                place += slot.size
            value = whole.astype(np.float64)
            if slot.range:
                value = value * slot.step(self.levels) - clients * slot.range
            found[slot.name] = torch.from_numpy(value).reshape(slot.shape)
        return found

    def _digits(self, value: np.ndarray[tuple[int], np.dtype[np.int64]], digits: int) -> list[Vector]:
        """The digits in base L, the most significant first. That one may be L itself, for the number L²."""
        if digits == 1:
            return [value.astype(np.uint32)]
        high = np.minimum(value // self.levels, self.levels)
        return [high.astype(np.uint32), (value - high * self.levels).astype(np.uint32)]


def to_int32(vector: Vector) -> Tensor:
    """A vector as an int32 tensor with the same bits."""
    return torch.from_numpy(np.ascontiguousarray(vector).view(np.int32))


def from_int32(tensor: Tensor) -> Vector:
    """The vector of an int32 tensor."""
    return tensor.numpy().view(np.uint32)
