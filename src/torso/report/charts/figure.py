"""Plots as matplotlib figures for papers. A panel becomes axes with its own scales, so that users can restyle it.

Only this module and paper_figure.py import matplotlib (the extra `torso[plot]`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.axis import Axis as MplAxis
from matplotlib.axis import YAxis
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Polygon
from matplotlib.text import Annotation
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.transforms import offset_copy

from torso.errors import RequestError
from torso.report.charts.drawing import WIDTH, Area, Dots, Line, Words, nice, spread
from torso.report.charts.heat import Heat
from torso.report.charts.palette import LEVELS, LIGHT
from torso.report.charts.panels import Axis, Panel, Plot
from torso.report.charts.paper_figure import PaperFigure

Style = str | Path | Mapping[str, Any]
POINTS = 0.75  # points in a unit of the page
INCHES = POINTS / 72  # inches in a unit of the page
LONG = 26  # letters of a name in a line; longer names are wrapped
LETTER = 0.62  # a letter's mean width, by its size
COMPLETE = "DejaVu Sans"  # comes with matplotlib; used for letters that another font lacks, such as the minus sign

STYLE: Mapping[str, Any] = {
    "text.parse_math": False,  # a dollar in a name is a dollar
    "font.size": 9,
    "axes.labelsize": "medium",  # relative to font.size, so that users need to change only that
    "axes.titlesize": "medium",
    "axes.titlelocation": "left",
    "xtick.labelsize": "small",
    "ytick.labelsize": "small",
    "legend.fontsize": "small",
    "legend.frameon": False,
    "text.color": LIGHT["ink"],
    "axes.labelcolor": LIGHT["ink"],
    "axes.edgecolor": LIGHT["muted"],
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
    "xtick.labelcolor": LIGHT["ink"],
    "ytick.labelcolor": LIGHT["ink"],
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "grid.color": LIGHT["grid"],
    "grid.linewidth": 0.7,
    "lines.solid_capstyle": "round",
}


def to_figure(
    plot: Plot,
    width: float | None = None,
    height: float | None = None,
    title: str = "",
    style: Style | Sequence[Style] = (),
) -> Figure:
    """The plot as a figure. `width` and `height`: in inches; one alone keeps the proportions. `style`: anything that
    `matplotlib.style.use` accepts."""
    given: Any = [style] if isinstance(style, str | Path | Mapping) else style
    with matplotlib.style.context(["default", dict(STYLE), *given]), warnings.catch_warnings():
        warnings.filterwarnings("error", ".*layout not applied.*", UserWarning)
        mpl.rcParams["font.family"] = [*mpl.rcParams["font.family"], COMPLETE]
        usual = WIDTH * INCHES, plot.height * INCHES + sum(map(_more, plot.panels)) / 72
        if width is None and height is not None:
            width = usual[0] * height / usual[1]
        wide = width or usual[0]
        size = wide, height or usual[1] * wide / usual[0]
        figure = PaperFigure(figsize=size, layout="constrained")
        if title:
            figure.suptitle(title, fontsize="large")
        if plot.up:
            figure.supylabel(plot.up, fontsize="medium")
        places = _axes(figure, plot.panels)
        scale = size[0] / usual[0], size[1] / usual[1]
        names = [_draw(axes, panel, scale) for axes, panel in zip(places, plot.panels, strict=True)]
        _colour_bar(places, plot.panels, scale[1])
        try:
            figure.draw_without_rendering()  # computes the layout: only now the height of the axes is known
        except UserWarning:
            raise RequestError(
                f"--width {size[0]:.3g} --height {size[1]:.3g}: the names leave no room for the chart. "
                f"Give more inches (default: {usual[0]:.3g} × {usual[1]:.3g})."
            ) from None
        for axes, panel, made in zip(places, plot.panels, names, strict=True):
            _move_apart(axes, panel, made)
    return figure


def _lines(names: Iterable[str]) -> int:
    """The number of lines that the longest of the names takes."""
    return max((fill(name, LONG).count("\n") + 1 for name in names), default=0)


def _line_height() -> float:
    """The height of a line of text in points."""
    return 1.2 * float(mpl.rcParams["font.size"])


def _crowded(panel: Panel, scale: float = 1.0) -> bool:
    """Whether there is too little height for the names at the ends of the lines. Then a legend replaces them."""
    needed = len(panel.ends) * _lines(end.name for end in panel.ends) * _line_height()
    return needed > (panel.bottom - panel.top) * POINTS * scale


def _more(panel: Panel) -> float:
    """Extra height in points that long names need, compared with the page."""
    if panel.rows:
        row = (panel.bottom - panel.top) * POINTS / len(panel.rows)
        return len(panel.rows) * max(0.0, _lines(row.name for row in panel.rows) * _line_height() + 4 - row)
    return len(panel.ends) * _line_height() if _crowded(panel) else 0.0


def _axes(figure: Figure, panels: Sequence[Panel]) -> list[Axes]:
    """Axes in a grid, placed like the panels on the page."""
    lefts, tops = (sorted({getattr(panel, edge) for panel in panels}) for edge in ("left", "top"))
    first = {edge: {getattr(p, edge): p for p in reversed(panels)} for edge in ("left", "top")}
    grid = figure.add_gridspec(
        *(len(tops), len(lefts)),
        width_ratios=[first["left"][at].right - at for at in lefts],
        height_ratios=[first["top"][at].bottom - at for at in tops],
    )
    return [figure.add_subplot(grid[tops.index(panel.top), lefts.index(panel.left)]) for panel in panels]


def _draw(axes: Axes, panel: Panel, scale: tuple[float, float]) -> list[Annotation]:
    """Draw a panel into axes and return the names at its right, which are placed later. `scale`: the figure's size
    relative to its default."""
    wide = (panel.right - panel.left) * POINTS * scale[0]
    high = ((panel.bottom - panel.top) * POINTS + (_more(panel) if panel.rows else 0)) * scale[1]
    air = 0.0 if panel.heat else 0.015 * (panel.xs[1] - panel.xs[0])  # so that the outermost points are not cut
    axes.set_xlim(panel.xs[0] - air, panel.xs[1] + air)
    axes.set_ylim(*panel.ys)
    _ticks(axes.xaxis, panel.across, wide)
    _ticks(axes.yaxis, panel.up, high)
    if panel.up is None and not panel.rows:
        axes.spines["left"].set_visible(False)
    if panel.across is None and not panel.heat:
        axes.spines["bottom"].set_visible(False)
    if panel.up and panel.up.named is None:
        axes.grid(axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    if panel.title:
        axes.set_title(_wrapped(panel.title, wide), color=LIGHT[panel.role], weight=_weight(panel.role))
    for mark in panel.marks:
        _add(axes, mark, panel, min(1.0, *scale))
    if panel.rows:
        _rows(axes, panel, max(1, int(high / len(panel.rows) / _line_height())))
    if _crowded(panel, scale[1]):
        letters = max(len(end.name) for end in panel.ends)
        each = LETTER * letters * mpl.rcParams["font.size"] + 40  # 40: the line before the name
        columns = max(1, int(72 * axes.figure.bbox.width / axes.figure.dpi / each))
        axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=columns)
        return []
    return [_name(axes, end.x, end.y, end.name, LIGHT[end.role]) for end in panel.ends]


def _weight(role: str) -> str:
    return "normal" if role in ("ink", "muted") else "bold"


def _wrapped(text: str, room: float) -> str:
    """The text in lines that fit into `room` points."""
    return fill(text, max(10, int(room / (LETTER * mpl.rcParams["font.size"]))), break_long_words=False)


def _most(wanted: int, room: float, each: float) -> int:
    """The number of intervals between ticks: as wanted, but no more than fit into `room` points."""
    return max(2, min(wanted, int(room / each)))


def _ticks(axis: MplAxis, said: Axis | None, room: float) -> None:
    """Set ticks and label of an axis. `room`: its length in points, approximately."""
    if said is None:
        axis.set_ticks([])
        return
    beyond = 1.0 if isinstance(axis, YAxis) else 1.35  # a label below the axes may be wider than them
    axis.set_label_text(_wrapped(said.label, beyond * room))
    if said.named is None:
        most = _most(said.about + 1, room, 18 if isinstance(axis, YAxis) else 28)
        axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10], integer=said.whole))
        axis.set_major_formatter(FuncFormatter(lambda value, _: nice(value)))
        return
    if said.named:
        letters = 1.0 if isinstance(axis, YAxis) else LETTER * max(len(text) for _, text in said.named) + 0.5
        step = math.ceil(letters * mpl.rcParams["font.size"] * 0.9 * len(said.named) / room)
        some = said.named[::step]  # fewer in a smaller figure
        axis.set_ticks([at for at, _ in some], [text for _, text in some])
    else:
        axis.set_ticks([])
    axis.set_tick_params(length=0)


def _add(axes: Axes, mark: Line | Area | Dots | Words | Heat, panel: Panel, scale: float) -> None:
    """Draw a mark into axes."""
    match mark:
        case Line(points, role, width, dash, opacity, label):
            (line,) = axes.plot(*zip(*points, strict=True), color=LIGHT[role], linewidth=width * POINTS)
            line.set(alpha=None if opacity == 1 else opacity, label=label or "_", zorder=1.5 if role == "faint" else 2)
            if dash:
                line.set_linestyle((0, dash))
        case Area(points, role, opacity):
            axes.add_patch(Polygon(list(points), facecolor=LIGHT[role], alpha=opacity, linewidth=0))
        case Dots(dots, role, radius, opacity, label):
            size, alpha = (2 * radius * POINTS * scale) ** 2, None if opacity == 1 else opacity
            xs, ys, _ = zip(*dots, strict=True)
            axes.scatter(xs, ys, size, LIGHT[role], alpha=alpha, linewidths=0, label=label or "_", zorder=1.9)
        case Words(words, role):
            for x, y, word in words:
                axes.text(x, y, word, color=LIGHT[role], fontsize="x-small", ha="center", va="center", clip_on=True)
        case Heat(_, ramp, _, _):
            colours = ListedColormap([LIGHT[f"{ramp.hue}{i}"] for i in range(LEVELS)])
            (left, right), (low, high), shown = panel.xs, panel.ys, mark.shown
            rows, columns = shown.shape
            axes.pcolormesh(
                [left + (right - left) * i / columns for i in range(columns + 1)],
                [high + (low - high) * i / rows for i in range(rows + 1)],
                shown,
                cmap=colours,
                norm=Normalize(ramp.low, ramp.high),
                edgecolors="face",  # otherwise viewers show seams between cells
                linewidth=0.1,
            )
            for spine in axes.spines.values():
                spine.set(visible=True, color=LIGHT["faint"])
            if abs((panel.right - panel.left) - (panel.bottom - panel.top)) < 1:
                axes.set_box_aspect(1)


def _colour_bar(places: Sequence[Axes], panels: Sequence[Panel], scale: float) -> None:
    """Draw the colour bar at the right of the last heat map, as high as it is."""
    maps = [(axes, panel) for axes, panel in zip(places, panels, strict=True) if panel.heat]
    if not maps:
        return
    axes, last = maps[-1]
    legend = next((panel.heat.legend for _, panel in maps if panel.heat and panel.heat.legend), "")
    beside = axes.inset_axes((1.04, 0, 0.04, 1))
    bar = axes.figure.colorbar(axes.collections[0], cax=beside, label=legend)
    bar.locator = MaxNLocator(_most(5, (last.bottom - last.top) * POINTS * scale, 18), steps=[1, 2, 2.5, 5, 10])
    bar.formatter = FuncFormatter(lambda value, _: nice(value))
    bar.outline.set(edgecolor=LIGHT["faint"])
    bar.update_ticks()


def _rows(axes: Axes, panel: Panel, most: int) -> None:
    """Write the names of rows at the left, in smaller letters if one needs more than `most` lines, and their notes in
    columns at the right."""
    middles = [number + 0.5 for number in range(len(panel.rows))]
    axes.set_yticks(middles, [fill(row.name, LONG) for row in panel.rows])
    size = mpl.rcParams["font.size"] * min(1.0, most / _lines(row.name for row in panel.rows))
    axes.tick_params(axis="y", length=0, labelsize=size)
    axes.spines["left"].set_visible(False)
    for label, row in zip(axes.get_yticklabels(), panel.rows, strict=True):
        label.set(color=LIGHT[row.role], weight=_weight(row.role))
    columns = [*zip(*(row.notes for row in panel.rows), strict=True)]
    at = 10.0
    for number, notes in enumerate(columns):
        head = panel.heads[number : number + 1]
        wide = max(_width(text) for text in (*(text for text, _ in notes), *head))
        beside = offset_copy(axes.get_yaxis_transform(), axes.figure, x=at + wide, units="points")  # type: ignore[arg-type]
        for middle, (text, role) in zip(middles, notes, strict=True):
            note = axes.text(1, middle, text, transform=beside, ha="right", va="center_baseline")
            note.set(color=LIGHT[role], weight=_weight(role))
        for text in head:
            axes.text(1, 0, text, transform=beside, ha="right", va="bottom", color=LIGHT["muted"], fontsize="small")
        at += wide + 6


def _width(text: str) -> float:
    """The width of a text in points, in bold type, so that it is enough for any weight."""
    bold = FontProperties(weight="bold")
    return float(TextPath((0, 0), text, size=mpl.rcParams["font.size"], prop=bold).get_extents().width)


def _name(axes: Axes, x: float, y: float, name: str, colour: str) -> Annotation:
    beside = offset_copy(axes.transAxes, axes.figure, x=6, units="points")  # type: ignore[arg-type]
    return axes.annotate(
        fill(name, LONG),
        (x, y),
        (1, 0.5),
        textcoords=beside,
        color=colour,
        weight="bold",
        va="center",
        annotation_clip=False,
        arrowprops={
            **{"arrowstyle": "-", "color": colour, "linewidth": 0.6, "alpha": 0.6},
            **{"shrinkA": 0, "shrinkB": 1, "relpos": (0, 0.5)},
        },
    )


def _move_apart(axes: Axes, panel: Panel, names: Sequence[Annotation]) -> None:
    """Place names next to the ends of their lines, moved apart. A thin line ties a name that had to move far."""
    if not names:
        return
    box, point = axes.get_window_extent(), axes.figure.dpi / 72
    letter = float(names[0].get_fontsize()) * point
    gap = _lines(end.name for end in panel.ends) * _line_height() * point
    (low, high), (left, right) = axes.get_ylim(), axes.get_xlim()
    wanted = [(end.y - low) / (high - low) * box.height for end in panel.ends]
    for end, name, y, at in zip(panel.ends, names, wanted, spread(wanted, gap, 0, box.height), strict=True):
        name.set_position((1, at / box.height))
        far = abs(at - y) > 0.35 * letter or (right - end.x) / (right - left) > 0.03
        if name.arrow_patch is not None:
            name.arrow_patch.set_visible(far)
