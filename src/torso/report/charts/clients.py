"""One dot a client: where each stands, who gains and who loses, and how far methods lie apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from torso.measure.fairness import worst
from torso.report.charts.base import Chart, kind
from torso.report.charts.drawing import (
    BOLD,
    WIDTH,
    Dots,
    Drawing,
    Line,
    Mark,
    Panel,
    Text,
    accuracy_span,
    shortened,
    span,
    text_width,
)
from torso.report.charts.palette import series_role
from torso.report.comparison import Comparison, Entry, share_below, title_of
from torso.report.statistics import Difference

SIZE = 12.0
MOST = 250  # dots in a row; more are shown as these many, evenly by rank
Told = tuple[float, str]


def _left(labels: Sequence[str]) -> float:
    return min(160.0, BOLD * max(text_width(label, SIZE) for label in labels) + 12)


def thinned(values: Sequence[Told]) -> list[Told]:
    """Evenly by rank where there are too many to draw."""
    ordered = sorted(values)
    if len(ordered) <= MOST:
        return ordered
    return [ordered[i] for i in np.linspace(0, len(ordered) - 1, MOST).round().astype(int)]


@dataclass(frozen=True)
class Swarm:
    """Dots that do not cover each other: equal values stand above and beside each other around their place."""

    dots: list[tuple[float, tuple[float, float, str]]]  # (value, dot)
    radius: float

    @classmethod
    def of(cls, panel: Panel, values: Sequence[Told], middle: float, half: float) -> Swarm:
        radius = 2.4 if len(values) <= 60 else 2.0 if len(values) <= 120 else 1.6
        step = 2.1 * radius
        places: dict[int, list[Told]] = {}
        for value, title in values:
            places.setdefault(round(panel.x(value) / step), []).append((value, title))
        high = max(1, int(2 * half / step))  # dots above each other
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

    def marks(self, role: str, opacity: float, keep: Callable[[float], bool] = lambda _: True) -> list[Mark]:
        some = [dot for value, dot in self.dots if keep(value)]
        return [Dots(some, role, self.radius, opacity)] if some else []


def _client_values(entry: Entry, measure: str) -> list[Told]:
    return [
        (value, f"seed {run.seed}, client {k}: {value:.1f}%")
        for run in entry.good
        if measure in run.accuracy
        for k, value in enumerate(run.accuracy[measure].clients)
        if not math.isnan(value)
    ]


def _thinned_note(largest: int) -> str:
    return f" {MOST} of {largest:,} dots are drawn, evenly by rank." if largest > MOST else ""


@kind("clients", "clients")
def clients(comparison: Comparison) -> list[Chart]:
    """The distribution over clients, one dot a client, with the median and the mean of the worst tenth."""
    charts = []
    chosen = [m for m in dict.fromkeys((comparison.headline, "initial", "personal")) if m in comparison.measures]
    for measure in chosen[:2]:
        found = [(entry, values) for entry in comparison.entries if (values := _client_values(entry, measure))]
        if not found:
            continue
        row, left = 58.0, _left([entry.label for entry, _ in found])
        drawing = Drawing(len(found) * row + 62)
        panel = Panel(
            left, 22, WIDTH - 24, 22 + len(found) * row, accuracy_span([v for _, vs in found for v, _ in vs]), (0, 1)
        )
        drawing.add(*panel.across(f"{title_of(measure)} accuracy of a client, %"))
        for number, (entry, values) in enumerate(found):
            middle, role = 22 + (number + 0.5) * row, series_role(entry.place)
            drawing.add(Text(0, middle + 4, shortened(entry.label, SIZE, left - 10), role, SIZE, bold=True))
            drawing.add(*Swarm.of(panel, thinned(values), middle, row / 2 - 4).marks(role, 0.62))
            known = [v for v, _ in values]
            for value, length in ((float(np.median(known)), 22.0), (worst(known), 11.0)):
                at = panel.x(value)
                drawing.add(Line([(at, middle - length), (at, middle + length)], "ink", 2))
        rows = [
            (e.label, run.seed, k, v)
            for e, _ in found
            for run in e.good
            if measure in run.accuracy
            for k, v in enumerate(run.accuracy[measure].clients)
        ]
        note = "A dot is a client. Long stroke: the median; short stroke: the mean of the worst tenth."
        note += _thinned_note(max(len(values) for _, values in found))
        title = f"Every client: {title_of(measure)}"
        charts.append(Chart("clients", title, note, drawing, ("method", "seed", "client", measure), rows, measure))
    return charts


def gain_pair(entry: Entry) -> tuple[str, str] | None:
    """(its personal model, the generic model on its data) as far as they were measured client by client."""
    after = next((m for m in ("personal", "personalized") if m in entry.measures), None)
    before = next((m for m in ("generic_as_personal", "initial") if m in entry.measures), None)
    return (after, before) if after and before else None


@kind("gains", "clients")
def gains(comparison: Comparison) -> list[Chart]:
    """Who gains and who loses: a client's own model against the generic model on the same client."""
    pairs = {entry.label: pair for entry in comparison.entries if (pair := gain_pair(entry))}
    befores = {pair[1] for pair in pairs.values()}
    against = "the model it was given, before fine-tuning (initial)" if befores == {"initial"} else "the generic model"
    note = f"A client's own model minus {against}, on the same client. Left of the line: worse off."
    return _gain_chart(comparison, pairs, "gains", "Who gains and who loses", note)


@kind("alone", "clients")
def alone(comparison: Comparison) -> list[Chart]:
    """Who would have been better off alone: a client's model against training on its own data only."""
    pairs = {
        e.label: (p[0], "local_only") for e in comparison.entries if (p := gain_pair(e)) and "local_only" in e.measures
    }
    note = "A client's own model minus the same client trained alone. Left of the line: federation cost it accuracy."
    return _gain_chart(comparison, pairs, "alone", "Who would be better off alone", note)


def _gain_chart(
    comparison: Comparison, pairs: dict[str, tuple[str, str]], name: str, title: str, note: str
) -> list[Chart]:
    found: list[tuple[Entry, list[Told]]] = []
    rows = []
    for entry in (e for e in comparison.entries if e.label in pairs):
        after, before = pairs[entry.label]
        told: list[Told] = []
        for run in (r for r in entry.good if after in r.accuracy and before in r.accuracy):
            ours, theirs = run.accuracy[after].clients, run.accuracy[before].clients
            if len(ours) != len(theirs):
                continue
            rows += [
                (entry.label, run.seed, k, after, a, before, b)
                for k, (a, b) in enumerate(zip(ours, theirs, strict=True))
            ]
            told += [
                (a - b, f"seed {run.seed}, client {k}: {b:.1f} → {a:.1f}%")
                for k, (a, b) in enumerate(zip(ours, theirs, strict=True))
                if not math.isnan(a - b)
            ]
        if told:
            found.append((entry, told))
    if not found:
        return []
    note += _thinned_note(max(len(values) for _, values in found))
    columns = ("method", "seed", "client", "own", "own_accuracy", "against", "against_accuracy")
    return [Chart(name, title, note, _draw_gains(found), columns, rows)]


def _draw_gains(found: Sequence[tuple[Entry, list[Told]]]) -> Drawing:
    row, left = 58.0, _left([entry.label for entry, _ in found])
    low, high = span([0.0, *(v for _, values in found for v, _ in values)], least=2.0)
    drawing = Drawing(len(found) * row + 62)
    panel = Panel(left, 22, WIDTH - 76, 22 + len(found) * row, (low, high), (0, 1))
    drawing.add(*panel.across("change in accuracy of a client, points"))
    drawing.add(Line([(panel.x(0), 18), (panel.x(0), panel.bottom)], "muted", 1))
    drawing.add(Text(WIDTH, 12, "lose · same · gain", size=10.5, anchor="end"))
    for number, (entry, values) in enumerate(found):
        middle = 22 + (number + 0.5) * row
        drawing.add(
            Text(0, middle + 4, shortened(entry.label, SIZE, left - 10), series_role(entry.place), SIZE, bold=True)
        )
        swarm = Swarm.of(panel, thinned(values), middle, row / 2 - 4)
        drawing.add(*swarm.marks("faint", 1, lambda v: v == 0))
        drawing.add(*swarm.marks("s0", 0.85, lambda v: v > 0), *swarm.marks("s1", 0.95, lambda v: v < 0))
        lose, same, gain = share_below([v for v, _ in values], [0.0] * len(values))
        at = WIDTH
        for text, role in ((f"{gain}", "s0"), (f" {same} ", "muted"), (f"{lose}", "s1")):
            drawing.add(Text(at, middle + 4, text.strip(), role, SIZE, anchor="end", bold=role != "muted"))
            at -= 25
    return drawing


@kind("difference", "comparison")
def difference(comparison: Comparison) -> list[Chart]:
    """The difference to the baseline with its 95% interval, of every method and the first measure."""
    measure = comparison.headline
    if measure is None:
        return []
    others = [entry for entry in comparison.entries if entry is not comparison.baseline]
    tested = [(entry, comparison.difference(entry, measure)) for entry in others]
    found = [(entry, d) for entry, d in tested if isinstance(d, Difference)]
    if not found:
        return []
    row, left = 26.0, _left([entry.label for entry, _ in found])
    ends = [v for _, d in found for v in (0.0, d.mean, d.low, d.high) if v is not None]
    drawing = Drawing(len(found) * row + 56)
    panel = Panel(left, 14, WIDTH - 118, 14 + len(found) * row, span(ends, least=1.0, pad=0.08), (0, 1))
    drawing.add(*panel.across("percentage points", 4))
    drawing.add(Line([(panel.x(0), 6), (panel.x(0), panel.bottom)], "muted", 1))
    for number, (entry, d) in enumerate(found):
        middle, role = 14 + (number + 0.5) * row, series_role(entry.place)
        drawing.add(Text(0, middle + 4, shortened(entry.label, SIZE, left - 10), role, SIZE, bold=True))
        if d.low is not None and d.high is not None:
            drawing.add(Line([(panel.x(d.low), middle), (panel.x(d.high), middle)], role, 2))
        drawing.add(Dots([(panel.x(d.mean), middle, f"{entry.label}: {signed(d.mean)}")], role, 4, 1))
        drawing.add(Text(WIDTH, middle + 4, in_words(d), "ink", SIZE, anchor="end"))
    rows = [(e.label, comparison.baseline.label, measure, d.mean, d.low, d.high, d.pairs, d.over) for e, d in found]
    over = found[0][1]
    note = (
        f"Mean paired difference over {over.pairs} {over.over}, with Student's 95% interval. Away from the line: clear."
    )
    title = f"{title_of(measure).capitalize()}: difference to {comparison.baseline.label}"
    columns = ("method", "baseline", "measure", "difference", "low", "high", "pairs", "over")
    return [Chart("difference", title, note, drawing, columns, rows, measure)]


def signed(value: float) -> str:
    said = f"{value:+.1f}".replace("-", "−")
    return "0.0" if said in ("+0.0", "−0.0") else said


def in_words(d: Difference) -> str:
    """`+5.8 [4.1, 7.5]`."""
    if d.low is None or d.high is None:
        return f"{signed(d.mean)} (one pair)"
    return f"{signed(d.mean)} [{signed(d.low)}, {signed(d.high)}]"
