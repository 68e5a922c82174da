"""The picture of docs/leaderboard.md: personal against generic accuracy in every setting, bytes as size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torso.papers.board.glance import BOTH, FIRST, level_with_best
from torso.papers.board.standings import Row, judged
from torso.report.charts.drawing import WIDTH, Dots, Line, Words, text_room
from torso.report.charts.panels import Axis, Panel, Plot
from torso.report.charts.svg import standing_alone, to_svg

REACH = {"personal": 14.0, "generic": 22.0}  # points below the best that are drawn
_HIGH, _GAP, _ROW, _LETTERS = 170.0, 44.0, 62.0, 9.0
_STEPS, _STEP = 3, 11.0  # how far from its dot a name may stand
Box = tuple[float, float, float, float]  # left, top, right, bottom


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
    _write_names(panel, [row for row in near if str(row["method"]) in named], _first(rows), near)
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


def _first(rows: Sequence[Row]) -> set[str]:
    """FedAvg and the best of each accuracy."""
    return {FIRST, *(str(level_with_best(rows, column)[0]["method"]) for column in BOTH)}


def _named(rows: Sequence[Row]) -> set[str]:
    """The methods in colour: FedAvg, the best of each accuracy, and those among the best in both."""
    best = [level_with_best(rows, column) for column in BOTH]
    level = set.intersection(*({str(one["method"]), *(str(row["method"]) for row in others)} for one, others in best))
    return _first(rows) | level


def _write_names(panel: Panel, rows: Sequence[Row], first: set[str], dots: Sequence[Row]) -> None:
    """Write names around their dots, so that no two overlap. Those in `first` stand where they hide the fewest dots,
    with a line to a name further away; the others only where they hide none."""
    taken: list[Box] = []
    around = [_surroundings(panel, row) for row in dots]
    for row in sorted(rows, key=lambda row: (row["method"] not in first, -float(row["personal"]["mean"]))):
        name, radius = str(row["method"]), _radius(float(row["megabytes"]["mean"]))
        x, y = _centre(panel, row)
        half = text_room(name, _LETTERS) / 2
        costs: dict[Box, float] = {}
        for step in range(_STEPS if name in first else 1):
            for middle in _places(x, y, half, radius + 5 + step * _STEP):
                box = _box(*middle, half)
                hidden = sum(_meet(box, dot) for dot in around)
                if _inside(panel, box) and not any(_meet(box, other) for other in taken):
                    costs[box] = hidden + 0.9 * step  # a step away is better than a dot hidden
        best = min(costs, key=costs.__getitem__, default=None)
        if best is None or (name not in first and costs[best]):
            continue
        taken.append(best)
        nearest = min(max(x, best[0]), best[2]), min(max(y, best[1]), best[3])
        if math.dist((x, y), nearest) > radius + _STEP:
            panel.add(Line([panel.value_at(x, y), panel.value_at(*nearest)], "muted", 0.7))
        middle = (best[0] + best[2]) / 2, (best[1] + best[3]) / 2
        panel.add(Words([(*panel.value_at(*middle), name)], "ink", _LETTERS, halo=True))


def _centre(panel: Panel, row: Row) -> tuple[float, float]:
    return panel.x(float(row["generic"]["mean"])), panel.y(float(row["personal"]["mean"]))


def _surroundings(panel: Panel, row: Row) -> Box:
    """The square around a dot, a little smaller than the dot: a corner that is hidden does not matter."""
    (x, y), reach = _centre(panel, row), 0.8 * _radius(float(row["megabytes"]["mean"]))
    return x - reach, y - reach, x + reach, y + reach


def _places(x: float, y: float, half: float, away: float) -> list[tuple[float, float]]:
    """Places for the middle of a name around a dot: above, below, left, right, and the corners."""
    aside = half + away
    straight = [(x, y - away), (x, y + away), (x - aside, y), (x + aside, y)]
    return straight + [(x + side * aside, y + end * away) for end in (-1, 1) for side in (-1, 1)]


def _box(x: float, y: float, half: float) -> Box:
    return x - half, y - _LETTERS / 2, x + half, y + _LETTERS / 2


def _inside(panel: Panel, box: Box) -> bool:
    return panel.left <= box[0] and box[2] <= panel.right and panel.top <= box[1] and box[3] <= panel.bottom


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
