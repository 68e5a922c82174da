"""The picture of docs/leaderboard.md: personal against generic accuracy in every setting, bytes as size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torso.papers.board.glance import BOTH, FIRST, level_with_best
from torso.papers.board.standings import Row, judged
from torso.report.charts.drawing import WIDTH, Dots, Words, text_room
from torso.report.charts.panels import Axis, Panel, Plot
from torso.report.charts.svg import standing_alone, to_svg

REACH = {"personal": 14.0, "generic": 22.0}  # points below the best that are drawn
_HIGH, _GAP, _ROW, _LETTERS = 170.0, 44.0, 62.0, 9.0


def picture(settings: Mapping[str, Sequence[Row]], about: str) -> str:
    """The svg: a panel for each setting, two in a row."""
    wide = (WIDTH - 40 - _GAP - 4) / 2
    plot = Plot(28 + math.ceil(len(settings) / 2) * (_HIGH + _ROW))
    for number, (setting, rows) in enumerate(settings.items()):
        left, top = 40 + number % 2 * (wide + _GAP), 28 + number // 2 * (_HIGH + _ROW)
        plot.panels.append(_panel(setting, rows, (left, top, left + wide, top + _HIGH)))
    return standing_alone(to_svg(plot.drawing(), about), WIDTH, plot.height)


def shown(rows: Sequence[Row]) -> list[Row]:
    """The rows that are drawn: near enough to the best in both accuracies. Small dots come last, so they lie on top."""
    best = {column: max(float(row[column]["mean"]) for row in judged(rows)) for column in BOTH}
    near = [row for row in judged(rows) if all(row[c]["mean"] >= best[c] - REACH[c] for c in BOTH)]
    return sorted(near, key=lambda row: -float(row["megabytes"]["mean"]))


def _panel(setting: str, rows: Sequence[Row], place: tuple[float, float, float, float]) -> Panel:
    near = shown(rows)
    xs, ys = (_span([float(row[column]["mean"]) for row in near]) for column in ("generic", "personal"))
    panel = Panel(*place, xs, ys, across=Axis("generic, %", 4), up=Axis(about=4), title=f"{setting}: personal, %")
    named = _named(rows)
    for row in near:
        x, y = float(row["generic"]["mean"]), float(row["personal"]["mean"])
        megabytes = float(row["megabytes"]["mean"])
        tooltip = f"{row['method']}: personal {y:.1f}, generic {x:.1f}, {megabytes:,.0f} MB"
        panel.add(Dots([(x, y, tooltip)], _colour(row, named), _radius(megabytes), 0.6))
    _write_names(panel, [row for row in near if str(row["method"]) in named])
    return panel


def _colour(row: Row, named: set[str]) -> str:
    """The role of a dot's colour: found by the search, FedAvg, other named methods, the rest."""
    if row["new"]:
        return "s1"
    if row["method"] == FIRST:
        return "s2"
    return "s0" if row["method"] in named else "muted"


def _span(values: Sequence[float]) -> tuple[float, float]:
    """The range of an axis, with some air on both sides."""
    low, high = min(values), max(values)
    air = 0.08 * max(high - low, 1.0)
    return low - air, high + air


def _radius(megabytes: float) -> float:
    """The radius of a dot: its area grows with the bytes, and a method that sends nothing has a small dot."""
    return min(1.6 + 0.12 * math.sqrt(megabytes), 7.0)


def _named(rows: Sequence[Row]) -> set[str]:
    """The methods whose names are written: FedAvg, the best of each accuracy, and those among the best in both."""
    best = [level_with_best(rows, column) for column in BOTH]
    level = set.intersection(*({str(one["method"]), *(str(row["method"]) for row in others)} for one, others in best))
    return {FIRST, *(str(one["method"]) for one, _ in best), *level}


def _write_names(panel: Panel, rows: Sequence[Row]) -> None:
    """Write names above, below or beside their dots so that no two overlap. A name without room is left out."""
    taken: list[tuple[float, float, float, float]] = []
    for row in sorted(rows, key=lambda row: -float(row["personal"]["mean"])):
        name = str(row["method"])
        x, y = panel.x(float(row["generic"]["mean"])), panel.y(float(row["personal"]["mean"]))
        half, away = text_room(name, _LETTERS) / 2, _radius(float(row["megabytes"]["mean"])) + 5
        for at in ((x, y - away), (x, y + away), (x - half - away, y), (x + half + away, y)):
            box = (at[0] - half, at[1] - _LETTERS / 2, at[0] + half, at[1] + _LETTERS / 2)
            inside = panel.left <= box[0] and box[2] <= panel.right and panel.top <= box[1] and box[3] <= panel.bottom
            if inside and not any(_meet(box, other) for other in taken):
                taken.append(box)
                panel.add(Words([(*panel.value_at(*at), name)], "ink", _LETTERS))
                break


def _meet(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
