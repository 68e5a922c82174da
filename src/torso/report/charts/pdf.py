"""Marks as a one-page PDF: vectors, and text in Helvetica, which every reader has."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

from torso.report.charts.drawing import Area, Boxes, Cells, Dots, Drawing, Line, Mark, Point, Text, Words, text_width
from torso.report.charts.palette import LIGHT

SCALE = 0.75  # a CSS pixel in points
_ROUND = 0.5523  # of a Bézier quarter circle


def to_pdf(drawing: Drawing) -> bytes:
    opacities = sorted({getattr(mark, "opacity", 1.0) for mark in drawing.marks} | {1.0})
    flip = f"{SCALE} 0 0 {-SCALE} 0 {drawing.height * SCALE:.3f} cm 1 j 1 J"
    content = "\n".join([flip, *(_mark(mark, opacities) for mark in drawing.marks)])
    packed = zlib.compress(content.encode("latin-1", "replace"), 9)
    states = " ".join(f"/A{i} << /ca {alpha:.3f} /CA {alpha:.3f} >>" for i, alpha in enumerate(opacities))
    size = f"{drawing.width * SCALE:.2f} {drawing.height * SCALE:.2f}"
    fonts = " ".join(
        f"/{name} << /Type /Font /Subtype /Type1 /BaseFont /{base} /Encoding /WinAnsiEncoding >>"
        for name, base in (("F0", "Helvetica"), ("F1", "Helvetica-Bold"))
    )
    return _file(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {size}] /Contents 4 0 R "
            f"/Resources << /Font << {fonts} >> /ExtGState << {states} >> >> >>".encode(),
            b"<< /Length %d /Filter /FlateDecode >>\nstream\n" % len(packed) + packed + b"\nendstream",
        ]
    )


def _file(objects: Iterable[bytes]) -> bytes:
    out, places = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n"), []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n" % number + body + b"\nendobj\n"
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(places) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    return bytes(out + b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(places) + 1, start))


def _mark(mark: Mark, opacities: Sequence[float]) -> str:
    state = f"/A{opacities.index(getattr(mark, 'opacity', 1.0))} gs"
    colour = " ".join(f"{int(LIGHT[mark.role][i : i + 2], 16) / 255:.3f}" for i in (1, 3, 5))
    match mark:
        case Line(points, _, width, dash, _):
            dashes = " ".join(f"{d:g}" for d in dash)
            return f"{state} {colour} RG {width:g} w [{dashes}] 0 d {_path(points)} S"
        case Area(points, _, _):
            return f"{state} {colour} rg {_path(points)} h f"
        case Boxes() | Cells():
            paths = " ".join(f"{x:.2f} {y:.2f} {w:.2f} {h:.2f} re" for x, y, w, h in mark.boxes)
            return f"{state} {colour} rg {paths} f"
        case Dots(dots, _, radius, _):
            return f"{state} {colour} rg " + " ".join(f"{_circle(x, y, radius)} f" for x, y, _ in dots)
        case Words():
            return f"{state} {colour} rg " + " ".join(_text(text) for text in mark.texts)
        case Text():
            return f"{state} {colour} rg {_text(mark)}"


def _path(points: Sequence[Point]) -> str:
    (x, y), *rest = points
    return f"{x:.2f} {y:.2f} m " + " ".join(f"{a:.2f} {b:.2f} l" for a, b in rest)


def _circle(x: float, y: float, r: float) -> str:
    k = r * _ROUND
    quarters = (
        (x + r, y + k, x + k, y + r, x, y + r),
        (x - k, y + r, x - r, y + k, x - r, y),
        (x - r, y - k, x - k, y - r, x, y - r),
        (x + k, y - r, x + r, y - k, x + r, y),
    )
    return f"{x + r:.2f} {y:.2f} m " + " ".join(" ".join(f"{v:.2f}" for v in q) + " c" for q in quarters)


def _text(mark: Text) -> str:
    said = mark.text.replace("−", "–")  # WinAnsi has no minus sign; its dash is as long
    shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[mark.anchor] * text_width(said, mark.size)
    coded = said.encode("cp1252", "replace").decode("latin-1")
    safe = coded.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)").replace("\n", " ").replace("\r", " ")
    font = "F1" if mark.bold else "F0"
    return f"BT /{font} {mark.size:g} Tf 1 0 0 -1 {mark.x - shift:.2f} {mark.y:.2f} Tm ({safe}) Tj ET"
