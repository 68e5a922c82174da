"""Line charts: series with bands, each named at the end of its line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torso.report.charts.drawing import WIDTH, Area, Dots, Line, accuracy_span, span
from torso.report.charts.palette import series_dash, series_role
from torso.report.charts.panels import Axis, End, Panel, Plot, room_for

FAINT = 60  # points of a faint line in the background, which only shows a trend


@dataclass(frozen=True)
class Series:
    """One line of a chart. `low` and `high`, if given, are the edges of a band around it."""

    label: str
    place: int  # of the method among all; it chooses colour and dashes
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class LineOptions:
    """Labels and options of a line chart."""

    across: str  # label of the horizontal axis
    up: str  # label of the vertical axis
    percent: bool = True  # the vertical scale stays within 0 and 100
    whole: bool = False  # ticks of the horizontal axis are whole numbers
    bands: bool = True  # draw bands
    dots: bool = False  # draw a dot at each point
    height: float = 300.0
    from_zero: bool = False  # the horizontal scale begins at 0


def draw_lines(series: Sequence[Series], look: LineOptions) -> Plot:
    """All series in one panel."""
    panel = Panel(
        *(40, 30, WIDTH - room_for(s.label for s in series), look.height - 42, *_scales(series, look)),
        across=Axis(look.across, whole=look.whole),
        up=Axis(look.up, 4),
        ends=[End(s.xs[-1], s.ys[-1], s.label, series_role(s.place)) for s in series],
    )
    if look.bands:
        panel.add(*(_band(s) for s in series if s.low))
    for s in series:
        if len(s.xs) > 1:
            panel.add(_line(s))
        if look.dots or len(s.xs) == 1:
            panel.add(_dots(s))
    return Plot(look.height, [panel])


def _scales(series: Sequence[Series], look: LineOptions) -> tuple[tuple[float, float], tuple[float, float]]:
    """The ranges of both axes that hold all series."""
    xs = [x for s in series for x in s.xs]
    ys: list[float] = []
    for s in series:
        ys += s.ys
        if look.bands:
            ys += [*s.low, *s.high]
    if look.from_zero:
        xs.append(0.0)
    across = (min(xs), max(xs)) if max(xs) > min(xs) else (min(xs) - 0.5, max(xs) + 0.5)
    return across, accuracy_span(ys) if look.percent else span(ys)


def _points(series: Series) -> list[tuple[float, float]]:
    return list(zip(series.xs, series.ys, strict=True))


def _line(series: Series) -> Line:
    return Line(_points(series), series_role(series.place), 2, series_dash(series.place), label=series.label)


def _dots(series: Series) -> Dots:
    told = [(x, y, f"{series.label}: {y:.4g} at {x:.4g}") for x, y in _points(series)]
    return Dots(told, series_role(series.place), 3.2, 1, series.label if len(told) == 1 else "")


def _band(series: Series) -> Area:
    there, back = zip(series.xs, series.high, strict=True), zip(series.xs, series.low, strict=True)
    return Area([*there, *reversed(list(back))], series_role(series.place))


def draw_multiples(series: Sequence[Series], look: LineOptions, columns: int = 2) -> Plot:
    """A small panel for each series with its band; the other series are faint lines behind it."""
    rows = -(-len(series) // columns)
    wide, high = (WIDTH - 8) / columns, 150.0
    scales = _scales(series, look)
    plot = Plot(rows * high + 26, up=look.up)
    for number, s in enumerate(series):
        left, top = number % columns * wide + 36, number // columns * high + 26
        last_row = number + columns >= len(series)
        panel = Panel(
            *(left, top, left + wide - 48, top + high - 48, *scales),
            across=Axis(look.across if last_row else "", 3, look.whole, size=11),
            up=Axis("", 3, size=11),
            title=s.label,
            role=series_role(s.place),
        )
        for other in (o for o in series if o is not s and len(o.xs) > 1):
            points = _points(other)
            panel.add(Line(points[:: -(-len(points) // FAINT)], "faint", 1, (), 0.6))
        if s.low:
            panel.add(_band(s))
        panel.add(_line(s) if len(s.xs) > 1 else _dots(s))
        plot.panels.append(panel)
    return plot
