"""Pictures of data as SVG files without external parts: images of each class, and which client holds which classes."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from torso.data.inventory import SurveyData
from torso.data.survey import Survey
from torso.report.charts.drawing import WIDTH, shortened
from torso.report.charts.heat import Heat, Ramp, even_indices
from torso.report.charts.panels import Axis, Panel, Plot, room_for
from torso.report.charts.svg import standing_alone, to_svg

_THUMB, _GAP = 64, 6  # pixels of a thumbnail's side, and between two
_PER_CLASS, _CLASSES = 8, 30  # at most: images of a class, and classes of the contact sheet
_CLIENTS, _COLUMNS = 60, 400  # at most: rows and columns of the heat map


def contact_sheet(survey_data: SurveyData, found: Survey) -> str:
    """Up to eight images of each class, from as many clients as possible; "" if the samples are not images."""
    rows = [(name, list(_chosen(survey_data, number))) for number, name in enumerate(found.classes[:_CLASSES])]
    rows = [(name, images) for name, images in rows if images]
    if not rows:
        return ""
    width, line = 2 * _GAP + _PER_CLASS * (_THUMB + _GAP), _THUMB + 34
    marks = []
    for number, (name, images) in enumerate(rows):
        top = _GAP + number * line
        total = sum(counts[found.classes.index(name)] for part in (found.train, found.test) for counts in part)
        label = f"{shortened(name, 13, width - 120)} ({total})"
        marks.append(f'<text x="{_GAP}" y="{top + 16}" class="f-ink" font-size="13">{escape(label)}</text>')
        for place, (title, image) in enumerate(images):
            where = f'x="{_GAP + place * (_THUMB + _GAP)}" y="{top + 22}" width="{_THUMB}" height="{_THUMB}"'
            marks.append(f'<image {where} href="{_as_png(image)}"><title>{escape(title)}</title></image>')
    more = len(found.classes) - len(rows)
    height = 2 * _GAP + len(rows) * line
    if more > 0:
        marks.append(f'<text x="{_GAP}" y="{height + 8}" class="f-muted" font-size="12">and {more} more classes</text>')
        height += 20
    size = f'viewBox="0 0 {width} {height}"'
    return standing_alone(f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(marks)}</svg>', width, height)


def _chosen(survey_data: SurveyData, label: int) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """(name, image) of some samples of a class: one of each client in turn, until there are enough."""
    inventory = survey_data.inventory
    rows = np.flatnonzero(inventory.labels == label)
    turn = np.zeros(len(rows), np.int64)
    seen: dict[int, int] = {}
    for place, row in enumerate(rows.tolist()):
        client = int(inventory.clients[row])
        turn[place] = seen[client] = seen.get(client, -1) + 1
    for row in rows[np.argsort(turn, kind="stable")][:_PER_CLASS].tolist():
        image = survey_data.picture(row)
        if image is not None:
            yield inventory.names[row], image


def _as_png(image: NDArray[np.uint8]) -> str:
    """A thumbnail as a data URL, in its proportions. Small images are enlarged without blur."""
    from PIL import Image

    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    if max(picture.size) > _THUMB:
        picture.thumbnail((2 * _THUMB, 2 * _THUMB))
    else:
        scale = 2 * _THUMB // max(picture.size)
        picture = picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)
    file = io.BytesIO()
    picture.save(file, "png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def partition_chart(found: Survey) -> str:
    """Samples of each client and class as a heat map, train and test together."""
    table = (np.array(found.train) + np.array(found.test)).astype(np.float64)
    clients, classes = even_indices(len(table), _CLIENTS), even_indices(table.shape[1], _COLUMNS)
    drawn = table[np.ix_(clients, classes)]
    names = [found.clients[k] if found.clients else "all" for k in clients.tolist()]
    columns = [found.classes[c] for c in classes.tolist()]
    left, height = max(40.0, room_for(names, 11)), max(60.0, 17.0 * len(names))
    panel = Panel(
        *(left, 26, WIDTH - 6, 26 + height, (0, drawn.shape[1]), (len(drawn), 0)),
        across=Axis(f"class{_thinned(len(clients), len(table))}", size=11, named=_below(columns, WIDTH - 6 - left)),
        up=Axis("client", size=11, named=tuple((i + 0.5, name) for i, name in enumerate(names))),
        marks=[Heat(drawn, Ramp(0, float(table.max())), blank=0, legend=found.noun)],
    )
    said = f"{found.noun} of {len(found.clients) or 1} clients in {len(found.classes)} classes"
    return standing_alone(to_svg(Plot(height + 90, [panel]).drawing(), said), WIDTH, height + 90)


def _thinned(shown: int, every: int) -> str:
    return f" ({shown} of {every} clients are shown)" if shown < every else ""


def _below(names: Sequence[str], room: float) -> tuple[tuple[float, str], ...]:
    """Labels (place, name) below the columns, shortened to fit; only every n-th if columns are narrow."""
    each = room / len(names)
    step = max(1, int(np.ceil(40 / each)))
    return tuple((i + 0.5, shortened(names[i], 11, each * step - 4)) for i in range(0, len(names), step))
