"""`PaperFigure`: a matplotlib figure that is saved as journals ask for, with the same bytes each time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure

DPI = 300
# fonts as TrueType (Type 42) and letters as text, as journals ask for; the salt makes an SVG's ids the same each time
_SAVED: Any = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "torso"}
_UNDATED: Mapping[str, Mapping[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}


class PaperFigure(Figure):
    """A figure whose files are the same bytes each time: fonts embedded, no date, 300 dots per inch by default."""

    def savefig(self, fname: Any, *, transparent: bool | None = None, **how: Any) -> None:
        ending = Path(fname).suffix[1:] if isinstance(fname, str | os.PathLike) else ""
        kind = str(how.get("format") or ending or "png").lower()
        how = {"dpi": DPI, **how}
        if kind in _UNDATED:
            how["metadata"] = {**_UNDATED[kind], **(how.get("metadata") or {})}
        with mpl.rc_context(_SAVED):
            if kind in ("eps", "ps"):
                with _dated_1970(), _opaque(self):
                    super().savefig(fname, transparent=transparent, **how)
            else:
                super().savefig(fname, transparent=transparent, **how)


@contextmanager
def _dated_1970() -> Iterator[None]:
    """Sets the date of PostScript files, which need one: matplotlib reads it only from SOURCE_DATE_EPOCH."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        yield
        return
    os.environ["SOURCE_DATE_EPOCH"] = "0"
    try:
        yield
    finally:
        del os.environ["SOURCE_DATE_EPOCH"]


@contextmanager
def _opaque(figure: Figure) -> Iterator[None]:
    """Mixes transparent colours with white while a PostScript file is written, because it has no transparency."""
    kept: list[tuple[Any, dict[str, Any]]] = []
    for artist in figure.findobj(lambda a: isinstance(a.get_alpha(), float)):
        names = ("color",) if hasattr(artist, "get_color") else ("facecolor", "edgecolor")
        found = {name: getattr(artist, f"get_{name}")() for name in names if hasattr(artist, f"get_{name}")}
        kept.append((artist, {"alpha": artist.get_alpha(), **found}))
        artist.set(alpha=None, **{name: _mixed(colours, artist.get_alpha()) for name, colours in found.items()})
    try:
        yield
    finally:
        for artist, before in kept:
            artist.set(**before)


def _mixed(colours: Any, alpha: float | None) -> Any:
    rgba = to_rgba_array(colours)
    rgba[:, :3] = 1 - (1 - rgba[:, :3]) * (1.0 if alpha is None else alpha)
    rgba[:, 3] = rgba[:, 3] > 0  # what is invisible stays invisible
    return rgba if getattr(colours, "ndim", 1) == 2 else tuple(rgba[0])
