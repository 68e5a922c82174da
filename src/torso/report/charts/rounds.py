"""Charts over rounds, over megabytes, time and compute, and over epochs of fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torso.report.charts.base import Chart, kind
from torso.report.charts.lines import LineOptions, Series, draw_lines, draw_multiples
from torso.report.comparison import Comparison, Entry, scale_of, title_of
from torso.report.records import Record, Scores

Axis = Callable[[Record, Mapping[str, Any]], float | None]
"""(run, a line of its history) → the place of this line on the horizontal axis; None if the line does not say."""


def by_round(_: Record, line: Mapping[str, Any]) -> float | None:
    return float(line["round"])


def by_megabytes(_: Record, line: Mapping[str, Any]) -> float | None:
    up, down = line.get("bytes_up"), line.get("bytes_down")
    return (up + down) / 1e6 if isinstance(up, int) and isinstance(down, int) else None


def by_passes(_: Record, line: Mapping[str, Any]) -> float | None:
    found = line.get("forward_passes")
    return float(found) if isinstance(found, int) else None


def by_hours(_: Record, line: Mapping[str, Any]) -> float | None:
    found = line.get("hours")
    return float(found) if isinstance(found, float | int) and math.isfinite(found) else None


def course(run: Record, measure: str, axis: Axis) -> dict[int, tuple[float, Scores]]:
    """Round → (place on the axis, scores) of a run, including its final measurement if it has one."""
    found: dict[int, tuple[float, Scores]] = {}
    for line in run.history:
        accuracy = line.get("accuracy")
        scores = Scores.parse(accuracy[measure]) if isinstance(accuracy, Mapping) and measure in accuracy else None
        x = axis(run, line)
        if scores is not None and scores.known and x is not None:
            found[line["round"]] = (x, scores)
    cost = run.result.get("cost")
    last = {**(cost if isinstance(cost, Mapping) else {}), "round": run.rounds}
    if run.ok and measure in run.accuracy and run.rounds and (x := axis(run, last)) is not None:
        found[run.rounds] = (x, run.accuracy[measure])
    return found


def curve(entry: Entry, measure: str, axis: Axis) -> Series | None:
    """The mean over seeds, at the rounds that every seed has measured. Runs that failed count only if all did."""
    courses = [c for run in (entry.good or entry.runs) if (c := course(run, measure, axis))]
    shared = sorted(set.intersection(*(set(c) for c in courses))) if courses else []
    if not shared:
        return None

    def mean(take: Callable[[tuple[float, Scores]], float]) -> tuple[float, ...]:
        return tuple(sum(take(c[r]) for c in courses) / len(courses) for r in shared)

    label = entry.label if entry.good else f"{entry.label} (not finished)"
    spread = any(c[r][1].n > 1 for c in courses for r in shared)
    low = mean(lambda p: p[1].band[0]) if spread else ()
    high = mean(lambda p: p[1].band[1]) if spread else ()
    return Series(label, entry.place, mean(lambda p: p[0]), mean(lambda p: p[1].mean), low, high)


def during(comparison: Comparison) -> list[str]:
    """The measures that were taken during training."""
    found: dict[str, None] = {}
    for run in comparison.runs:
        for line in run.history:
            if isinstance(line.get("accuracy"), Mapping):
                found |= dict.fromkeys(map(str, line["accuracy"]))
    return list(found)


def _curves(comparison: Comparison, measure: str, axis: Axis) -> list[Series]:
    return [found for entry in comparison.entries if (found := curve(entry, measure, axis))]


def _rows(series: list[Series]) -> list[tuple[Any, ...]]:
    return [
        (s.label, x, y, *((s.low[i], s.high[i]) if s.low else ("", "")))
        for s in series
        for i, (x, y) in enumerate(zip(s.xs, s.ys, strict=True))
    ]


BAND = "the band is the middle half of the clients (mean ± std if no quantiles were recorded), averaged over seeds"


@kind("rounds", "rounds")
def rounds(comparison: Comparison) -> list[Chart]:
    """Accuracy per round, with a band over clients if there are at most three methods."""
    charts = []
    for measure in during(comparison):
        series = _curves(comparison, measure, by_round)
        if not series:
            continue
        few = len(series) <= 3
        look = LineOptions("round", f"{scale_of(measure)}, %", whole=True, bands=few)
        note = f"Mean over clients; {BAND}." if few else "Mean over clients, averaged over seeds."
        name = ("method", "round", "mean", "band_low", "band_high")
        charts.append(
            Chart(
                "rounds",
                f"{scale_of(measure).capitalize()} per round",
                note,
                draw_lines(series, look),
                name,
                _rows(series),
                measure,
            )
        )
    return charts


@kind("bands", "rounds")
def bands(comparison: Comparison) -> list[Chart]:
    """Accuracy per round with a band over clients, in one panel for each method; the other methods are faint."""
    charts = []
    for measure in during(comparison):
        series = _curves(comparison, measure, by_round)
        if len(series) <= 3 or not any(s.low for s in series):
            continue
        look = LineOptions("round", f"{scale_of(measure)}, %", whole=True)
        name = ("method", "round", "mean", "band_low", "band_high")
        title = f"How far apart the clients are: {title_of(measure)}"
        plot = draw_multiples(series, look)
        charts.append(Chart("bands", title, f"{BAND.capitalize()}.", plot, name, _rows(series), measure))
    return charts


def _means(comparison: Comparison, of: Callable[[Record], Mapping[int, float]]) -> list[Series]:
    """A line for each method: a number of each round, averaged over seeds, at the rounds that all seeds have. `of`: a
    run's numbers by round."""
    series = []
    for entry in comparison.entries:
        runs = [of(run) for run in (entry.good or entry.runs)]
        shared = sorted(set.intersection(*(set(r) for r in runs))) if runs else []
        if shared:
            ys = tuple(sum(h[r] for h in runs) / len(runs) for r in shared)
            label = entry.label if entry.good else f"{entry.label} (not finished)"
            series.append(Series(label, entry.place, tuple(map(float, shared)), ys))
    return series


def _losses(run: Record) -> dict[int, float]:
    known = {line["round"]: line.get("loss") for line in run.history}
    return {r: float(v) for r, v in known.items() if isinstance(v, float | int) and math.isfinite(v)}


def _of_rounds(name: str, title: str, note: str, series: list[Series], look: LineOptions, column: str) -> list[Chart]:
    """The chart of these lines over rounds; no chart if there are none."""
    rows = [row[:3] for row in _rows(series)]
    return [Chart(name, title, note, draw_lines(series, look), ("method", "round", column), rows)] if series else []


@kind("loss", "rounds")
def loss(comparison: Comparison) -> list[Chart]:
    """Mean training loss of a round's participants."""
    look = LineOptions("round", "training loss", percent=False, whole=True)
    note = "Mean over the participants of each round."
    return _of_rounds("loss", "Training loss", note, _means(comparison, _losses), look, "loss")


def _spent(run: Record) -> dict[int, float]:
    """The ε of a private run up to each round."""
    found = {}
    for line in run.history:
        privacy = line.get("privacy")
        epsilon = privacy.get("epsilon") if isinstance(privacy, Mapping) else None
        if isinstance(epsilon, float | int) and math.isfinite(epsilon):
            found[line["round"]] = float(epsilon)
    return found


@kind("epsilon", "rounds")
def epsilon(comparison: Comparison) -> list[Chart]:
    """ε that private runs have spent up to each round."""
    look = LineOptions("round", "ε so far", percent=False, whole=True)
    note = "Limit on what an observer of all models up to a round can learn about one client, at the δ of the run."
    return _of_rounds("epsilon", "Privacy spent", note, _means(comparison, _spent), look, "epsilon")


def _heard(run: Record) -> dict[int, float]:
    """The percentage of each round's selected clients whose answer the server received."""
    found = {}
    for line in run.history:
        came, missing = line.get("participants"), line.get("missing", [])
        if isinstance(came, list) and isinstance(missing, list) and came:
            found[line["round"]] = 100 * len(came) / (len(came) + len(missing))
    return found


@kind("heard", "rounds")
def heard(comparison: Comparison) -> list[Chart]:
    """Share of the selected clients that answered, if some did not."""
    series = _means(comparison, _heard)
    if all(share == 100 for each in series for share in each.ys):
        return []
    look = LineOptions("round", "clients that answered, %", whole=True)
    note = "Share of a round's selected clients. history.jsonl names the others, with the reason if it is known."
    return _of_rounds("heard", "Clients that answered", note, series, look, "percent")


def _ages(run: Record) -> dict[int, float]:
    """The mean staleness of each round's uploads."""
    known = {line["round"]: line.get("staleness") for line in run.history}
    found = {r: v for r, v in known.items() if isinstance(v, list) and v and all(type(age) is int for age in v)}
    return {r: sum(ages) / len(ages) for r, ages in found.items()}


@kind("staleness", "rounds")
def staleness(comparison: Comparison) -> list[Chart]:
    """Age of the uploads in asynchronous training."""
    look = LineOptions("step of the server", "mean staleness", percent=False, whole=True)
    note = "Mean number of server steps between sending a client its model and using its upload."
    return _of_rounds("staleness", "Age of the uploads", note, _means(comparison, _ages), look, "staleness")


def _against(comparison: Comparison, name: str, title: str, axis: Axis, label: str, note: str) -> list[Chart]:
    """The chart of accuracy against a cost: the headline measure if it was taken during training, else the first that
    was, else the headline's final value."""
    known = during(comparison)
    measure = next((m for m in (comparison.headline, *known) if m in known), None)
    wanted = measure or comparison.headline
    if wanted is None:
        return []
    series = _curves(comparison, wanted, axis)
    if not series or max(x for s in series for x in s.xs) == 0:
        return []
    few = sum(len(s.xs) for s in series) < 80
    look = LineOptions(label, f"{scale_of(wanted)}, %", bands=False, dots=few, from_zero=True)
    columns = ("method", name, "mean", "band_low", "band_high")
    return [Chart(name, title, note, draw_lines(series, look), columns, _rows(series), wanted)]


@kind("megabytes", "cost")
def megabytes(comparison: Comparison) -> list[Chart]:
    """Accuracy against megabytes, of all clients in both directions."""
    note = "Serialised bytes of all clients, up and down. Higher and further left is better."
    return _against(comparison, "megabytes", "Accuracy against communication", by_megabytes, "megabytes sent", note)


@kind("hours", "cost")
def hours(comparison: Comparison) -> list[Chart]:
    """Accuracy against simulated hours, if clients have speeds."""
    note = "Simulated hours (run.speeds). A synchronous round lasts as long as its slowest participant."
    return _against(comparison, "hours", "Accuracy against time", by_hours, "simulated hours", note)


@kind("compute", "cost")
def compute(comparison: Comparison) -> list[Chart]:
    """Accuracy against compute, in forward passes of one sample."""
    note = "Forward passes of one sample through the whole network, over all clients."
    return _against(comparison, "compute", "Accuracy against compute", by_passes, "forward passes", note)


@kind("speed", "cost")
def speed(comparison: Comparison) -> list[Chart]:
    """Personalised accuracy against epochs of fine-tuning."""
    series = []
    for entry in comparison.entries:
        sweep = sorted((int(n[13:]), n) for n in entry.measures if n.startswith("personalized@") and n[13:].isdigit())
        found = [(float(e), s) for e, name in sweep if (s := entry.pooled(name))]
        if found:
            xs, scores = zip(*found, strict=True)
            low, high = zip(*(s.band for s in scores), strict=True)
            series.append(Series(entry.label, entry.place, xs, tuple(s.mean for s in scores), low, high))
    if not series:
        return []
    look = LineOptions(
        "epochs of fine-tuning", "personalised accuracy, %", whole=True, bands=len(series) <= 3, dots=True
    )
    columns = ("method", "epochs", "mean", "band_low", "band_high")
    note = "Accuracy after each number of epochs on a client's own data. Mean over the clients of all seeds."
    return [Chart("speed", "How fast clients personalise", note, draw_lines(series, look), columns, _rows(series))]
