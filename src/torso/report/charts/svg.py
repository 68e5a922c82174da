"""Marks as SVG: with classes for the page, whose theme colours them, or with colours for a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from torso.report.charts.drawing import Area, Boxes, Cells, Dots, Drawing, Line, Mark, Point, Text, Words
from torso.report.charts.palette import LIGHT, Palette

FONTS = "Helvetica, Arial, 'Liberation Sans', sans-serif"
Paint = Callable[[str, str], str]  # ("fill" or "stroke", role) → attribute


def to_svg(drawing: Drawing, label: str = "", palette: Palette | None = None) -> str:
    """`palette` None: classes, and no fonts of its own; `label` is what a screen reader says."""
    paint = _classes if palette is None else _colours(palette)
    size = f"{_n(drawing.width)} {_n(drawing.height)}"
    own = "" if palette is None else f' width="{_n(drawing.width)}" height="{_n(drawing.height)}" font-family="{FONTS}"'
    said = f' role="img" aria-label="{escape(label)}"' if label else ""
    marks = "".join(_mark(mark, paint) for mark in drawing.marks)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}"{own}{said}>{marks}</svg>'


def to_svg_file(drawing: Drawing) -> bytes:
    return ('<?xml version="1.0" encoding="UTF-8"?>\n' + to_svg(drawing, palette=LIGHT) + "\n").encode()


def _classes(kind: str, role: str) -> str:
    return f'class="{kind[0]}-{role}"'


def _colours(palette: Palette) -> Paint:
    def paint(kind: str, role: str) -> str:
        return f'{kind}="{palette[role]}"' + (' fill="none"' if kind == "stroke" else "")

    return paint


def _mark(mark: Mark, paint: Paint) -> str:  # noqa: PLR0911  one for every kind of mark
    match mark:
        case Line(points, role, width, dash, opacity):
            dashes = f' stroke-dasharray="{" ".join(map(_n, dash))}"' if dash else ""
            path, faded = _path(points), _faded(opacity)
            return f'<path d="{path}" {paint("stroke", role)} stroke-width="{_n(width)}"{dashes}{faded}/>'
        case Area(points, role, opacity):
            return f'<path d="{_path(points)}z" {paint("fill", role)}{_faded(opacity)}/>'
        case Boxes(boxes, role):
            path = "".join(f"M{_n(x)} {_n(y)}h{_n(w)}v{_n(h)}h{_n(-w)}z" for x, y, w, h in boxes)
            return f'<path d="{path}" {paint("fill", role)} shape-rendering="crispEdges"/>'
        case Cells(where, role, left, top, width, height):
            path = "".join(f"M{x} {y}h1" for x, y in where)  # a cell is a stroke as wide as itself
            place = f"translate({_n(left)} {_n(top + height / 2)}) scale({width:.4f} {height:.4f})"
            return f'<path d="{path}" transform="{place}" {paint("stroke", role)} shape-rendering="crispEdges"/>'
        case Dots(dots, role, radius, opacity):
            r = _n(radius)
            each = "".join(_dot(x, y, r, title) for x, y, title in dots)
            return f"<g {paint('fill', role)}{_faded(opacity)}>{each}</g>"
        case Words(words, role, size):
            each = "".join(f'<text x="{x:.1f}" y="{y:.1f}">{escape(word)}</text>' for x, y, word in words)
            return f'<g {paint("fill", role)} font-size="{_n(size)}" text-anchor="middle">{each}</g>'
        case Text():
            return _text(mark, paint)


def _text(mark: Text, paint: Paint) -> str:
    anchor = "" if mark.anchor == "start" else f' text-anchor="{mark.anchor}"'
    bold = ' font-weight="600"' if mark.bold else ""
    where = f'x="{_n(mark.x)}" y="{_n(mark.y)}" font-size="{_n(mark.size)}"'
    return f"<text {where}{anchor}{bold} {paint('fill', mark.role)}>{escape(mark.text)}</text>"


def _dot(x: float, y: float, radius: str, title: str) -> str:
    said = f"<title>{escape(title)}</title>" if title else ""
    return f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{radius}"' + (f">{said}</circle>" if said else "/>")


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)


def _faded(opacity: float) -> str:
    return "" if opacity == 1 else f' opacity="{_n(opacity)}"'


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"
