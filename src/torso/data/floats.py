"""`Floats`: arrays of numbers, float32 [n, F, …] with F features; `Moments`: the sums that their mean and std need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torso.data.augment import FloatLens, Lens
from torso.data.input_base import (
    CPU,
    Array,
    Input,
    as_array,
    axes,
    check_constants,
    is_missing,
    plural,
    refuse_none,
    seeded_generator,
)
from torso.errors import RequestError
from torso.kinds import Count, FailFastTuple


@dataclass(frozen=True)
class Floats(Input):
    """Arrays of numbers: rows of a table [F], signals [channels, time], or any other shape.

    `mean` and `std` are per feature, that is per entry of the first dimension of a sample: a column of a table, a
    channel of a signal. Empty: not known yet. `names`: of the features, if the source knows them."""

    sizes: FailFastTuple[Count]
    mean: FailFastTuple[float] = ()
    std: FailFastTuple[float] = ()
    names: FailFastTuple[str] = ()
    kind: Literal["floats"] = "floats"

    many: ClassVar[str] = "arrays of numbers"
    stored: ClassVar[torch.dtype] = torch.float32
    given: ClassVar[torch.dtype] = torch.float32

    @staticmethod
    def array(where: str, samples: Any) -> Array:
        """Numbers of unknown origin and any shape, checked, as float32 [n, *]; [n] becomes [n, 1]."""
        samples = as_array(samples)
        if samples.dtype.kind not in "fiub" or samples.ndim == 0 or 0 in samples.shape[1:]:
            raise RequestError(
                f"{where}: samples are {samples.dtype} {list(samples.shape)}. "
                "Expected: numbers, shape [n, features] or [n, channels, …]"
            )
        refuse_none(where, "samples", samples)
        with np.errstate(over="ignore"):
            numbers = np.ascontiguousarray(samples if samples.ndim > 1 else samples[:, None], dtype=np.float32)
        wrong = np.flatnonzero(~np.isfinite(numbers).reshape(len(numbers), -1).all(axis=1))
        if len(wrong):
            raise RequestError(
                f"{where}: {plural(len(wrong), 'sample')} hold{'s' if len(wrong) == 1 else ''} NaN or infinite "
                f"numbers, the first is sample {wrong[0]}. Expected: finite float32 numbers; fill what is missing"
            )
        return numbers

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sizes

    @property
    def words(self) -> str:
        if len(self.sizes) == 1:
            return f"rows of {plural(self.sizes[0], 'number')}"
        return f"arrays of {'×'.join(map(str, self.sizes))} numbers"

    size = words

    @property
    def preparation(self) -> str:
        return (
            f"float32 {axes(self.sizes)}, made as\n(x - mean) / std, per feature, "
            f"with mean {list(self.mean)} and std {list(self.std)}"
        )

    def lens(self, device: torch.device) -> Lens:
        if not self.mean:
            return Lens()
        return FloatLens.of(self.mean, self.std, len(self.sizes), device)

    def example(self, samples: int, device: torch.device = CPU) -> Tensor:
        if device.type == "meta":
            return torch.empty(samples, *self.sizes, device=device)
        return torch.randn(samples, *self.sizes, generator=seeded_generator()).to(device)

    def accept(self, where: str, samples: Any) -> Array:
        """Samples as float32 [n, *]. If the features have names, rows may be mappings from columns to cells."""
        if self.names and isinstance(samples, Sequence) and samples and isinstance(samples[0], Mapping):
            samples = [
                [self._feature(f"{where} {place}", row, n) for n in range(len(self.names))]
                for place, row in enumerate(samples)
            ]
        found = self.array(where, samples)
        if found.shape[1:] != self.sizes:
            raise RequestError(
                f"{where}: samples are {list(found.shape)}. Expected: {axes(self.sizes)}, "
                "as those that the model was trained on"
            )
        return found

    def _feature(self, where: str, row: Mapping[str, Any], number: int) -> float:
        """One feature of a table's row: the number in a column, or 0 or 1 for a column's category (`city=Rome`)."""
        name = self.names[number]
        if name in row:
            column, category = name, ""
        else:
            column, _, category = name.partition("=")
        if column not in row:
            raise RequestError(
                f"{where} has no {column!r}. Expected: the columns of the table, for {', '.join(self.names)}"
            )
        cell = "" if row[column] is None else str(row[column]).strip()
        if column != name:
            return float(category == ("" if is_missing(cell) else cell))
        try:
            return self.mean[number] if is_missing(cell) and self.mean else float(cell)
        except ValueError:
            raise RequestError(f"{where}: {name} = {cell!r} is no number. Expected: one, or nothing") from None

    def check_constants(self) -> None:
        check_constants(self.mean, self.std, self.sizes[0], self.words, "feature")

    def fitted(self, clients: Iterable[Array]) -> Floats:
        """The kind with mean and std of the clients' samples, unless the source has given them."""
        if self.mean:
            return self
        mean, std = Moments.over(clients).mean_and_std()
        return replace(self, mean=mean, std=std)


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, sum and sum of squares of each feature. A client sends them, so that all clients standardise by the same
    mean and std. Added client by client, in the order of the clients, they are the moments of all samples."""

    count: int
    total: NDArray[np.float64]  # [F]
    squares: NDArray[np.float64]  # [F]

    @classmethod
    def of(cls, samples: Array) -> Moments:
        """The moments of one client's samples [n, F, …]."""
        numbers = samples.astype(np.float64)
        all_but_features = (0, *range(2, numbers.ndim))
        total = numbers.sum(axis=all_but_features)
        squares = np.square(numbers).sum(axis=all_but_features)
        return cls(numbers.size // numbers.shape[1], total, squares)

    @classmethod
    def over(cls, clients: Iterable[Array]) -> Moments:
        """The moments of the samples of several clients."""
        return reduce(cls.__add__, map(cls.of, clients))

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def mean_and_std(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and std of each feature. A feature that is constant to the precision of float32 has std 1."""
        mean = self.total / self.count
        std = np.sqrt((self.squares / self.count - np.square(mean)).clip(min=0))
        varies = std > np.finfo(np.float32).eps * np.abs(mean)
        return tuple(mean.tolist()), tuple(np.where(varies, std, 1.0).tolist())
