"""Charts with one dot for each client: its accuracy, whether it gains or loses; and the differences between methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from torso.measure.fairness import worst
from torso.report.charts.base import Chart, kind
from torso.report.charts.drawing import WIDTH, Dots, Line, accuracy_span, span
from torso.report.charts.palette import series_role
from torso.report.charts.panels import Axis, Panel, Plot, Row, room_for
from torso.report.comparison import Comparison, Entry, scale_of, share_below, title_of
from torso.report.records import Record
from torso.report.statistics import Difference

ROW = 58.0  # height of a row of dots, in units of the page
MOST = 250  # dots in a row; of more, these many are drawn, evenly by rank
Labelled = tuple[float, str]
"""A value and the text that the page shows when the pointer is on its dot."""


def _in_rows(
    rows: Sequence[Row], height: float, top: float, right: float, xs: tuple[float, float], across: Axis, *heads: str
) -> Panel:
    """A panel of named rows: row number i has its middle at i + 0.5, from the top down."""
    left = room_for(row.name for row in rows)
    bottom = top + len(rows) * height
    return Panel(left, top, right, bottom, xs, (len(rows), 0), across=across, rows=tuple(rows), heads=heads)


def thinned(values: Sequence[Labelled]) -> list[Labelled]:
    """The values in order; if there are too many to draw, MOST of them, evenly by rank."""
    ordered = sorted(values)
    if len(ordered) <= MOST:
        return ordered
    return [ordered[i] for i in np.linspace(0, len(ordered) - 1, MOST).round().astype(int)]


@dataclass(frozen=True)
class Swarm:
    """A row of dots that do not cover each other: equal values are stacked around the middle of the row."""

    dots: list[tuple[float, tuple[float, float, str]]]  # (value, (x, y on the page, text))
    radius: float

    @classmethod
    def of(cls, panel: Panel, values: Sequence[Labelled], middle: float, half: float) -> Swarm:
        """The dots of these values around `middle` (y on the page), at most `half` above and below it."""
        if len(values) <= 60:
            radius = 2.4
        elif len(values) <= 120:
            radius = 2.0
        else:
            radius = 1.6
        step = 2.1 * radius
        places: dict[int, list[Labelled]] = {}
        for value, title in values:
            places.setdefault(round(panel.x(value) / step), []).append((value, title))
        high = max(1, int(2 * half / step))  # dots in a column
        found = []
        for place in places.values():
            columns = -(-len(place) // high)
            each = -(-len(place) // columns)
            for number, (value, title) in enumerate(place):
                column, at = divmod(number, each)
                last = min(each, len(place) - column * each)
                x = panel.x(value) + (column - (columns - 1) / 2) * step
                found.append((value, (x, middle + (at - (last - 1) / 2) * step, title)))
        return cls(found, radius)

    def marks(
        self, panel: Panel, role: str, opacity: float, keep: Callable[[float], bool] = lambda _: True
    ) -> list[Dots]:
        """The dots with these values as marks, in the scales of the panel."""
        some = [(*panel.value_at(x, y), title) for value, (x, y, title) in self.dots if keep(value)]
        return [Dots(some, role, self.radius, opacity)] if some else []


def _client_values(entry: Entry, measure: str) -> list[Labelled]:
    return [
        (value, f"seed {run.seed}, client {name}: {value:.1f}%")
        for run in entry.good
        if measure in run.accuracy
        for name, value in _named(run, run.accuracy[measure].clients)
        if not math.isnan(value)
    ]


def _named(run: Record, values: Sequence[float]) -> list[tuple[str | int, float]]:
    """(client's name or number, its value) of all clients."""
    return list(zip(run.client_names(len(values)), values, strict=True))


def _thinned_note(largest: int) -> str:
    return f" {MOST} of {largest:,} dots are drawn, evenly by rank." if largest > MOST else ""


@kind("clients", "clients")
def clients(comparison: Comparison) -> list[Chart]:
    """Accuracy of every client as a dot, with the median and the mean of the worst tenth."""
    charts = []
    chosen = [m for m in dict.fromkeys((comparison.headline, "initial", "personal")) if m in comparison.measures]
    for measure in chosen[:2]:
        found = [(entry, values) for entry in comparison.entries if (values := _client_values(entry, measure))]
        if not found:
            continue
        panel = _in_rows(
            [Row(entry.label, series_role(entry.place)) for entry, _ in found],
            *(ROW, 22, WIDTH - 24, accuracy_span([v for _, vs in found for v, _ in vs])),
            Axis(f"{scale_of(measure)} of a client, %"),
        )
        for number, (entry, values) in enumerate(found):
            middle = number + 0.5
            swarm = Swarm.of(panel, thinned(values), panel.y(middle), ROW / 2 - 4)
            panel.add(*swarm.marks(panel, series_role(entry.place), 0.62))
            known = [v for v, _ in values]
            for value, length in ((float(np.median(known)), 22 / ROW), (worst(known), 11 / ROW)):
                panel.add(Line([(value, middle - length), (value, middle + length)], "ink", 2))
        rows = [
            (e.label, run.seed, k, v)
            for e, _ in found
            for run in e.good
            if measure in run.accuracy
            for k, v in _named(run, run.accuracy[measure].clients)
        ]
        note = "Each dot is a client. Long stroke: the median. Short stroke: the mean of the worst tenth."
        note += _thinned_note(max(len(values) for _, values in found))
        title = f"Every client: {title_of(measure)}"
        plot = Plot(len(found) * ROW + 62, [panel])
        charts.append(Chart("clients", title, note, plot, ("method", "seed", "client", measure), rows, measure))
    return charts


def gain_pair(entry: Entry) -> tuple[str, str] | None:
    """The measures (a client's own model, the generic model on its data) that the entry has; None if one is missing."""
    after = next((m for m in ("personal", "personalized") if m in entry.measures), None)
    before = next((m for m in ("generic_as_personal", "initial") if m in entry.measures), None)
    return (after, before) if after and before else None


@kind("gains", "clients")
def gains(comparison: Comparison) -> list[Chart]:
    """Which clients gain and which lose: a client's own model against the generic model on the same client."""
    pairs = {entry.label: pair for entry in comparison.entries if (pair := gain_pair(entry))}
    befores = {pair[1] for pair in pairs.values()}
    against = "the model it received, before fine-tuning (initial)" if befores == {"initial"} else "the generic model"
    note = f"Accuracy of a client's own model minus that of {against}, on the same client. Left of the line: it loses."
    return _gain_chart(comparison, pairs, "gains", "Who gains and who loses", note)


@kind("alone", "clients")
def alone(comparison: Comparison) -> list[Chart]:
    """Which clients would be better off alone: a client's own model against training on its own data only."""
    pairs = {
        e.label: (p[0], "local_only") for e in comparison.entries if (p := gain_pair(e)) and "local_only" in e.measures
    }
    note = (
        "Accuracy of a client's own model minus that of a model trained on its data alone. Left of the line: training "
        "alone is better."
    )
    return _gain_chart(comparison, pairs, "alone", "Who would be better off alone", note)


def _gain_chart(
    comparison: Comparison, pairs: dict[str, tuple[str, str]], name: str, title: str, note: str
) -> list[Chart]:
    """The chart of differences client by client. `pairs`: an entry's label → the measures (after, before)."""
    found: list[tuple[Entry, list[Labelled]]] = []
    rows = []
    for entry in (e for e in comparison.entries if e.label in pairs):
        after, before = pairs[entry.label]
        differences: list[Labelled] = []
        for run in (r for r in entry.good if after in r.accuracy and before in r.accuracy):
            ours, theirs = run.accuracy[after].clients, run.accuracy[before].clients
            if len(ours) != len(theirs):
                continue
            both = [(k, a, b) for (k, a), b in zip(_named(run, ours), theirs, strict=True)]
            rows += [(entry.label, run.seed, k, after, a, before, b) for k, a, b in both]
            differences += [
                (a - b, f"seed {run.seed}, client {k}: {b:.1f} → {a:.1f}%") for k, a, b in both if not math.isnan(a - b)
            ]
        if differences:
            found.append((entry, differences))
    if not found:
        return []
    note += _thinned_note(max(len(values) for _, values in found))
    columns = ("method", "seed", "client", "own", "own_accuracy", "against", "against_accuracy")
    return [Chart(name, title, note, _draw_gains(found), columns, rows)]


def _draw_gains(found: Sequence[tuple[Entry, list[Labelled]]]) -> Plot:
    low, high = span([0.0, *(v for _, values in found for v, _ in values)], least=2.0)
    rows = []
    for entry, values in found:
        lose, same, gain = share_below([v for v, _ in values], [0.0] * len(values))
        rows.append(
            Row(entry.label, series_role(entry.place), ((f"{lose}", "s1"), (f"{same}", "muted"), (f"{gain}", "s0")))
        )
    across = Axis("change in accuracy of a client, points")
    panel = _in_rows(rows, ROW, 22, WIDTH - 92, (low, high), across, "lose", "same", "gain")
    panel.add(Line([(0, -4 / ROW), (0, len(rows))], "muted", 1))
    for number, (_, values) in enumerate(found):
        swarm = Swarm.of(panel, thinned(values), panel.y(number + 0.5), ROW / 2 - 4)
        panel.add(*swarm.marks(panel, "faint", 1, lambda v: v == 0))
        panel.add(*swarm.marks(panel, "s0", 0.85, lambda v: v > 0), *swarm.marks(panel, "s1", 0.95, lambda v: v < 0))
    return Plot(len(rows) * ROW + 62, [panel])


@kind("difference", "comparison")
def difference(comparison: Comparison) -> list[Chart]:
    """The difference of each method to the baseline with its 95% interval, for the first measure."""
    measure = comparison.headline
    if measure is None:
        return []
    others = [entry for entry in comparison.entries if entry is not comparison.baseline]
    tested = [(entry, comparison.difference(entry, measure)) for entry in others]
    found = [(entry, d) for entry, d in tested if isinstance(d, Difference)]
    if not found:
        return []
    ends = [v for _, d in found for v in (0.0, d.mean, d.low, d.high) if v is not None]
    row = 26.0
    panel = _in_rows(
        [Row(entry.label, series_role(entry.place), ((in_words(d), "ink"),)) for entry, d in found],
        *(row, 14, WIDTH - 118, span(ends, least=1.0, pad=0.08)),
        Axis("percentage points", 4),
    )
    panel.add(Line([(0, -8 / row), (0, len(found))], "muted", 1))
    for number, (entry, d) in enumerate(found):
        middle, role = number + 0.5, series_role(entry.place)
        if d.low is not None and d.high is not None:
            panel.add(Line([(d.low, middle), (d.high, middle)], role, 2))
        panel.add(Dots([(d.mean, middle, f"{entry.label}: {signed(d.mean)}")], role, 4, 1))
    rows = [(e.label, comparison.baseline.label, measure, d.mean, d.low, d.high, d.pairs, d.over) for e, d in found]
    over = found[0][1]
    note = (
        f"Mean paired difference over {over.pairs} {over.over}, with Student's 95% interval. It is clear if the "
        "interval does not touch the line."
    )
    title = f"{title_of(measure).capitalize()}: difference to {comparison.baseline.label}"
    columns = ("method", "baseline", "measure", "difference", "low", "high", "pairs", "over")
    return [Chart("difference", title, note, Plot(len(found) * row + 56, [panel]), columns, rows, measure)]


def signed(value: float) -> str:
    """A difference with its sign: `+5.8`, `−0.3`, `0.0`."""
    said = f"{value:+.1f}".replace("-", "−")
    return "0.0" if said in ("+0.0", "−0.0") else said


def in_words(d: Difference) -> str:
    """A difference with its interval: `+5.8 [+4.1, +7.5]`."""
    if d.low is None or d.high is None:
        return f"{signed(d.mean)} (one pair)"
    return f"{signed(d.mean)} [{signed(d.low)}, {signed(d.high)}]"
