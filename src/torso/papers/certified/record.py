"""The record of a cell, and the comparison with a second run of it.

On the same code path (kind of processor, instructions, versions of PyTorch and NumPy) all bits have to be the same. On
another path sums are rounded in another way. Then the data have to be the same, the sketches of the models have to
agree to `NEAR`, and accuracies to `POINTS`."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from torso.data.fingerprint import Fingerprint
from torso.personal.state import State
from torso.results.checksums import data_checksum, model_checksum, tensors_of
from torso.results.result import Result

NEAR = 3e-4  # of the norm; on the code paths that were tried these cells differ by at most 1.1e-4
POINTS = 10.0  # one image of a small client may be many points of its accuracy
_PROJECTIONS = 3


@dataclass(frozen=True)
class Record:
    """What is kept of a run of a cell."""

    status: str
    data: str  # SHA-256
    model: str  # SHA-256
    sketch: tuple[float, ...]  # of the models at the end
    accuracy: Mapping[str, float]  # measure → mean

    @classmethod
    def of(cls, result: Result) -> Record:
        assert result.state is not None
        assert result.federation is not None
        accuracy = {name: round(found.mean, 4) for name, found in sorted(result.accuracy.items())}
        data = data_checksum(Fingerprint.of(result.federation))
        return cls(result.status, data, model_checksum(result.state), sketch(result.state), accuracy)

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Record:
        return cls(**{**tree, "sketch": tuple(tree["sketch"])})

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "sketch": list(self.sketch)}


def sketch(state: State) -> tuple[float, ...]:
    """Four numbers that change little if the models change little: the norm of all tensors, and their projections on
    three random directions over the norm. Rounding does not show in them, another rule does."""
    squares, sums = 0.0, np.zeros(_PROJECTIONS)
    for name, tensor in tensors_of(state):
        values = tensor.detach().double().cpu().numpy().reshape(-1)
        signs = np.random.default_rng(zlib.crc32(name.encode())).integers(0, 2, (_PROJECTIONS, len(values))) * 2 - 1
        squares += float(values @ values)
        sums += signs @ values
    norm = math.sqrt(squares)
    return tuple(float(f"{value:.9g}") for value in (norm, *(sums / max(norm, 1e-12))))


def differences(before: Record, now: Record, *, exact: bool) -> list[str]:
    """How a second run differs, in words. `exact`: both ran on the same code path."""
    if before.data != now.data:
        return ["the data differ"]
    if before.status != now.status:
        return [f"it ended with {now.status!r}, not {before.status!r}"]
    if exact:
        bits = [] if before.model == now.model else ["the models differ in bits"]
        return [*bits, *_moved(before, now, 0.0)]
    apart = _apart(before.sketch, now.sketch)
    far = [] if apart <= NEAR else [f"the models are {apart:.1e} apart, beyond rounding"]
    return [*far, *_moved(before, now, POINTS)]


def _apart(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """The largest difference of two sketches."""
    norm = abs(one[0] - other[0]) / max(one[0], 1e-12)
    return max(norm, *(abs(a - b) for a, b in zip(one[1:], other[1:], strict=True)))


def _moved(before: Record, now: Record, by: float) -> list[str]:
    """The accuracies that differ by more than `by` points, in words."""
    if before.accuracy.keys() != now.accuracy.keys():
        return [f"measured: {', '.join(now.accuracy)}, not {', '.join(before.accuracy)}"]
    pairs = {name: (value, now.accuracy[name]) for name, value in before.accuracy.items()}
    return [f"{name}: {was} → {is_}" for name, (was, is_) in pairs.items() if abs(was - is_) > by]
