"""Marks as pixels, for slides and mail: drawn large with Pillow and scaled down."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise

from PIL import Image, ImageDraw, ImageFont

from torso.report.charts.drawing import Area, Boxes, Cells, Dots, Drawing, Line, Mark, Point, Text, Words
from torso.report.charts.palette import LIGHT

SCALE = 3  # pixels of the file per unit of the drawing
_FINE = 2  # drawn this much larger, for smooth edges


def to_png(drawing: Drawing) -> bytes:
    zoom = SCALE * _FINE
    image = Image.new("RGB", (round(drawing.width * zoom), round(drawing.height * zoom)), LIGHT["ground"])
    for mark in drawing.marks:
        opacity = getattr(mark, "opacity", 1.0)
        if opacity == 1:
            _draw(ImageDraw.Draw(image), mark, zoom)
            continue
        mask = Image.new("L", image.size, 0)
        _draw(ImageDraw.Draw(mask), mark, zoom, ink=round(255 * opacity))
        image.paste(LIGHT[mark.role], mask=mask)
    out = BytesIO()
    image.resize((image.width // _FINE, image.height // _FINE), Image.Resampling.LANCZOS).save(
        out, "PNG", dpi=(96 * SCALE, 96 * SCALE), optimize=True
    )
    return out.getvalue()


def _draw(pen: ImageDraw.ImageDraw, mark: Mark, zoom: int, ink: int | None = None) -> None:
    colour: str | int = LIGHT[mark.role] if ink is None else ink
    match mark:
        case Line(points, _, width, dash, _):
            for piece in _dashed(points, dash) if dash else [points]:
                pen.line([(x * zoom, y * zoom) for x, y in piece], colour, max(1, round(width * zoom)), joint="curve")
        case Area(points, _, _):
            pen.polygon([(x * zoom, y * zoom) for x, y in points], colour)
        case Boxes() | Cells():
            for x, y, w, h in mark.boxes:
                right, bottom = max(x * zoom, (x + w) * zoom - 1), max(y * zoom, (y + h) * zoom - 1)
                pen.rectangle((round(x * zoom), round(y * zoom), round(right), round(bottom)), colour)
        case Dots(dots, _, radius, _):
            for x, y, _ in dots:
                pen.ellipse([v * zoom for v in (x - radius, y - radius, x + radius, y + radius)], colour)
        case Words():
            for each in mark.texts:
                _draw(pen, each, zoom, ink)
        case Text(x, y, text, _, size, anchor, _):
            font = ImageFont.load_default(size * zoom)
            where = {"start": "ls", "middle": "ms", "end": "rs"}[anchor]
            pen.text((x * zoom, y * zoom), text.replace("\n", " "), colour, font, anchor=where)


def _dashed(points: Sequence[Point], dash: tuple[float, ...]) -> list[list[Point]]:
    """The line cut into its dashes."""
    pieces: list[list[Point]] = [[points[0]]]
    on, left, turn = True, dash[0], 0
    for (x0, y0), (x1, y1) in pairwise(points):
        length, gone = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5, 0.0
        while length - gone > left:
            gone += left
            at = (x0 + (x1 - x0) * gone / length, y0 + (y1 - y0) * gone / length)
            pieces[-1].append(at) if on else pieces.append([at])
            turn += 1
            on, left = not on, dash[turn % len(dash)]
        left -= length - gone
        if on:
            pieces[-1].append((x1, y1))
    return [piece for piece in pieces if len(piece) > 1]
