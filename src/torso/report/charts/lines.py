"""Lines with bands, named at their ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torso.report.charts.drawing import (
    BOLD,
    WIDTH,
    Area,
    Dots,
    Drawing,
    Line,
    Mark,
    Panel,
    Text,
    accuracy_span,
    shortened,
    span,
    spread,
    text_width,
)
from torso.report.charts.palette import series_dash, series_role

SIZE = 12.0
FAINT = 60  # points of a line behind others: it shows a course, no values


@dataclass(frozen=True)
class Series:
    """`low` and `high` make a band where they are given."""

    label: str
    place: int
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Look:
    """What the axes say; `percent` keeps the scale within 0 to 100."""

    across: str
    up: str
    percent: bool = True
    whole: bool = False
    bands: bool = True
    dots: bool = False
    height: float = 300.0


def draw_lines(series: Sequence[Series], look: Look) -> Drawing:
    drawing = Drawing(look.height)
    room = min(160.0, BOLD * max(text_width(s.label, SIZE) for s in series) + 14)
    panel = Panel(40, 30, WIDTH - room, look.height - 42, *_scales(series, look))
    drawing.add(*panel.up(look.up), *panel.across(look.across, whole=look.whole))
    if look.bands:
        drawing.add(*(_band(s, panel) for s in series if s.low))
    for s in series:
        points = [(panel.x(x), panel.y(y)) for x, y in zip(s.xs, s.ys, strict=True)]
        if len(points) > 1:
            drawing.add(Line(points, series_role(s.place), 2, series_dash(s.place)))
        if look.dots or len(points) == 1:
            told = [(x, y, f"{s.label}: {b:.4g} at {a:.4g}") for (x, y), a, b in zip(points, s.xs, s.ys, strict=True)]
            drawing.add(Dots(told, series_role(s.place), 3.2, 1))
    drawing.add(*_names(series, panel, room))
    return drawing


def _scales(series: Sequence[Series], look: Look) -> tuple[tuple[float, float], tuple[float, float]]:
    xs = [x for s in series for x in s.xs]
    ys = [y for s in series for y in (*s.ys, *(s.low if look.bands else ()), *(s.high if look.bands else ()))]
    across = (min(xs), max(xs)) if max(xs) > min(xs) else (min(xs) - 0.5, max(xs) + 0.5)
    return across, accuracy_span(ys) if look.percent else span(ys)


def _band(series: Series, panel: Panel) -> Area:
    there = [(panel.x(x), panel.y(y)) for x, y in zip(series.xs, series.high, strict=True)]
    back = [(panel.x(x), panel.y(y)) for x, y in zip(series.xs, series.low, strict=True)]
    return Area([*there, *reversed(back)], series_role(series.place))


def _names(series: Sequence[Series], panel: Panel, room: float) -> list[Mark]:
    """Beside the ends of the lines, moved apart; a hair ties a name that had to move far."""
    ends = [panel.y(s.ys[-1]) for s in series]
    marks: list[Mark] = []
    for s, end, at in zip(series, ends, spread(ends, SIZE + 2, panel.top, panel.bottom), strict=True):
        last = panel.x(s.xs[-1])
        if abs(at - end) > 3 or panel.right - last > 3:
            marks.append(Line([(last + 2, end), (panel.right + 7, at)], series_role(s.place), 0.75, (), 0.6))
        name = shortened(s.label, SIZE, room - 12)
        marks.append(Text(panel.right + 9, at + SIZE / 3, name, series_role(s.place), SIZE, bold=True))
    return marks


def draw_multiples(series: Sequence[Series], look: Look, columns: int = 2) -> Drawing:
    """One small panel a series with its band, the others faint behind it: who is where, without a tangle."""
    rows = -(-len(series) // columns)
    wide, high = (WIDTH - 8) / columns, 150.0
    drawing = Drawing(rows * high + 26)
    scales = _scales(series, look)
    for number, s in enumerate(series):
        left, top = number % columns * wide + 36, number // columns * high + 26
        panel = Panel(left, top, left + wide - 48, top + high - 48, *scales)
        last_row = number + columns >= len(series)
        drawing.add(*panel.up("", 3, size=11))
        drawing.add(*panel.across(look.across if last_row else "", 3, look.whole, size=11))
        for other in series:
            points = [(panel.x(x), panel.y(y)) for x, y in zip(other.xs, other.ys, strict=True)]
            if other is not s and len(points) > 1:
                drawing.add(Line(points[:: -(-len(points) // FAINT)], "faint", 1, (), 0.6))
        if s.low:
            drawing.add(_band(s, panel))
        points = [(panel.x(x), panel.y(y)) for x, y in zip(s.xs, s.ys, strict=True)]
        drawing.add(
            Line(points, series_role(s.place), 2, series_dash(s.place)) if len(points) > 1 else _single(points, s)
        )
        drawing.add(Text(left - 2, top - 9, shortened(s.label, SIZE, wide - 40), series_role(s.place), SIZE, bold=True))
    return drawing


def _single(points: Sequence[tuple[float, float]], series: Series) -> Dots:
    return Dots([(x, y, series.label) for x, y in points], series_role(series.place), 3, 1)
