"""A drawing: marks at positions on the page. Also helpers for axes: ticks, number formats, ranges.

A mark has a role instead of a colour (palette.py). Positions and sizes are in units of the page, which is WIDTH wide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Point = tuple[float, float]
WIDTH = 480.0
LETTER = 0.7  # a letter's width by its size: enough for bold type and for any font that the page may use


def text_room(text: str, size: float) -> float:
    """The width that a text needs."""
    return LETTER * size * len(text)


def shortened(text: str, size: float, room: float) -> str:
    """The text, cut with an ellipsis if it is wider than `room`."""
    fits = max(2, int(room / (LETTER * size)))
    return text if len(text) <= fits else text[: fits - 1] + "…"


SMALLEST = 8.0  # size of letters, for long names


def fitted(text: str, size: float, room: float) -> tuple[str, float]:
    """The text and the size of its letters so that it fits: smaller letters first, then an ellipsis."""
    small = min(size, max(SMALLEST, room / (LETTER * max(1, len(text)))))
    return shortened(text, small, room + 1e-6), small


@dataclass(frozen=True)
class Line:
    """A line through points."""

    points: Sequence[Point]
    role: str
    width: float = 1.75
    dash: tuple[float, ...] = ()
    opacity: float = 1.0
    label: str = ""  # the name of a series, for the legend of a figure


@dataclass(frozen=True)
class Area:
    """A filled polygon."""

    points: Sequence[Point]
    role: str
    opacity: float = 0.16


@dataclass(frozen=True)
class Boxes:
    """Rectangles (x, y, width, height) with the same role."""

    boxes: Sequence[tuple[float, float, float, float]]
    role: str


@dataclass(frozen=True)
class Cells:
    """Cells (column, row) of a grid with the same role. `left` and `top`: the grid's corner; `width` and `height`: of a
    cell."""

    cells: Sequence[tuple[int, int]]
    role: str
    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True)
class Dots:
    """Dots (x, y, text) with the same role. The page shows the text when the pointer is on a dot."""

    dots: Sequence[tuple[float, float, str]]
    role: str
    radius: float = 2.6
    opacity: float = 0.75
    label: str = ""


@dataclass(frozen=True)
class Text:
    """A text at a place."""

    x: float
    y: float
    text: str
    role: str = "muted"
    size: float = 12.0
    anchor: str = "start"  # start, middle, end
    bold: bool = False


@dataclass(frozen=True)
class Words:
    """Short texts (x, y, text) with the same role, each centred at its place.

    `halo`: each has a rim in the colour of the page, so that it can be read on top of other marks."""

    words: Sequence[tuple[float, float, str]]
    role: str
    size: float
    halo: bool = False


Mark = Line | Area | Boxes | Cells | Dots | Text | Words


@dataclass(frozen=True)
class Drawing:
    """Marks on a page of this size."""

    height: float
    marks: Sequence[Mark]
    width: float = WIDTH


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """About so many round numbers from low to high."""
    if not high > low:
        return [low]
    rough = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def nice(value: float) -> str:
    """A number as an axis shows it: short, with a true minus sign."""
    if value and abs(value) < 0.001:
        said = f"{value:.0e}"
    elif abs(value) >= 1e6:
        said = f"{value / 1e6:,.4g}M"
    elif abs(value) >= 10_000:
        said = f"{value / 1000:,.4g}k"
    else:
        said = f"{value:.4g}"
    return said.replace("-", "−")


def span(values: Iterable[float], least: float = 1e-9, pad: float = 0.06) -> tuple[float, float]:
    """A range from the smallest to the largest finite value: at least `least` wide, with a margin of `pad` of it."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    if high - low < least:
        low, high = low - max(least, abs(low) * 0.05) / 2, high + max(least, abs(high) * 0.05) / 2
    air = (high - low) * pad
    return low - air, high + air


def accuracy_span(values: Iterable[float]) -> tuple[float, float]:
    """A range for percentages: like `span`, but it ends just outside 0 and 100."""
    low, high = span(values, least=2.0)
    return max(low, -1.5), min(high, 101.5)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near the wanted ones, in the same order, at least `gap` apart if there is room."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = [0.0] * len(wanted)
    at = low - gap
    for i in order:
        at = max(at + gap, wanted[i])
        placed[i] = at
    at = high + gap
    for i in reversed(order):
        at = min(placed[i], at - gap)
        placed[i] = at
    return placed
