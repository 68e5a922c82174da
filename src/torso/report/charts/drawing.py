"""A chart as a list of marks with roles instead of colours: the page, a PDF and a PNG draw the same list."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Point = tuple[float, float]
WIDTH = 480.0
BOLD = 1.32  # room for bold letters of whatever font the page finds, against Helvetica's

# Helvetica's advance widths of U+0020 to U+007E, in thousandths of the size
_ADVANCE = [
    *(278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278),
    *(556, 556, 556, 556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556),
    *(1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778),
    *(667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556),
    *(333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556),
    *(556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584),
]


def text_width(text: str, size: float) -> float:
    return sum(_ADVANCE[ord(c) - 32] if 32 <= ord(c) < 127 else 600 for c in text) * size / 1000


def shortened(text: str, size: float, room: float) -> str:
    """The text, or as much of it as fits, with an ellipsis; bold letters of a wide font are a third wider."""
    while BOLD * text_width(text, size) > room and len(text) > 2:
        text = text.rstrip("…")[:-1] + "…"
    return text


@dataclass(frozen=True)
class Line:
    points: Sequence[Point]
    role: str
    width: float = 1.75
    dash: tuple[float, ...] = ()
    opacity: float = 1.0


@dataclass(frozen=True)
class Area:
    points: Sequence[Point]
    role: str
    opacity: float = 0.16


@dataclass(frozen=True)
class Boxes:
    """Many rectangles of one role, (x, y, width, height)."""

    boxes: Sequence[tuple[float, float, float, float]]
    role: str


@dataclass(frozen=True)
class Cells:
    """Cells (column, row) of a grid in one role; the grid's corner and the size of a cell are given once."""

    cells: Sequence[tuple[int, int]]
    role: str
    left: float
    top: float
    width: float
    height: float

    @property
    def boxes(self) -> list[tuple[float, float, float, float]]:
        return [
            (self.left + x * self.width, self.top + y * self.height, self.width, self.height) for x, y in self.cells
        ]


@dataclass(frozen=True)
class Dots:
    """Dots of one role; what each stands for is told on hovering."""

    dots: Sequence[tuple[float, float, str]]
    role: str
    radius: float = 2.6
    opacity: float = 0.75


@dataclass(frozen=True)
class Text:
    x: float
    y: float
    text: str
    role: str = "muted"
    size: float = 12.0
    anchor: str = "start"  # start, middle, end
    bold: bool = False


@dataclass(frozen=True)
class Words:
    """Many short texts of one role, each in the middle of its place."""

    words: Sequence[tuple[float, float, str]]
    role: str
    size: float

    @property
    def texts(self) -> list[Text]:
        return [Text(x, y, word, self.role, self.size, "middle") for x, y, word in self.words]


Mark = Line | Area | Boxes | Cells | Dots | Text | Words


@dataclass(frozen=True)
class Drawing:
    height: float
    marks: list[Mark] = field(default_factory=list)
    width: float = WIDTH

    def add(self, *marks: Mark) -> None:
        self.marks.extend(marks)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from low to high."""
    if not high > low:
        return [low]
    rough = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def nice(value: float) -> str:
    """A number as an axis says it, with a true minus sign."""
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
    """From the smallest to the largest finite value, with some air."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    if high - low < least:
        low, high = low - max(least, abs(low) * 0.05) / 2, high + max(least, abs(high) * 0.05) / 2
    air = (high - low) * pad
    return low - air, high + air


def accuracy_span(values: Iterable[float]) -> tuple[float, float]:
    """The same for percentages: no room above 100 or below 0 but what the ink needs."""
    low, high = span(values, least=2.0)
    return max(low, -1.5), min(high, 101.5)


@dataclass(frozen=True)
class Panel:
    """A rectangle of the drawing with two linear scales."""

    left: float
    top: float
    right: float
    bottom: float
    xs: tuple[float, float]
    ys: tuple[float, float]

    def x(self, value: float) -> float:
        low, high = self.xs
        return self.left + (value - low) / (high - low) * (self.right - self.left)

    def y(self, value: float) -> float:
        low, high = self.ys
        return self.bottom - (value - low) / (high - low) * (self.bottom - self.top)

    def across(self, label: str, about: int = 5, whole: bool = False, size: float = 12.0) -> list[Mark]:
        """The horizontal axis: a base line, ticks in words below it, its name at the end."""
        marks: list[Mark] = [Line([(self.left, self.bottom), (self.right, self.bottom)], "faint", 1)]
        found = ticks(*self.xs, about=about)
        for value in [v for v in found if not whole or v == int(v)]:
            at = self.x(value)
            marks.append(Line([(at, self.bottom), (at, self.bottom + 4)], "faint", 1))
            marks.append(Text(at, self.bottom + 6 + size, nice(value), size=size, anchor="middle"))
        marks.append(Text(self.right, self.bottom + 22 + size, label, size=size, anchor="end"))
        return marks

    def up(self, label: str, about: int = 4, size: float = 12.0) -> list[Mark]:
        """The vertical axis: lines across, numbers at their left, its name on top, read without turning the head."""
        marks: list[Mark] = []
        for value in ticks(*self.ys, about=about):
            at = self.y(value)
            marks.append(Line([(self.left, at), (self.right, at)], "grid", 1))
            marks.append(Text(self.left - 7, at + size / 3, nice(value), size=size, anchor="end"))
        if label:
            marks.append(Text(self.left - 30, self.top - 12, label, size=size))
        return marks


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near the wanted ones, in their order, at least a gap apart where there is room."""
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
