"""A scatter plot for each paper: ours against published, one dot for each number; on the diagonal both are equal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from torso.papers.tables.answers import Answer
from torso.papers.tables.review import comparable, within_points
from torso.report.charts.drawing import WIDTH, Area, Dots, Drawing, Line, Mark, Text
from torso.report.charts.palette import series_role
from torso.report.charts.panels import Axis, Panel, Plot
from torso.report.charts.svg import standing_alone, to_svg

MAIN = "main runs"
_LEFT, _TOP = 36.0, 32.0
_SIDE = 252.0  # of the square
_SIZE = 10.0  # of letters
_NEAR = 3.0  # points


def groups(answers: Sequence[Answer]) -> dict[str, list[Answer]]:
    """The answers that can be compared, by variant: the main runs first, then the variants, the largest first."""
    found: dict[str, list[Answer]] = {}
    for answer in answers:
        if comparable(answer):
            found.setdefault(str(answer["variant"]) or MAIN, []).append(answer)
    return dict(sorted(found.items(), key=lambda it: (it[0] != MAIN, -len(it[1]))))


def scatter(paper: str, answers: Sequence[Answer]) -> str:
    """The picture as an svg file, light or dark as the reader's system is; empty if nothing can be compared."""
    shown = groups(answers)
    if not shown:
        return ""
    plot = Plot(_TOP + _SIDE + 46)
    panel = Panel(
        *(_LEFT, _TOP, _LEFT + _SIDE, _TOP + _SIDE, (0, 100), (0, 100)),
        across=Axis("published, %", size=_SIZE),
        up=Axis("ours, %", size=_SIZE),
    )
    panel.add(Area([(0, _NEAR), (100 - _NEAR, 100), (100, 100), (100, 100 - _NEAR), (_NEAR, 0), (0, 0)], "muted", 0.18))
    panel.add(Line([(0, 0), (100, 100)], "muted", 1))
    for place, some in enumerate(shown.values()):
        dots = [(float(a["published"]["mean"]), float(a["ours"]["mean"]), "") for a in some]
        panel.add(Dots(dots, series_role(place), 1.7, 0.65))
    plot.panels.append(panel)
    drawn = Drawing(plot.height, [*plot.drawing().marks, *_legend(paper, shown)])
    return standing_alone(to_svg(drawn, f"{paper}: ours against published"), WIDTH, plot.height)


def _legend(paper: str, shown: Mapping[str, Sequence[Answer]]) -> Iterator[Mark]:
    left, y = _LEFT + _SIDE + 20, _TOP + 6
    yield Text(left, y, paper, "ink", 13, bold=True)
    yield Text(left, y + 15, "A dot is a number.", size=_SIZE)
    yield Text(left, y + 28, "Band: within 3 points of the paper.", size=_SIZE)
    y += 50
    for place, (name, some) in enumerate(shown.items()):
        near, there = within_points(some)
        yield Dots([(left + 4, y - 3.5, "")], series_role(place), 3, 1)
        for line in (*textwrap.wrap(name, 28), f"{near} of {there} near"):
            yield Text(left + 13, y, line, "muted" if line.endswith("near") else "ink", _SIZE)
            y += 13
        y += 6
