"""Drawings as SVG. Marks have CSS classes, and the theme of the page gives the colours."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from torso.report.charts.drawing import Area, Boxes, Cells, Dots, Drawing, Line, Mark, Point, Text, Words
from torso.report.charts.palette import DARK, LIGHT, Palette

_WIDE = 960  # pixels of a picture in a browser
_FONT = "font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',Arial,sans-serif"


def to_svg(drawing: Drawing, label: str = "") -> str:
    """The drawing as SVG. `label`: its text for screen readers."""
    size = f"{_n(drawing.width)} {_n(drawing.height)}"
    said = f' role="img" aria-label="{escape(label)}"' if label else ""
    marks = "".join(_mark(mark) for mark in drawing.marks)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}"{said}>{marks}</svg>'


def standing_alone(svg: str, width: float, height: float) -> str:
    """The SVG as a file with its own colours: light or dark, as the reader's system is set."""
    dark = f"@media(prefers-color-scheme:dark){{{_colours(DARK)}}}"
    style = f"<style>text{{{_FONT}}}{_colours(LIGHT)}{dark}</style>"
    ground = '<rect width="100%" height="100%" class="f-ground"/>'
    begin, _, rest = svg.partition(">")
    size = f'width="{_WIDE}" height="{_WIDE * height / width:.0f}"'
    return f"{begin} {size}>{style}{ground}{rest}\n"


def _colours(palette: Palette) -> str:
    return "".join(f".f-{role}{{fill:{c}}}.s-{role}{{stroke:{c};fill:none}}" for role, c in palette.items())


def _paint(kind: str, role: str) -> str:
    """The class attribute of a role. `kind`: fill or stroke."""
    return f'class="{kind[0]}-{role}"'


def _mark(mark: Mark) -> str:  # noqa: PLR0911  one case for each kind of mark
    match mark:
        case Line(points, role, width, dash, opacity, _):
            dashes = f' stroke-dasharray="{" ".join(map(_n, dash))}"' if dash else ""
            path, faded = _path(points), _faded(opacity)
            return f'<path d="{path}" {_paint("stroke", role)} stroke-width="{_n(width)}"{dashes}{faded}/>'
        case Area(points, role, opacity):
            return f'<path d="{_path(points)}z" {_paint("fill", role)}{_faded(opacity)}/>'
        case Boxes(boxes, role):
            path = "".join(f"M{_n(x)} {_n(y)}h{_n(w)}v{_n(h)}h{_n(-w)}z" for x, y, w, h in boxes)
            return f'<path d="{path}" {_paint("fill", role)} shape-rendering="crispEdges"/>'
        case Cells(where, role, left, top, width, height):
            path = "".join(f"M{x} {y}h1" for x, y in where)  # a cell is a stroke as wide as the cell
            place = f"translate({_n(left)} {_n(top + height / 2)}) scale({width:.4f} {height:.4f})"
            return f'<path d="{path}" transform="{place}" {_paint("stroke", role)} shape-rendering="crispEdges"/>'
        case Dots(dots, role, radius, opacity, _):
            r = _n(radius)
            each = "".join(_dot(x, y, r, title) for x, y, title in dots)
            return f"<g {_paint('fill', role)}{_faded(opacity)}>{each}</g>"
        case Words(words, role, size, halo):
            each = "".join(f'<text x="{x:.1f}" y="{y:.1f}">{escape(word)}</text>' for x, y, word in words)
            rim = ' stroke-width="2.5" stroke-linejoin="round" paint-order="stroke"' if halo else ""
            paint = f'class="f-{role} s-ground"' if halo else _paint("fill", role)
            return f'<g {paint} font-size="{_n(size)}" text-anchor="middle"{rim}>{each}</g>'
        case Text():
            return _text(mark)


def _text(mark: Text) -> str:
    anchor = "" if mark.anchor == "start" else f' text-anchor="{mark.anchor}"'
    bold = ' font-weight="600"' if mark.bold else ""
    where = f'x="{_n(mark.x)}" y="{_n(mark.y)}" font-size="{_n(mark.size)}"'
    return f"<text {where}{anchor}{bold} {_paint('fill', mark.role)}>{escape(mark.text)}</text>"


def _dot(x: float, y: float, radius: str, title: str) -> str:
    said = f"<title>{escape(title)}</title>" if title else ""
    return f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{radius}"' + (f">{said}</circle>" if said else "/>")


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)


def _faded(opacity: float) -> str:
    return "" if opacity == 1 else f' opacity="{_n(opacity)}"'


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"
