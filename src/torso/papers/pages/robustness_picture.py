"""The picture of docs/robustness-study.md: accuracy by attack (rows) and server rule (columns), for every method."""

from __future__ import annotations

import numpy as np

from torso.papers.robust.answers import GENERIC, PERSONAL, WORST, Answers
from torso.papers.robust.cells import Cell
from torso.report.charts.drawing import WIDTH
from torso.report.charts.heat import Heat, Matrix, Ramp
from torso.report.charts.panels import Axis, Panel, Plot
from torso.report.charts.svg import standing_alone, to_svg

MEASURES = {GENERIC: "generic", PERSONAL: "personal", WORST: "worst tenth"}
_LEFT, _GAP, _ROW, _BETWEEN = 132.0, 14.0, 13.0, 34.0


def heat_map(answers: Answers, about: str) -> str:
    """The svg: a row of panels for each method, a panel for each measure."""
    attacks, methods = answers.attacks, answers.methods
    high = _ROW * len(attacks)
    plot = Plot(24 + len(methods) * (high + _BETWEEN) + 36)
    for row, method in enumerate(methods):
        for column, measure in enumerate(MEASURES):
            last = row == len(methods) - 1
            plot.panels.append(_panel(answers, method, measure, (row, column), (high, last)))
    return standing_alone(to_svg(plot.drawing(), about), WIDTH, plot.height)


def _panel(answers: Answers, method: str, measure: str, place: tuple[int, int], look: tuple[float, bool]) -> Panel:
    row, column = place
    high, last = look  # height of a panel; whether it is in the last row, which has the axis and the legend
    wide = (WIDTH - _LEFT - 2 * _GAP - 2) / len(MEASURES)  # a frame is one unit wide
    left, top = _LEFT + column * (wide + _GAP), 24 + row * (high + _BETWEEN)
    attacks, rules = answers.attacks, list(answers.known.rules)
    values: Matrix = np.array([[answers.mean(Cell(method, a, rule), measure) for rule in rules] for a in attacks])
    names = tuple((i + 0.5, answers.known.attacks[a].label) for i, a in enumerate(attacks))
    numbers = tuple((i + 0.5, str(i + 1)) for i in range(len(rules)))
    legend = "accuracy in %" if last and column == 0 else ""
    return Panel(
        *(left, top, left + wide, top + high, (0, len(rules)), (len(attacks), 0)),
        across=Axis(size=10.5, named=numbers if last else ()),
        up=Axis(size=10.5, named=names if column == 0 else ()),
        marks=[Heat(values, Ramp(0, 100), legend=legend)],
        title=f"{answers.known.methods[method].label}: {MEASURES[measure]}",
    )
