"""Numbers as integers that can be masked and added up, and the way back from their sum.

A number x in [−R, R] becomes an integer in [0, L], L = 2^bits: (x + R)·L/2R, rounded up or down at random so that its
expectation is exact. The sum of K of them is below 2³² where K·L is. A number that needs a wide range and small steps
is one in [0, L²] instead, written with two digits in base L, which are added up apart. K clients.
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
    """A tensor's place in a vector. `range`: R; 0: whole numbers from 0 to L, sent as they are. `digits`: of each
    number, 1 or 2."""

    name: str
    shape: tuple[int, ...]
    range: float
    digits: int = 1

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def step(self, levels: int) -> float:
        """The distance between two neighbouring numbers that can be sent."""
        return 2 * self.range / float(levels**self.digits)


@dataclass(frozen=True)
class Form:
    """What the vectors of a sum hold, in this order, and at the end how many numbers were out of range."""

    slots: tuple[Slot, ...]
    bits: int

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
        """`draw`: where the rounding comes from."""
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
                raise RequestError(  # the server reads it, so the numbers are not in it
                    f"{slot.name} has numbers out of range. Expected: 0 to {self.levels} (run.flower.secure.bits)"
                )
            found += self._digits(value.astype(np.int64), slot.digits)
        found.append(np.array([min(clipped, self.levels)], dtype=np.uint32))
        return np.concatenate(found)

    def decode(self, total: Vector, clients: int) -> dict[str, Tensor]:
        """The sums of so many clients' numbers, in float64; refused where no clients could have given them."""
        if len(total) != self.size or bool((total > clients * self.levels).any()):
            raise RequestError(
                "the opened sum is not one of vectors that clients make: somebody has not kept to the protocol"
            )
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
        """The digits in base L, the first one first; L itself is a first digit."""
        if digits == 1:
            return [value.astype(np.uint32)]
        high = np.minimum(value // self.levels, self.levels)
        return [high.astype(np.uint32), (value - high * self.levels).astype(np.uint32)]


def on_the_wire(vector: Vector) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(vector).view(np.int32))


def off_the_wire(tensor: Tensor) -> Vector:
    return tensor.numpy().view(np.uint32)
