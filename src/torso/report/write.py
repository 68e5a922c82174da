"""Pages and plots into files: `torso report` and `torso plot`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torso.errors import RequestError, did_you_mean
from torso.report.charts import KINDS, Chart
from torso.report.charts.drawing import Drawing
from torso.report.charts.pdf import to_pdf
from torso.report.charts.png import to_png
from torso.report.charts.svg import to_svg_file
from torso.report.comparison import Comparison, compare_folders
from torso.report.page import build_page
from torso.report.statistics import Difference
from torso.report.summary import sentences

FORMATS: dict[str, Callable[[Drawing], bytes]] = {".svg": to_svg_file, ".pdf": to_pdf, ".png": to_png}


def report(paths: Sequence[Path], out: Path, baseline: str | None = None, command: str = "") -> Comparison:
    """Write the page and give back what it compares."""
    comparison = compare_folders(paths, baseline)
    _write(out, build_page(comparison, command).encode())
    return comparison


def plot(paths: Sequence[Path], kind: str, out: Path, of: str | None = None, baseline: str | None = None) -> Chart:
    """Write one chart, without a title, as the ending of `out` says."""
    if kind not in KINDS:
        raise RequestError(
            f"--kind {kind!r} is unknown{did_you_mean(kind, KINDS)} Accepted: {', '.join(sorted(KINDS))}"
        )
    if out.suffix.lower() not in FORMATS:
        raise RequestError(f"--out {str(out)!r} has no ending that can be written. Accepted: {', '.join(FORMATS)}")
    found = KINDS[kind].make(compare_folders(paths, baseline))
    if not found:
        raise RequestError(f"--kind {kind}: these runs hold nothing for it ({KINDS[kind].about.rstrip('.')}).")
    chosen = [chart for chart in found if of in (None, chart.of)]
    names = ", ".join(chart.of for chart in found)
    if not chosen:
        raise RequestError(f"--of {of!r}: there is no such {kind} chart. Accepted: {names}")
    if len(chosen) > 1:
        raise RequestError(f"--kind {kind} makes {len(chosen)} charts of these runs. Choose one with --of: {names}")
    _write(out, FORMATS[out.suffix.lower()](chosen[0].drawing))
    return chosen[0]


def as_data(comparison: Comparison) -> dict[str, Any]:
    """The comparison for programs: what the page says in tables and words."""
    return {
        "baseline": comparison.baseline.label,
        "summary": sentences(comparison),
        "notes": comparison.notes(),
        "methods": [
            {
                "method": entry.label,
                "runs": [str(run.folder) for run in entry.runs],
                "failed": entry.failed,
                "accuracy": {m: _scores(comparison, entry, m) for m in comparison.measures if m in entry.measures},
                "megabytes": entry.megabytes,
                "seconds": entry.seconds,
            }
            for entry in comparison.entries
        ],
    }


def _scores(comparison: Comparison, entry: Any, measure: str) -> dict[str, Any]:
    scores, d = entry.pooled(measure), comparison.difference(entry, measure)
    apart = (
        {"mean": d.mean, "low": d.low, "high": d.high, "pairs": d.pairs, "over": d.over}
        if isinstance(d, Difference)
        else {"refused": d.reason}
    )
    return {"mean": scores.mean, "std": scores.std, "n": scores.n, "difference": apart}


def _write(path: Path, content: bytes) -> None:
    if path.is_dir():
        raise RequestError(f"--out {str(path)!r} is a folder. Give a file, such as {str(path / 'report.html')!r}.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise RequestError(f"--out {str(path)!r} cannot be written: {error}. Give another file.") from None
