"""Charts of analyses as lines or points: norms, seen and unseen classes, drift, regularisation, t-SNE."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torso.report.charts.base import Chart, kind
from torso.report.charts.drawing import WIDTH, Line, Words, accuracy_span, span
from torso.report.charts.heat import Matrix, even_indices, matrix
from torso.report.charts.lines import LineOptions, Series, draw_lines
from torso.report.charts.matrices import analysed, of_seed
from torso.report.charts.palette import series_role
from torso.report.charts.panels import Axis, End, Panel, Plot, room_for
from torso.report.comparison import Comparison

MOST_POINTS = 500  # of a t-SNE chart; of more, these many are drawn
_NORMS = {
    "local_seen": "local, seen",
    "local_unseen": "local, unseen",
    "global": "global",
}


def _series(found: Any, x: str, y: str, label: str, place: int) -> Series | None:
    """Two lists of the same length as a line; None if they are missing or do not fit. Nulls are left out."""
    if not isinstance(found, dict):
        return None
    xs, ys = matrix(found.get(x), 1), matrix(found.get(y), 1)
    if xs is None or ys is None or len(xs) != len(ys):
        return None
    pairs = [(float(a), float(b)) for a, b in zip(xs, ys, strict=True) if math.isfinite(a) and math.isfinite(b)]
    return Series(label, place, tuple(a for a, _ in pairs), tuple(b for _, b in pairs)) if pairs else None


def _rows(series: list[Series]) -> list[tuple[Any, ...]]:
    return [(s.label, x, y) for s in series for x, y in zip(s.xs, s.ys, strict=True)]


@kind("norms", "analyses")
def norms(comparison: Comparison) -> list[Chart]:
    """Norms of class weights and of features per round, for seen and unseen classes."""
    charts = []
    for entry, run, found in analysed(comparison, "norms"):
        for what in ("weight", "feature"):
            made = [
                _series(found, "rounds", f"{key}_{what}", label, i) for i, (key, label) in enumerate(_NORMS.items())
            ]
            series = [s for s in made if s]
            if not series:
                continue
            plot = draw_lines(
                series,
                LineOptions(
                    "round",
                    f"norm of class {what}s" if what == "weight" else "norm of features",
                    False,
                    True,
                    height=260,
                ),
            )
            note = (
                "Seen: classes of which a client has samples; unseen: the others. Local: after a client's training; "
                "global: on the server."
            )
            title = f"{what.capitalize()} norms: {of_seed(entry, run)}"
            charts.append(
                Chart("norms", title, note, plot, ("norm", "round", "value"), _rows(series), f"{entry.label} {what}")
            )
    return charts


@dataclass(frozen=True)
class _ClassCurves:
    """Accuracies during the local training of R rounds with E epochs each."""

    rounds: Matrix  # [R]
    epochs: Matrix  # [E]
    tables: Mapping[str, Matrix]  # [R, E]: of the seen and of the unseen classes

    @classmethod
    def of(cls, found: Any) -> _ClassCurves | None:
        """The curves of an entry of analyses.json; None if it has none that fit together."""
        if not isinstance(found, dict):
            return None
        rounds, epochs = matrix(found.get("rounds"), 1), matrix(found.get("epochs"), 1)
        if rounds is None or epochs is None:
            return None
        shape = (len(rounds), len(epochs))
        tables = {key: matrix(found.get(key)) for key in ("seen", "unseen")}
        known = {key: table for key, table in tables.items() if table is not None and table.shape == shape}
        return cls(rounds, epochs, known) if known else None

    def panel(self) -> Panel:
        """The curves as strokes, one for each round."""
        rounds, epochs = self.rounds, self.epochs
        gap = float(min(b - a for a, b in pairwise(rounds))) if len(rounds) > 1 else 1.0
        reach = 0.8 * gap / max(float(epochs[-1] - epochs[0]), 1e-9)  # width of an epoch, in rounds
        panel = Panel(
            *(40, 30, WIDTH - room_for(self.tables), 238),
            (float(rounds[0]), float(rounds[-1]) + 0.8 * gap),
            accuracy_span(v for table in self.tables.values() for v in table.flat),
            across=Axis("round, and the epochs of its local training", whole=True),
            up=Axis("accuracy, %", 4),
        )
        for place, (key, table) in enumerate(self.tables.items()):
            strokes = []
            for r, values in zip(rounds, table, strict=True):
                known = [(e, v) for e, v in zip(epochs, values, strict=True) if math.isfinite(v)]
                if len(known) > 1:
                    strokes.append([(float(r + (e - epochs[0]) * reach), float(v)) for e, v in known])
            role = series_role(place)
            for number, points in enumerate(strokes):
                panel.add(Line(points, role, 2, label="" if number else key))  # one entry in a legend
            if strokes:
                panel.ends.append(End(*strokes[-1][-1], key, role))
        return panel

    def rows(self) -> list[tuple[Any, ...]]:
        return [
            (key, r, e, v)
            for key, table in self.tables.items()
            for r, line in zip(self.rounds, table, strict=True)
            for e, v in zip(self.epochs, line, strict=True)
        ]


@kind("curves", "analyses")
def curves(comparison: Comparison) -> list[Chart]:
    """Accuracy on seen and unseen classes, epoch by epoch of local training."""
    charts = []
    for entry, run, found in analysed(comparison, "class_curves"):
        shown = _ClassCurves.of(found)
        if shown is None:
            continue
        note = (
            "Each stroke is the local training of one round. Seen: a client's own classes, which it learns. Unseen: "
            "the others, which it forgets."
        )
        charts.append(
            Chart(
                "curves",
                f"Learning and forgetting: {of_seed(entry, run)}",
                note,
                Plot(280, [shown.panel()]),
                ("classes", "round", "epoch", "accuracy"),
                shown.rows(),
                entry.label,
            )
        )
    return charts


def _across_methods(
    comparison: Comparison, key: str, field: str, title: str, label: str, note: str, name: str, percent: bool = False
) -> list[Chart]:
    """A chart with one line for each method: the numbers `field` of the analysis `key`, by round."""
    made = [_series(found, "rounds", field, entry.label, entry.place) for entry, _, found in analysed(comparison, key)]
    series = [s for s in made if s]
    if not series:
        return []
    plot = draw_lines(series, LineOptions("round", label, percent, True, height=260))
    return [Chart(name, title, note, plot, ("method", "round", field), _rows(series), field)]


@kind("drift", "analyses")
def drift(comparison: Comparison) -> list[Chart]:
    """How far the participants' models differ from each other, and how good each is as a generic model."""
    apart = "Mean squared distance of the participants' models from their mean, per round."
    good = "A participant's model after its training, on the test data of all clients, before the server averages."
    return [
        *_across_methods(comparison, "drift_variance", "variance", "Drift", "variance of local models", apart, "drift"),
        *_across_methods(
            comparison,
            "drift_variance",
            "local_generic",
            "Local models as generic models",
            "accuracy, %",
            good,
            "drift",
            True,
        ),
    ]


@kind("regularization", "analyses")
def regularization(comparison: Comparison) -> list[Chart]:
    """The loss of the regulariser, and the distance of the clients' models from the server's."""
    note = "One value for each round."
    return [
        *_across_methods(
            comparison, "regularization", "loss", "Regularisation", "regularisation loss", note, "regularization"
        ),
        *_across_methods(
            comparison, "regularization", "distance", "Distance from the server", "distance", note, "regularization"
        ),
    ]


@kind("tsne", "analyses")
def tsne(comparison: Comparison) -> list[Chart]:
    """Features in two dimensions (t-SNE), each point drawn as its class number."""
    charts = []
    for entry, run, found in analysed(comparison, "tsne"):
        if not isinstance(found, dict):
            continue
        x, y, label = (matrix(found.get(key), 1) for key in ("x", "y", "label"))
        if x is None or y is None or label is None or not len(x) == len(y) == len(label):
            continue
        coarse = matrix(found.get("coarse"), 1)
        shade = coarse if coarse is not None and len(coarse) == len(x) else label
        panel = Panel(10, 10, WIDTH - 10, 390, span(x.tolist()), span(y.tolist()))
        some = even_indices(len(x), MOST_POINTS)
        by_role: dict[str, list[tuple[float, float, str]]] = {}
        for i in some:
            spot = (float(x[i]), float(y[i]), f"{int(label[i])}")
            by_role.setdefault(series_role(int(shade[i]) % 8), []).append(spot)
        panel.add(*(Words(spots, role, 9) for role, spots in sorted(by_role.items())))
        note = "Features of test samples. A number is a sample's class."
        if shade is coarse:
            note += " Colours are superclasses."
        if len(some) < len(x):
            note += f" {len(some):,} of {len(x):,} samples are drawn."
        rows = [(a, b, int(c)) for a, b, c in zip(x.round(3), y.round(3), label, strict=True)]
        charts.append(
            Chart(
                "tsne",
                f"Features (t-SNE): {of_seed(entry, run)}",
                note,
                Plot(400, [panel]),
                ("x", "y", "label"),
                rows,
                entry.label,
            )
        )
    return charts
