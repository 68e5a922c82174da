"""What `torso report` writes: the page as a file, or the comparison as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torso.errors import CannotWrite, RequestError
from torso.report.comparison import Comparison, compare_folders
from torso.report.page import build_page
from torso.report.statistics import Difference
from torso.report.summary import sentences
from torso.results.files import replace_file, writing


def report(paths: Sequence[Path], out: Path, baseline: str | None = None, command: str = "") -> Comparison:
    """Write the page and return the comparison that it shows."""
    comparison = compare_folders(paths, baseline)
    write_file(out, build_page(comparison, command).encode())
    return comparison


def as_data(comparison: Comparison) -> dict[str, Any]:
    """The tables and sentences of the page as JSON."""
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
    """One measure of one entry, with its difference to the baseline or the reason why there is none."""
    scores, d = entry.pooled(measure), comparison.difference(entry, measure)
    difference = (
        {"mean": d.mean, "low": d.low, "high": d.high, "pairs": d.pairs, "over": d.over}
        if isinstance(d, Difference)
        else {"refused": d.reason}
    )
    return {"mean": scores.mean, "std": scores.std, "n": scores.n, "difference": difference}


def write_file(path: Path, content: bytes) -> None:
    """Write a file as a whole: if that fails, an older file stays, and a RequestError says why."""
    if path.is_dir():
        raise RequestError(f"--out {str(path)!r} is a folder. Give a file, such as {str(path / 'report.html')!r}.")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.is_file():  # a device, such as /dev/stdout
                path.write_bytes(content)
                return
        replace_file(path.resolve(), lambda temporary: temporary.write_bytes(content))
    except CannotWrite as error:
        raise RequestError(f"--out {error}. Give another file.") from None
