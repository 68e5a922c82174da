"""`Plot`: panels with axes, marks and names, in the numbers of their scales.

For the page, `Plot.drawing` places them as marks. For papers, `figure.py` makes matplotlib axes of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from torso.report.charts.drawing import (
    WIDTH,
    Area,
    Dots,
    Drawing,
    Line,
    Mark,
    Point,
    Text,
    Words,
    fitted,
    nice,
    spread,
    text_room,
    ticks,
)
from torso.report.charts.heat import Heat, cells

SIZE = 12.0  # of letters, in units of the page
_COLUMN = 30.0  # width of a column of notes at the right: three bold digits and a gap


def room_for(names: Iterable[str], size: float = SIZE) -> float:
    """The width that a page reserves beside a panel for the longest of the names."""
    return min(160.0, max(text_room(name, size) for name in names) + 14)


@dataclass(frozen=True)
class Axis:
    """An axis: its label and its ticks."""

    label: str = ""
    about: int = 5  # approximate number of ticks
    whole: bool = False  # ticks are whole numbers
    size: float = SIZE
    named: tuple[tuple[float, str], ...] | None = None  # given ticks (place, text); None: round numbers


@dataclass(frozen=True)
class End:
    """The name of a series at the right of the panel, with the series' last point."""

    x: float
    y: float
    name: str
    role: str


@dataclass(frozen=True)
class Row:
    """A row of a panel: its name, and notes (text, role) for the columns at its right end."""

    name: str
    role: str
    notes: tuple[tuple[str, str], ...] = ()


Shown = Line | Area | Dots | Words | Heat


@dataclass(frozen=True)
class Panel:
    """A rectangle of the page with two linear scales. `marks` and `ends` are in the numbers of these scales."""

    left: float
    top: float
    right: float
    bottom: float
    xs: tuple[float, float]
    ys: tuple[float, float]
    across: Axis | None = None
    up: Axis | None = None
    marks: list[Shown] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    rows: tuple[Row, ...] = ()
    heads: tuple[str, ...] = ()  # headings of the columns of notes
    title: str = ""
    role: str = "ink"  # the title's

    def add(self, *marks: Shown) -> None:
        """Add marks; later ones are drawn over earlier ones."""
        self.marks.extend(marks)

    @property
    def heat(self) -> Heat | None:
        """The panel's heat map, if it has one."""
        return next((mark for mark in self.marks if isinstance(mark, Heat)), None)

    def x(self, value: float) -> float:
        """The place on the page of a value of the horizontal scale."""
        low, high = self.xs
        return self.left + (value - low) / (high - low) * (self.right - self.left)

    def y(self, value: float) -> float:
        """The place on the page of a value of the vertical scale."""
        low, high = self.ys
        return self.bottom - (value - low) / (high - low) * (self.bottom - self.top)

    def value_at(self, x: float, y: float) -> Point:
        """The values of both scales at a place of the page."""
        (left, right), (low, high) = self.xs, self.ys
        return (
            left + (x - self.left) / (self.right - self.left) * (right - left),
            low + (self.bottom - y) / (self.bottom - self.top) * (high - low),
        )

    def on_page(self) -> list[Mark]:
        """The whole panel as marks at places of the page."""
        marks = [*self._up(), *self._across()]
        for mark in self.marks:
            marks += self._placed(mark)
        marks += [*self._names(), *self._rows()]
        if self.title:
            said, size = fitted(self.title, SIZE, self.right - self.left + 8)
            marks.append(Text(self.left, self.top - 10, said, self.role, size, bold=self.role != "ink"))
        return marks

    def _placed(self, mark: Shown) -> list[Mark]:
        match mark:
            case Line() | Area():
                return [replace(mark, points=[(self.x(x), self.y(y)) for x, y in mark.points])]
            case Dots():
                return [replace(mark, dots=[(self.x(x), self.y(y), told) for x, y, told in mark.dots])]
            case Words():
                low = mark.size / 3  # from the middle of a letter to its baseline
                return [replace(mark, words=[(self.x(x), self.y(y) + low, word) for x, y, word in mark.words])]
            case Heat():
                return cells(mark, self.left, self.top, self.right - self.left, self.bottom - self.top)

    def _across(self) -> list[Mark]:
        """The horizontal axis: base line, ticks with numbers, label at its end; below it the legend of a heat map."""
        axis = self.across or Axis(named=())
        marks: list[Mark] = []
        at = self.bottom
        if axis.named is None:
            marks.append(Line([(self.left, at), (self.right, at)], "faint", 1))
            found = ticks(*self.xs, about=axis.about)
            for value in [v for v in found if not axis.whole or v == int(v)]:
                marks.append(Line([(self.x(value), at), (self.x(value), at + 4)], "faint", 1))
                marks.append(Text(self.x(value), at + 6 + axis.size, nice(value), size=axis.size, anchor="middle"))
        for value, text in axis.named or ():
            marks.append(Text(self.x(value), at + 6 + axis.size, text, size=axis.size, anchor="middle"))
        at += 14 if axis.named != () else 0
        if axis.label:
            size = SIZE if axis.named is not None else axis.size
            marks.append(
                Text(self.right, at + (6 if axis.named == () else 8) + size, axis.label, size=size, anchor="end")
            )
            at += 20
        if self.heat and self.heat.legend:
            marks += self.heat.ramp.legend(self.left, at + 12, self.heat.legend)
        return marks

    def _up(self) -> list[Mark]:
        """The vertical axis: grid lines, numbers at their left, and its label on top, written horizontally."""
        axis = self.up or Axis(named=())
        marks: list[Mark] = []
        for value in ticks(*self.ys, about=axis.about) if axis.named is None else ():
            marks.append(Line([(self.left, self.y(value)), (self.right, self.y(value))], "grid", 1))
            marks.append(Text(self.left - 7, self.y(value) + axis.size / 3, nice(value), size=axis.size, anchor="end"))
        for value, text in axis.named or ():
            said, size = fitted(text, axis.size, max(40.0, self.left - 10))
            marks.append(Text(self.left - 7, self.y(value) + axis.size / 3, said, size=size, anchor="end"))
        if axis.label:
            marks.append(Text(self.left - 30, self.top - 12, axis.label))
        return marks

    def _names(self) -> list[Mark]:
        """The names at the ends of the lines, moved apart. A thin line ties a name that had to move far."""
        places = [self.y(end.y) for end in self.ends]
        marks: list[Mark] = []
        for end, y, at in zip(self.ends, places, spread(places, SIZE + 2, self.top, self.bottom), strict=True):
            last = self.x(end.x)
            if abs(at - y) > 3 or self.right - last > 3:
                marks.append(Line([(last + 2, y), (self.right + 7, at)], end.role, 0.75, (), 0.6))
            name, size = fitted(end.name, SIZE, WIDTH - self.right - 12)
            marks.append(Text(self.right + 9, at + SIZE / 3, name, end.role, size, bold=True))
        return marks

    def _rows(self) -> list[Mark]:
        """The names of rows at the left edge of the page, and their notes in columns at its right edge."""
        marks: list[Mark] = []
        if self.heads:
            marks.append(Text(WIDTH, self.top - 10, " · ".join(self.heads), size=10.5, anchor="end"))
        for number, row in enumerate(self.rows):
            foot = self.y(number + 0.5) + 4
            name, size = fitted(row.name, SIZE, self.left - 10)
            marks.append(Text(0, foot, name, row.role, size, bold=True))
            for back, (text, role) in enumerate(reversed(row.notes)):
                bold = role not in ("ink", "muted")
                marks.append(Text(WIDTH - back * _COLUMN, foot, text, role, SIZE, anchor="end", bold=bold))
        return marks


@dataclass(frozen=True)
class Plot:
    """Panels on a page of this height. Panels with the same left edge form a column, with the same top a row."""

    height: float
    panels: list[Panel] = field(default_factory=list)
    up: str = ""  # label of the vertical axes of all panels, in a figure; on the page the chart's title says it

    def drawing(self) -> Drawing:
        """The plot as marks on the page."""
        return Drawing(self.height, [mark for panel in self.panels for mark in panel.on_page()])
