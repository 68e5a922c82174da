"""One chart of some runs as a matplotlib figure (`torso.plot`) or as a file (`torso plot`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torso.errors import RequestError, did_you_mean
from torso.report.charts import KINDS, Chart
from torso.report.comparison import compare_folders, relabelled
from torso.report.write import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VECTORS = (".pdf", ".svg", ".eps", ".ps")
PIXELS = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp")
LARGEST = 100.0  # inches, of a figure's side
MOST_PIXELS = 20_000  # of a figure's longer side


def plot(
    folders: str | Path | Sequence[str | Path],
    kind: str,
    of: str | None = None,
    *,
    baseline: str | None = None,
    width: float | None = None,
    height: float | None = None,
    title: bool = False,
    labels: Mapping[str, str] | None = None,
    style: str | Path | Mapping[str, Any] | Sequence[str | Path | Mapping[str, Any]] = (),
) -> Figure:
    """One chart of finished runs as a matplotlib figure, to restyle and save with matplotlib's own calls.

    `folders`: run folders, or folders that contain run folders. `kind`, `of`: as the options of `torso plot`. `width`,
    `height`: in inches; one alone keeps the proportions. `labels`: names for methods in the figure, such as
    `{"fedbabu": "FedBABU (ours)"}`. `style`: anything that `matplotlib.style.use` accepts; it overrides Torso's style.
    """
    return _figure(_chosen(folders, kind, of, baseline, labels or {}), width, height, title, style)


def write_plot(
    folders: Sequence[Path],
    kind: str,
    out: Path,
    of: str | None = None,
    *,
    baseline: str | None = None,
    width: float | None = None,
    height: float | None = None,
    dpi: int = 300,
    title: bool = False,
    labels: Sequence[str] = (),
) -> Chart:
    """Write one chart in the format that the ending of `out` names, and return it. `labels`: `NAME=TEXT` each."""
    ending = out.suffix.lower()
    if ending not in VECTORS + PIXELS:
        accepted = ", ".join(VECTORS + PIXELS)
        wrong = f"ends with {ending}, which is no format of pictures" if ending else "has no ending"
        raise RequestError(f"--out {str(out)!r} {wrong}. Accepted: {accepted}")
    chart = _chosen(folders, kind, of, baseline, labels)
    figure = _figure(chart, width, height, title)
    most = int(MOST_PIXELS / max(figure.get_size_inches()))
    if not 10 <= dpi <= most:
        raise RequestError(f"--dpi {dpi}: a figure of this size takes 10 to {most} dots per inch.")
    content = BytesIO()
    figure.savefig(content, format=ending[1:], dpi=dpi)
    write_file(out, content.getvalue())
    return chart


def _labels_of(texts: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """NAME=TEXT arguments as a dict. Names and texts may contain `=`, as in `fedavg (train.lr=0.1)`, so the longest
    known name that fits is taken."""
    found = {}
    for text in texts:
        fitting = [name for name in known if text.startswith(f"{name}=")]
        name = max(fitting, key=len, default=text.partition("=")[0])
        found[name] = text[len(name) + 1 :]
        if not (name.strip() and found[name].strip()):
            raise RequestError(f"--labels {text!r} is not NAME=TEXT. Example: --labels 'fedbabu=FedBABU (ours)'")
    return found


def _chosen(
    folders: str | Path | Sequence[str | Path],
    kind: str,
    of: str | None,
    baseline: str | None,
    labels: Mapping[str, str] | Sequence[str],
) -> Chart:
    """The one chart that is asked for, or a RequestError with the choices."""
    if kind not in KINDS:
        raise RequestError(
            f"--kind {kind!r} is unknown{did_you_mean(kind, KINDS)} Accepted: {', '.join(sorted(KINDS))}"
        )
    paths = [folders] if isinstance(folders, str | Path) else folders
    comparison = compare_folders([Path(path) for path in paths], baseline)
    known = [name for entry in comparison.entries for name in (entry.label, entry.runs[0].method)]
    named = labels if isinstance(labels, Mapping) else _labels_of(labels, known)
    shown = relabelled(comparison, named)
    found = KINDS[kind].make(shown)
    if not found:
        there = ", ".join(name for name in sorted(KINDS) if KINDS[name].make(shown))
        raise RequestError(
            f"--kind {kind}: these runs have no data for it ({KINDS[kind].about.rstrip('.')}). They have: {there}"
        )
    wanted = None if of is None else named.get(of, of)
    chosen = [chart for chart in found if wanted in (None, chart.of)]
    names = ", ".join(chart.of for chart in found)
    if not chosen:
        raise RequestError(f"--of {of!r}: no {kind} chart has this name. Accepted: {names}")
    if len(chosen) > 1:
        raise RequestError(f"--kind {kind} makes {len(chosen)} charts of these runs. Choose one with --of: {names}")
    return chosen[0]


def _figure(chart: Chart, width: float | None, height: float | None, title: bool, style: Any = ()) -> Figure:
    for key, inches in (("width", width), ("height", height)):
        if inches is not None and not (math.isfinite(inches) and 0 < inches <= LARGEST):
            raise RequestError(
                f"--{key} {inches:g} is out of range. Accepted: inches above 0 and up to {LARGEST:g}, such as 3.25."
            )
    try:
        from torso.report.charts.figure import to_figure
    except ImportError:
        raise RequestError(
            "torso plot needs the matplotlib package, which is not installed. "
            'Install it with: pip install "torso[plot]"'
        ) from None
    return to_figure(chart.plot, width, height, chart.title if title else "", style)
