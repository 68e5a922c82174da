"""The report page: one HTML file that loads nothing else. All text from runs is escaped."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from torso import __version__
from torso.report.charts import KINDS, Chart, to_svg
from torso.report.charts.clients import in_words, signed
from torso.report.charts.palette import DARK, LIGHT, Palette
from torso.report.comparison import Comparison, Entry, differing_keys, flat, title_of
from torso.report.records import Record
from torso.report.rerun import command_of
from torso.report.statistics import Difference
from torso.report.summary import heading, sentences, setting

SECTIONS = {
    "rounds": "Over rounds",
    "clients": "Client by client",
    "cost": "What it costs",
    "data": "The data",
    "analyses": "Inside the models",
}
PER_METHOD = (
    "four-factors",
    "norms",
    "curves",
    "cross-client",
    "layers",
    "tsne",
)  # kinds with one chart for each method


def asset(name: str) -> str:
    """The text of a file in templates/."""
    return files("torso.report").joinpath("templates", name).read_text(encoding="utf-8")


def render(template: str, script: str, styles: Iterable[str], **values: Any) -> str:
    """A filled template with its script and styles inside. The page's security policy allows only this script, which it
    names by its hash."""
    code = asset(script)
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    environment = Environment(
        loader=DictLoader({template: asset(template)}),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        script=Markup(code), script_hash=digest, style=Markup(theme() + "".join(map(asset, styles))), **values
    )


def theme() -> str:
    """The palette as CSS: light colours, dark ones if the system or the reader asks for them, and chart classes."""

    def variables(palette: Palette) -> str:
        return "".join(f"--{role}:{colour};" for role, colour in palette.items())

    classes = "".join(f".f-{role}{{fill:var(--{role})}}.s-{role}{{fill:none;stroke:var(--{role})}}" for role in LIGHT)
    return (
        f":root{{color-scheme:light;{variables(LIGHT)}}}"
        f"@media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{variables(DARK)}}}}}"
        f":root[data-theme=dark]{{color-scheme:dark;{variables(DARK)}}}{classes}\n"
    )


def build_page(comparison: Comparison, command: str = "") -> str:
    """The page as HTML. `command`: the command line that makes it again, for the footer."""
    charts = {name: kind.make(comparison) for name, kind in KINDS.items()}
    every = [chart for made in charts.values() for chart in made]
    numbered = [(f"chart-{i}", chart) for i, chart in enumerate(every)]
    places = {id(chart): name for name, chart in numbered}

    def shown(chart: Chart) -> dict[str, Any]:
        label = f"{chart.title}. {chart.note}"
        return {"id": places[id(chart)], "chart": chart, "svg": Markup(to_svg(chart.drawing, label))}

    def groups_of(section: str) -> list[dict[str, Any]]:
        methods = len(comparison.entries)
        return [
            _group(kind, [shown(chart) for chart in made], methods)
            for kind, made in charts.items()
            if KINDS[kind].section == section and made
        ]

    sections = [(name, title, groups_of(name)) for name, title in SECTIONS.items()]
    data = {
        "csv": {name: packed(as_csv(chart)) for name, chart in numbered},
        "differences": _all_differences(comparison),
    }
    return render(
        "report.html",
        "report.js",
        ["base.css", "report.css"],
        heading=heading(comparison),
        setting=setting(comparison),
        sentences=sentences(comparison),
        notes=[*comparison.notes(), *_undrawn(comparison, charts)],
        comparison=comparison,
        columns=[(name, title_of(name)) for name in comparison.measures],
        table=[_table_row(comparison, entry) for entry in comparison.entries],
        differences=[shown(chart) for chart in charts["difference"]],
        sections=[(name, title, made) for name, title, made in sections if made],
        runs=[_run_row(entry, run) for entry in comparison.entries for run in entry.runs],
        varied=_varied(comparison),
        data=Markup(json_in_html(data)),
        command=command,
        version=__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _group(kind: str, shown: list[dict[str, Any]], methods: int) -> dict[str, Any]:
    """The charts of a kind. Kinds with one chart for each method are folded, and closed if there are many methods."""
    folded = kind in PER_METHOD
    return {"about": KINDS[kind].about, "shown": shown, "folded": folded, "open": methods <= 3}


def json_in_html(tree: Any) -> str:
    """JSON that is safe inside an HTML script element: `&`, `<` and `>` are written as escapes."""
    text = json.dumps(tree, separators=(",", ":"), ensure_ascii=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def packed(text: str) -> str:
    """The text compressed, as base64: otherwise the data behind the charts would be most of the page."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def as_csv(chart: Chart) -> str:
    """The data behind a chart as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(chart.columns)
    writer.writerows([_csv_cell(value) for value in row] for row in chart.rows)
    return out.getvalue()


def _csv_cell(value: Any) -> Any:
    """A value for a CSV file: six digits, "" for NaN and None, and a quote before text that looks like a formula."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@"):
        return f"'{value}"
    return "" if value is None else value


def _table_row(comparison: Comparison, entry: Entry) -> dict[str, Any]:
    """A row of the comparison table: one method, with a cell for each measure."""
    cells = []
    for measure in comparison.measures:
        scores = entry.pooled(measure)
        cells.append(
            {
                "sort": "" if scores is None else scores.mean,
                "mean": "–" if scores is None else f"{scores.mean:.1f}",
                "std": f"± {scores.std:.1f}" if scores and scores.n > 1 else "",
                "difference": difference_cell(comparison, entry, measure, comparison.baseline),
                "measure": measure,
            }
        )
    return {"entry": entry, "cells": cells, "megabytes": entry.megabytes, "seconds": entry.seconds}


def difference_cell(comparison: Comparison, entry: Entry, measure: str, baseline: Entry) -> dict[str, Any]:
    """The text below a mean: the difference to the baseline with its interval, or the reason why there is none."""
    if entry is baseline:
        return {"text": "baseline", "why": "", "sure": False}
    d = comparison.difference(entry, measure, baseline)
    if not isinstance(d, Difference):
        return {"text": "" if d.reason == "not measured" else "not tested", "why": d.reason, "sure": False}
    seeds = ", ".join(signed(v) for v in d.by_seed)
    return {"text": in_words(d), "why": f"{d.pairs} paired {d.over}; by seed {seeds}", "sure": d.clear}


def _all_differences(comparison: Comparison) -> dict[str, Any]:
    """The differences for every choice of baseline, as baseline → method → measure (by place), because the reader may
    choose another baseline on the page."""
    return {
        str(b.place): {
            str(e.place): {m: difference_cell(comparison, e, m, b) for m in comparison.measures}
            for e in comparison.entries
        }
        for b in comparison.entries
    }


def _run_row(entry: Entry, run: Record) -> dict[str, Any]:
    """A row of the table of runs."""
    memory = run.result.get("peak_memory_bytes")
    versions = run.result.get("versions")
    return {
        "label": entry.label,
        "run": run,
        "command": command_of(run),
        "done": run.history[-1]["round"] if run.history else None,
        "memory": memory / 2**20 if isinstance(memory, int | float) else None,
        "versions": versions if isinstance(versions, dict) else {},
        "toml": run.toml,
    }


def _varied(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """(key, its value in each entry) of config keys that differ between entries, and so may explain a difference."""
    firsts = [entry.runs[0] for entry in comparison.entries]
    trees = [flat(run.config) for run in firsts]
    keys = [key for key in differing_keys(firsts) if key != "method.name"]
    return [(key, [_short(tree.get(key)) for tree in trees]) for key in keys]


def _short(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return ", ".join(str(v.get("part", v)) for v in value)
    return "–" if value is None else str(value)


# analysis → the kind of chart that draws it
_DRAWN_AS = {
    "class_counts": "partition",
    "four_factors": "four-factors",
    "norms": "norms",
    "layer_similarity": "layers",
    "class_curves": "curves",
    "cross_client": "cross-client",
    "tsne": "tsne",
    "drift_variance": "drift",
    "regularization": "regularization",
}


def _undrawn(comparison: Comparison, charts: dict[str, list[Chart]]) -> list[str]:
    """A note for each analysis that a run has but no chart could draw."""
    found = []
    for key, kind in _DRAWN_AS.items():
        holders = [entry for entry in comparison.entries if any(run.analyses.get(key) for run in entry.good)]
        for entry in holders:
            drawn = bool(charts[kind])
            if kind in PER_METHOD:
                drawn = any(chart.of.startswith(entry.label) for chart in charts[kind])
            if not drawn:
                found.append(f"{entry.label}: {key} in analyses.json does not have the expected shape: not drawn.")
    return found
