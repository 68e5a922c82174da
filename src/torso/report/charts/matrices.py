"""Charts of matrices: classes by client, the four factors, models on other clients, layers during fine-tuning."""

from __future__ import annotations

from typing import Any

import numpy as np

from torso.report.charts.base import Chart, kind
from torso.report.charts.drawing import WIDTH, Dots, nice, span
from torso.report.charts.heat import Heat, Matrix, Ramp, even_indices, matrix, numbered
from torso.report.charts.panels import Axis, Panel, Plot, room_for
from torso.report.comparison import Comparison, Entry
from torso.report.records import Record

MOST_CLIENTS = 200  # columns of the partition chart


def analysed(comparison: Comparison, key: str) -> list[tuple[Entry, Record, Any]]:
    """(entry, run, analysis) for the first good run of each entry that has an analysis with this name."""
    found = []
    for entry in comparison.entries:
        run = next((run for run in entry.good if run.analyses.get(key)), None)
        if run is not None:
            found.append((entry, run, run.analyses[key]))
    return found


def of_seed(entry: Entry, run: Record) -> str:
    """The entry's label, with the seed of the run if there are several."""
    return f"{entry.label}, seed {run.seed}" if len(entry.runs) > 1 else entry.label


def _called(run: Record, clients: list[Any]) -> list[Any]:
    """The names of clients that are given by number; their numbers if the run has no names."""
    known = run.result.get("names")
    every = run.client_names(len(known)) if isinstance(known, list) else []
    return [every[k] if isinstance(k, int) and 0 <= k < len(every) else k for k in clients]


def _short(name: str, most: int = 18) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


@kind("partition", "data")
def partition(comparison: Comparison) -> list[Chart]:
    """The training data as a heat map: samples of each class and client."""
    charts: list[Chart] = []
    seen: list[tuple[Any, Any]] = []  # several methods usually share the same data: one chart is enough
    for entry, run, counts in analysed(comparison, "class_counts"):
        table = matrix(counts)
        what = (run.dataset, counts)
        if table is None or not np.isfinite(table).all() or what in seen:
            continue
        seen.append(what)
        order = np.lexsort((-table.max(axis=1), table.argmax(axis=1)))
        drawn = table[order[even_indices(len(order), MOST_CLIENTS)]].T
        height = min(300.0, max(120.0, 17.0 * len(drawn)))
        clients, classes = run.client_names(len(table)), [_short(str(name)) for name in run.class_names(table.shape[1])]
        panel = Panel(
            *(max(40, room_for(classes, 11)), 22, WIDTH - 6, 22 + height, (0, drawn.shape[1]), (len(drawn), 0)),
            across=Axis(f"{len(order):,} clients, ordered by their largest class", named=()),
            up=Axis("class", size=11, named=numbered(len(drawn), height, classes)),
            marks=[Heat(drawn, Ramp(0, float(table.max())), blank=0, legend="samples")],
        )
        every = run.class_names(table.shape[1])
        rows = [(clients[k], every[c], int(n)) for k, row in enumerate(table) for c, n in enumerate(row)]
        note = f"Training samples by class and client ({run.dataset}, seed {run.seed}). Empty: none."
        if len(order) > MOST_CLIENTS:
            note += f" {MOST_CLIENTS} of the clients are drawn, evenly."
        drawn_as = Chart(
            "partition",
            "Who holds which classes",
            note,
            Plot(height + 78, [panel]),
            ("client", "class", "samples"),
            rows,
            of_seed(entry, run),
        )
        charts.append(drawn_as)
        if len(charts) == 3:
            break
    return charts


@kind("four-factors", "analyses")
def four_factors(comparison: Comparison) -> list[Chart]:
    """Similarity of class weights, of class features, within a class, and of weights with features."""
    charts = []
    for entry, run, found in analysed(comparison, "four_factors"):
        if not isinstance(found, dict):
            continue
        pair = [matrix(found.get(key)) for key in ("weight_similarity", "inter_class")]
        each = [matrix(found.get(key), 1) for key in ("intra_class", "alignment")]
        squares = [
            (name, m)
            for name, m in zip(("between class weights", "between class features"), pair, strict=True)
            if m is not None
        ]
        strips = [
            (name, v) for name, v in zip(("within a class", "weight with feature"), each, strict=True) if v is not None
        ]
        if not squares and not strips:
            continue
        summary = found.get("summary") if isinstance(found.get("summary"), dict) else {}
        said = ", ".join(
            f"{key.replace('_', ' ')} {nice(v)}" for key, v in (summary or {}).items() if isinstance(v, int | float)
        )
        drawn = max((len(even_indices(len(m))) for _, m in squares), default=0)
        classes = max((len(m) for _, m in squares), default=0)
        part = f" {drawn} of {classes} classes are drawn, evenly." if drawn < classes else ""
        note = f"Cosines, class by class{f'. Means: {said}' if said else ''}." + part
        wide = max([m.shape[1] for _, m in squares] + [len(v) for _, v in strips])
        rows = [(name, i, *_row(line, wide)) for name, m in squares for i, line in enumerate(m)]
        rows += [(name, "", *_row(v, wide)) for name, v in strips]
        charts.append(
            Chart(
                "four-factors",
                f"Four factors: {of_seed(entry, run)}",
                note,
                _draw_factors(squares, strips),
                ("factor", "class", *(f"class_{c}" for c in range(wide))),
                rows,
                entry.label,
            )
        )
    return charts


def _row(values: Matrix, wide: int, digits: int = 3) -> list[float | str]:
    """A line of a table of data, filled with "" up to `wide` values."""
    return [*(round(float(v), digits) for v in values), *[""] * (wide - len(values))]


def _draw_factors(squares: list[tuple[str, Matrix]], strips: list[tuple[str, Matrix]]) -> Plot:
    side = 200.0
    plot = Plot((side + 72 if squares else 0) + (130 if strips else 0))
    for number, (name, m) in enumerate(squares):
        left = 28 + number * (WIDTH / 2)
        some = np.ix_(even_indices(len(m)), even_indices(m.shape[1]))
        plot.panels.append(
            Panel(
                *(left, 24, left + side, 24 + side, (0, m.shape[1]), (len(m), 0)),
                up=Axis(size=10.5, named=numbered(len(m), side)),
                marks=[Heat(m[some], Ramp(-1, 1, "d"), legend="" if number else "cosine")],
                title=name,
            )
        )
    top = side + 94 if squares else 24
    for number, (name, v) in enumerate(strips):
        left = 28 + number * (WIDTH / 2)
        dots = [(c, x, f"{c}: {x:.2f}") for c, x in enumerate(v.tolist()) if np.isfinite(x)]
        plot.panels.append(
            Panel(
                *(left, top, left + side, top + 66, (-0.5, len(v) - 0.5), span([*v.tolist(), 1.0, 0.0], pad=0.02)),
                across=Axis("class", 5, True, 10.5),
                up=Axis("", 2, size=10.5),
                marks=[Dots(dots, "s0", 3, 1)],
                title=name,
            )
        )
    return plot


@kind("cross-client", "analyses")
def cross_client(comparison: Comparison) -> list[Chart]:
    """The accuracy of every client's model on every client's mix of classes."""
    charts = []
    for entry, run, found in analysed(comparison, "cross_client"):
        table = matrix(found.get("accuracy")) if isinstance(found, dict) else None
        if table is None:
            continue
        names = found.get("clients") if isinstance(found.get("clients"), list) else list(range(len(table)))
        names = names if len(names) == len(table) else list(range(len(table)))
        names = _called(run, names)
        side, left, some = 320.0, 70.0, even_indices(len(table))
        drawn = table[np.ix_(some, even_indices(table.shape[1]))]
        named = numbered(len(some), side, [names[i] for i in some])
        panel = Panel(
            *(left, 22, left + side, 22 + side, (0, drawn.shape[1]), (len(drawn), 0)),
            across=Axis("on the class mix of client", size=10.5, named=named),
            up=Axis("model of client", size=10.5, named=named),
            marks=[Heat(drawn, Ramp(0, 100), legend="accuracy, %")],
        )
        wide = table.shape[1]
        rows = [(name, *_row(line, wide, 1)) for name, line in zip(names, table, strict=True)]
        note = "If only the diagonal stands out, each model serves only its own client."
        if len(some) < len(table):
            note += f" {len(some)} of {len(table)} clients are drawn, evenly."
        charts.append(
            Chart(
                "cross-client",
                f"Models on other clients: {of_seed(entry, run)}",
                note,
                Plot(side + 82, [panel]),
                ("model_of", *(f"on_mix_of_{names[j] if j < len(names) else j}" for j in range(wide))),
                rows,
                entry.label,
            )
        )
    return charts


@kind("layers", "analyses")
def layers(comparison: Comparison) -> list[Chart]:
    """Cosine similarity between the clients' weights, layer by layer, during fine-tuning."""
    charts = []
    for entry, run, found in analysed(comparison, "layer_similarity"):
        table = matrix(found.get("cosine")) if isinstance(found, dict) else None
        names, epochs = (found.get("layers"), found.get("epochs")) if isinstance(found, dict) else (None, None)
        if (
            table is None
            or not isinstance(names, list)
            or not isinstance(epochs, list)
            or table.shape != (len(epochs), len(names))
        ):
            continue
        left = room_for(map(str, names), 11)
        row = 18.0
        high, wide = row * len(names), WIDTH - left - 8
        panel = Panel(
            *(left, 8, WIDTH - 8, 8 + high, (0, len(epochs)), (len(names), 0)),
            across=Axis("epochs of fine-tuning", size=11, named=numbered(len(epochs), wide, epochs)),
            up=Axis(size=11, named=tuple((i + 0.5, str(name)) for i, name in enumerate(names))),
            marks=[Heat(table.T, Ramp.from_least(table), legend="cosine")],
        )
        rows = [(e, name, round(float(table[i, j]), 5)) for i, e in enumerate(epochs) for j, name in enumerate(names)]
        note = "Mean cosine between the clients' weights of a layer. A layer whose cosine falls becomes personal."
        charts.append(
            Chart(
                "layers",
                f"Layers during fine-tuning: {of_seed(entry, run)}",
                note,
                Plot(high + 76, [panel]),
                ("epoch", "layer", "cosine"),
                rows,
                entry.label,
            )
        )
    return charts
