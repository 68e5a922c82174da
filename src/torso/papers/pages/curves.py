"""The pictures of docs/pretrained.md and docs/privacy.md: accuracy over rounds, bytes and forward passes, and accuracy
by setting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from torso.papers.experiments.result_files import Record
from torso.report.charts.drawing import WIDTH, Area, Dots, Line, accuracy_span, nice
from torso.report.charts.palette import series_dash, series_role
from torso.report.charts.panels import Axis, End, Panel, Plot, room_for
from torso.report.charts.svg import standing_alone, to_svg

_HIGH, _GAP = 200.0, 74.0


@dataclass(frozen=True)
class Curve:
    """The measurements of one method during training: what each one cost, and the accuracy over seeds."""

    label: str
    place: int  # among the methods: decides colour and dashes
    points: Sequence[tuple[float, float, float]]  # round, megabytes, forward passes
    mean: Sequence[float]  # accuracy in %, over seeds
    low: Sequence[float]
    high: Sequence[float]


def curve(label: str, place: int, record: Record, opening: Record | None = None) -> Curve | None:
    """The curve of a cell over the seeds that did not diverge; None if no seed has one.

    `opening`: the cell at whose end this one begins (class means); its last measurement becomes round 0."""
    by_seed = {seed: run["history"] for seed, run in record["runs"].items() if run["status"] == "ok" and run["history"]}
    earlier = opening["runs"] if opening is not None else {}
    if by_seed.keys() <= earlier.keys():
        by_seed = {seed: [*earlier[seed]["history"][-1:], *run] for seed, run in by_seed.items()}
    runs = list(by_seed.values())
    if not runs:
        return None
    steps = [[run[i] for run in runs] for i in range(min(map(len, runs)))]
    accuracy = [[point[1] for point in step] for step in steps]
    return Curve(
        label,
        place,
        [(step[0][0], fmean(p[2] for p in step) / 1e6, fmean(p[3] for p in step)) for step in steps],
        [fmean(values) for values in accuracy],
        [min(values) for values in accuracy],
        [max(values) for values in accuracy],
    )


def over_everything(curves: Sequence[Curve], about: str) -> str:
    """An svg with three panels, one below the other: accuracy over rounds, megabytes and forward passes."""
    across: Sequence[tuple[str, int, Callable[[float], float]]] = (
        ("rounds", 0, float),
        ("megabytes, both directions", 1, math.log10),
        ("forward passes of one sample", 2, math.log10),
    )
    panels = [
        _panel(curves, 30 + number * (_HIGH + _GAP), label, [[scale(p[axis]) for p in c.points] for c in curves], axis)
        for number, (label, axis, scale) in enumerate(across)
    ]
    return _file(Plot(30 + len(panels) * (_HIGH + _GAP), panels), about)


def _panel(curves: Sequence[Curve], top: float, label: str, xs: Sequence[Sequence[float]], axis: int) -> Panel:
    every = [x for one in xs for x in one]
    low, high = min(every), max(every)
    if low == high:
        low, high = low - 0.5, high + 0.5
    named = None if axis == 0 else _powers(low, high)
    right = WIDTH - room_for(one.label for one in curves)
    panel = Panel(
        *(40, top, right, top + _HIGH, (low, high), accuracy_span(y for c in curves for y in (*c.low, *c.high))),
        across=Axis(label, whole=axis == 0, named=named),
        up=Axis("accuracy in %", 4),
        ends=[
            End(x[-1] if len(x) > 1 else high, c.mean[-1], c.label, series_role(c.place))
            for c, x in zip(curves, xs, strict=True)
        ],
    )
    if named is not None:
        panel.add(Line([(low, panel.ys[0]), (high, panel.ys[0])], "faint", 1))
    for one, x in zip(curves, xs, strict=True):
        _draw(panel, one, x)
    return panel


def _powers(low: float, high: float) -> tuple[tuple[float, str], ...]:
    """Ticks of a logarithmic scale: powers of ten, and twos and fives between them if there are few powers."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    factors = (1,) if high - low > 2 else (1, 2, 5)
    at = [math.log10(factor) + power for power in powers for factor in factors]
    return tuple((x, nice(float(f"{10**x:.3g}"))) for x in at if low <= x <= high)


def _draw(panel: Panel, one: Curve, xs: Sequence[float]) -> None:
    role, points = series_role(one.place), list(zip(xs, one.mean, strict=True))
    if len(points) == 1:  # a method without rounds: a dot, and a thin line at its accuracy
        panel.add(Line([points[0], (panel.xs[1], one.mean[0])], role, 1, (1.5, 2.5)))
        panel.add(Dots([(*points[0], f"{one.label}: {one.mean[0]:.1f}")], role, 3.6, 1))
        return
    above, below = zip(xs, one.high, strict=True), zip(xs, one.low, strict=True)
    panel.add(Area([*above, *reversed(list(below))], role), Line(points, role, 2, series_dash(one.place)))


def by_setting(
    values: Mapping[str, Sequence[Sequence[float]]],
    places: Sequence[int],
    names: Sequence[str],
    about: str,
    across: str,
) -> str:
    """An svg with the accuracy of each method over settings.

    `values`: label of a method → for each setting the values of its seeds. `places`: of the methods, for colours and
    dashes. `names`: of the settings."""
    means = {label: [fmean(seeds) if seeds else math.nan for seeds in found] for label, found in values.items()}
    panel = Panel(
        *(40, 30, WIDTH - room_for(values), 30 + 1.3 * _HIGH, (-0.15, len(names) - 0.85)),
        accuracy_span(y for found in values.values() for seeds in found for y in seeds),
        across=Axis(across, named=tuple((float(i), name) for i, name in enumerate(names))),
        up=Axis("accuracy in %", 4),
        ends=[],
    )
    for place, (label, found) in zip(places, means.items(), strict=True):
        points = [(float(i), y) for i, y in enumerate(found) if not math.isnan(y)]
        if points:
            role = series_role(place)
            panel.add(Line(points, role, 2, series_dash(place)))
            panel.add(Dots([(x, y, f"{label}: {y:.1f}") for x, y in points], role, 3.2, 1))
            panel.ends.append(End(*points[-1], label, role))
    return _file(Plot(30 + 1.3 * _HIGH + _GAP, [panel]), about)


def _file(plot: Plot, about: str) -> str:
    return standing_alone(to_svg(plot.drawing(), about), WIDTH, plot.height)
