"""Heat maps: a matrix as coloured cells, in nine steps of a colour ramp with a legend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from torso.report.charts.drawing import Boxes, Cells, Mark, Text, nice
from torso.report.charts.palette import LEVELS, level

Matrix = npt.NDArray[np.float64]
MOST = 40  # rows or columns of a square matrix that are drawn; of more, these many, evenly spaced


def matrix(value: Any, ndim: int = 2) -> Matrix | None:
    """The value from a file as an array with `ndim` dimensions; None if it is not one. Nulls become NaN."""
    try:
        found = np.array(value, dtype=np.float64)
    except (OverflowError, TypeError, ValueError):
        return None
    return found if found.ndim == ndim and found.size and np.isfinite(found).any() else None


def even_indices(count: int, most: int = MOST) -> npt.NDArray[np.int64]:
    """Indices from 0 to count − 1: all, or `most` of them, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


@dataclass(frozen=True)
class Ramp:
    """A colour ramp from low to high."""

    low: float
    high: float
    hue: str = "q"  # "q": sequential, one hue; "d": diverging, with a neutral middle

    @classmethod
    def from_least(cls, *values: Matrix) -> Ramp:
        """The ramp from the smallest to the largest value."""
        return cls(min(float(np.nanmin(v)) for v in values), max(float(np.nanmax(v)) for v in values))

    def legend(self, left: float, top: float, label: str) -> list[Mark]:
        """The legend: the nine steps, with the numbers at both ends."""
        marks: list[Mark] = [Text(left, top + 9, f"{label}  {nice(self.low)}", size=11)]
        at = left + 6.2 * len(f"{label}  {nice(self.low)}") + 6
        marks += [Boxes([(at + 11 * i, top, 11, 10)], f"{self.hue}{i}") for i in range(LEVELS)]
        return [*marks, Text(at + 11 * LEVELS + 6, top + 9, nice(self.high), size=11)]


@dataclass(frozen=True)
class Heat:
    """A heat map that fills its panel."""

    values: Matrix  # NaN: an empty cell
    ramp: Ramp
    blank: float = math.nan  # cells with this value are empty, too
    legend: str = ""  # what the numbers are; of panels with the same ramp, only one has it

    @property
    def shown(self) -> Matrix:
        """The values, with NaN in all empty cells."""
        return np.where(self.values == self.blank, math.nan, self.values)


def cells(heat: Heat, left: float, top: float, width: float, height: float) -> list[Mark]:
    """The heat map as marks in a rectangle of the page."""
    rows, columns = heat.values.shape
    w, h = width / columns, height / rows
    levels: dict[int, list[tuple[int, int]]] = {}
    for i, line in enumerate(heat.shown.tolist()):
        for j, value in enumerate(line):
            if not math.isnan(value):
                levels.setdefault(level(value, heat.ramp.low, heat.ramp.high), []).append((j, i))
    frame = Boxes([(left - 1, top - 1, width + 2, height + 2)], "grid")
    ground = Boxes([(left, top, width, height)], "ground")
    return [
        frame,
        ground,
        *(Cells(where, f"{heat.ramp.hue}{place}", left, top, w, h) for place, where in sorted(levels.items())),
    ]


def numbered(count: int, length: float, names: Sequence[Any] | None = None) -> tuple[tuple[float, str], ...]:
    """Labels (place, text) in the middle of rows or columns: every one, or every n-th if there is little room. Without
    names, labels are numbers from 0."""
    step = next((s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500) if count / s <= length / 22), 1000)
    return tuple((i + 0.5, str(names[i] if names is not None else i)) for i in range(0, count, step))
