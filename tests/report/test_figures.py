"""Charts as matplotlib figures: the data of the axes, room for every word, and files that are the same each time."""

from __future__ import annotations

import re
import subprocess
import sys
from io import BytesIO
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import torso
from torso.errors import RequestError
from torso.report.charts import KINDS
from torso.report.charts.drawing import Area, Dots, Line, Words
from torso.report.charts.heat import Heat, Ramp
from torso.report.charts.palette import LIGHT
from torso.report.charts.panels import Axis, End, Panel, Plot, Row
from torso.report.comparison import Comparison
from torso.report.plots import PIXELS, VECTORS, write_plot

from .samples import all_analyses, write_run

mpl = pytest.importorskip("matplotlib")
from matplotlib.colors import to_hex  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.text import Text  # noqa: E402

from torso.report.charts.figure import to_figure  # noqa: E402

MAGIC = {
    **{".pdf": b"%PDF", ".svg": b"<?xml", ".eps": b"%!PS-Adobe-3.0 EPSF", ".ps": b"%!PS-Adobe", ".png": b"\x89PNG"},
    **{".jpg": b"\xff\xd8", ".jpeg": b"\xff\xd8", ".tif": b"II*", ".tiff": b"II*", ".webp": b"RIFF"},
}


@pytest.fixture(autouse=True)
def boxes_of_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    """For PostScript matplotlib draws every glyph of a font to find its box, two seconds a file; the font knows it."""

    def box(font: Any) -> tuple[int, int, int, int]:
        head = font["head"]
        return head.xMin, head.yMin, head.xMax, head.yMax

    monkeypatch.setattr("matplotlib.backends.backend_ps._bounds", box)


def simple(**more: object) -> Plot:
    """A line from (0, 1) to (2, 5) with a band and its name, and a dot."""
    panel = Panel(
        *(40, 30, 400, 258, (0, 2), (0, 6)),
        across=Axis("round", whole=True),
        up=Axis("accuracy, %", 4),
        marks=[
            Area([(0, 2), (2, 6), (2, 4), (0, 0)], "s1"),
            Line([(0, 1), (1, 2), (2, 5)], "s1", 2, (5.0, 2.5), label="fedavg"),
            Dots([(1, 2, "told")], "s0", 4, 1),
        ],
        ends=[End(2, 5, "fedavg", "s1")],
    )
    return Plot(300, [panel], **more)  # type: ignore[arg-type]


def saved(figure: Figure, ending: str) -> bytes:
    out = BytesIO()
    figure.savefig(out, format=ending)
    return out.getvalue()


def words(figure: Figure) -> list[Text]:
    """What is written and shown: no empty texts, no ticks outside of the axes."""
    found: list[Text] = []
    for axes in figure.findobj(mpl.axes.Axes):
        assert isinstance(axes, mpl.axes.Axes)
        found += [*axes.texts, axes.xaxis.label, axes.yaxis.label, axes.title, axes._left_title]  # type: ignore[attr-defined]
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            low, high = sorted(limits)
            ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
            found += [label for at, label in ticks if low <= at <= high]
    for legend in figure.legends:
        found += legend.get_texts()
    return [text for text in found if text.get_visible() and text.get_text().strip()]


def check_words(figure: Figure, but: frozenset[str] = frozenset()) -> None:
    """Nothing is cut off, and no word lies on another (`but`: words that may, such as the points of a t-SNE)."""
    figure.draw_without_rendering()
    page = figure.bbox.padded(1)
    # of the letters alone: an annotation's own box has its arrow in it
    boxes = [(text.get_text(), Text.get_window_extent(text)) for text in words(figure)]
    for said, box in boxes:
        assert page.x0 <= box.x0 <= box.x1 <= page.x1, said
        assert page.y0 <= box.y0 <= box.y1 <= page.y1, said
    letters = [(said, box.padded(-1.5)) for said, box in boxes if said not in but]  # their boxes have some air
    apart = [(said, *sorted(box.intervalx.tolist()), *sorted(box.intervaly.tolist())) for said, box in letters]
    for (one, x0, x1, y0, y1), (other, left, right, low, high) in combinations(apart, 2):
        assert x1 < left or right < x0 or y1 < low or high < y0, (one, other)


@pytest.mark.parametrize("width", [None, 3.25])
def test_every_chart_is_a_figure_in_which_all_words_have_room(full: Comparison, width: float | None) -> None:
    for name, kind in KINDS.items():
        for chart in kind.make(full)[:2]:
            figure = to_figure(chart.plot, width)
            points = {
                word for p in chart.plot.panels for m in p.marks if isinstance(m, Words) for _, _, word in m.words
            }
            check_words(figure, frozenset(points))
            assert len(figure.axes) == len(chart.plot.panels), name
            for axes, panel in zip(figure.axes, chart.plot.panels, strict=True):
                said = (axes.get_xlabel().replace("\n", " "), axes.get_ylabel().replace("\n", " "))
                assert said == (panel.across.label if panel.across else "", panel.up.label if panel.up else ""), name
                shown = {text.get_text().replace("\n", " ") for text in axes.texts}
                shown |= {label.get_text() for label in axes.get_yticklabels()}
                assert {end.name for end in panel.ends} | {row.name for row in panel.rows} <= shown, name


def test_axes_hold_the_data_in_its_own_numbers() -> None:
    (axes,) = to_figure(simple()).axes
    (line,) = axes.lines
    assert line.get_xydata().tolist() == [[0, 1], [1, 2], [2, 5]]  # type: ignore[union-attr]
    assert (to_hex(line.get_color()), line.get_label(), line.is_dashed()) == (LIGHT["s1"], "fedavg", True)
    (band,) = axes.patches
    assert band.get_xy()[:4].tolist() == [[0, 2], [2, 6], [2, 4], [0, 0]]  # type: ignore[attr-defined]
    assert (to_hex(band.get_facecolor()), band.get_alpha()) == (LIGHT["s1"], 0.16)
    (dots,) = axes.collections
    assert dots.get_offsets().tolist() == [[1, 2]]  # type: ignore[union-attr]
    assert dots.get_sizes()[0] == pytest.approx(36)  # type: ignore[attr-defined]  # (2 × 4 units × 0.75 points)²
    assert axes.get_ylim() == (0, 6)
    assert axes.get_legend_handles_labels()[1] == ["fedavg"]
    assert axes.legend() is not None


def test_a_heat_map_has_the_nine_colours_of_the_page_and_empty_gaps() -> None:
    values = np.array([[0.0, np.nan], [5.0, 9.0]])
    panel = Panel(0, 0, 100, 100, (0, 2), (2, 0), marks=[Heat(values, Ramp(0, 9), blank=0, legend="samples")])
    (axes,) = to_figure(Plot(120, [panel])).axes
    (mesh,) = axes.collections
    colours = mesh.to_rgba(mesh.get_array().ravel())  # type: ignore[union-attr]
    assert [to_hex(c) for c in colours[2:]] == [LIGHT["q5"], LIGHT["q8"]]
    assert mesh.get_array().mask.tolist() == [[True, True], [False, False]]  # type: ignore[union-attr]
    assert axes.get_ylim() == (2, 0)  # the first row on top
    assert mesh.get_coordinates()[0, 0].tolist() == [0, 0]  # type: ignore[attr-defined]
    (bar,) = axes.child_axes
    assert bar.get_ylabel() == "samples"
    assert bar.get_ylim() == (0, 9)


def test_rows_stand_under_each_other_with_their_notes() -> None:
    rows = (Row("fedavg", "s0", (("3", "s1"), ("14", "s0"))), Row("fedprox", "s1", (("5", "s1"), ("6", "s0"))))
    panel = Panel(60, 22, 404, 138, (-5, 5), (2, 0), across=Axis("points"), rows=rows, heads=("lose", "gain"))
    figure = to_figure(Plot(178, [panel]))
    check_words(figure)
    (axes,) = figure.axes
    assert [(t.get_text(), to_hex(t.get_color())) for t in axes.get_yticklabels()] == [
        ("fedavg", LIGHT["s0"]),
        ("fedprox", LIGHT["s1"]),
    ]
    places = {text.get_text(): text.get_window_extent() for text in axes.texts}
    assert places.keys() == {"3", "14", "5", "6", "lose", "gain"}
    assert places["lose"].y0 > places["3"].y0 > places["5"].y0
    assert places["3"].x1 == pytest.approx(places["5"].x1, abs=1.5)
    assert places["3"].x1 < places["14"].x0


def test_names_at_one_place_are_moved_apart_and_too_many_become_a_legend() -> None:
    few, many = (
        Panel(
            *(40, 30, 380, 258, (0, 1), (0, 1)),
            marks=[Line([(0, 0), (1, 0.5)], f"s{i % 8}", label=f"method-{i}") for i in range(count)],
            ends=[End(1, 0.5, f"method-{i}", f"s{i % 8}") for i in range(count)],
        )
        for count in (6, 30)
    )
    beside, below = to_figure(Plot(300, [few])), to_figure(Plot(300, [many]))
    check_words(beside)
    assert [text.get_text() for text in beside.axes[0].texts] == [f"method-{i}" for i in range(6)]
    check_words(below)
    assert [text.get_text() for text in below.legends[0].get_texts()] == [f"method-{i}" for i in range(30)]
    assert below.get_figheight() > beside.get_figheight()


def test_a_dollar_in_a_name_is_a_dollar() -> None:
    panel = Panel(40, 30, 380, 258, (0, 1), (0, 1), ends=[End(1, 0.5, "a$_{b$", "s0")])
    assert b"a$_{b$" in saved(to_figure(Plot(300, [panel])), "svg")


@pytest.mark.parametrize("family", ["cmr10", "cmss10", "sans-serif"])
def test_a_font_without_a_minus_sign_has_one_all_the_same(family: str, recwarn: pytest.WarningsRecorder) -> None:
    """Computer Modern, which matplotlib brings along, has no minus sign; matplotlib would warn and draw a box."""
    panel = Panel(40, 30, 400, 258, (-4, -2), (-8, -6), across=Axis("points"), up=Axis("−5 to −3", 4))
    figure = to_figure(Plot(300, [panel]), style={"font.family": family})
    assert saved(figure, "png")
    assert any("−" in text.get_text() for text in figure.axes[0].get_xticklabels())
    assert [str(told.message) for told in recwarn if "Glyph" in str(told.message)] == []


def test_a_long_name_of_a_row_is_wrapped_and_shrinks_but_is_never_cut() -> None:
    long = "fedrod-hyper-scaffold (train.lr=0.1, train.local_epochs=10, data.shards=2, method.drift.divisor=momentum)"
    rows = (Row(long, "s0", (("3", "s1"),)), Row("fedavg", "s1", (("5", "s1"),)))
    panel = Panel(60, 22, 404, 70, (-5, 5), (2, 0), across=Axis("points"), rows=rows)
    for height in (None, 1.0):
        figure = to_figure(Plot(110, [panel]), height=height)
        first = figure.axes[0].get_yticklabels()[0]
        assert "".join(first.get_text().split()) == "".join(long.split())
        check_words(figure)


def test_methods_can_be_called_otherwise(full_runs: Path, tmp_path: Path) -> None:
    figure = torso.plot(full_runs, "rounds", labels={"fedavg": "FedAvg (lr=0.1)"})
    assert [line.get_label() for line in figure.axes[0].lines][:2] == ["FedAvg (lr=0.1)", "fedbabu"]
    write_plot([full_runs], "rounds", tmp_path / "x.svg", labels=["fedavg=FedAvg (lr=0.1)", "fedper=mine"])
    said = (tmp_path / "x.svg").read_text()
    assert "FedAvg (lr=0.1)" in said
    assert ">mine<" in said
    write_plot([full_runs], "tsne", tmp_path / "t.svg", of="fedper", labels=["fedper=mine"])
    for wrong, why in (
        ("fedavvg=x", "--labels 'fedavvg' is not among the runs; did you mean"),
        ("fedavg", "NAME=TEXT"),
    ):
        with pytest.raises(RequestError, match=why):
            write_plot([full_runs], "rounds", tmp_path / "no.svg", labels=[wrong])
    assert not (tmp_path / "no.svg").exists()


def test_the_axis_of_a_cost_begins_at_nothing(full_runs: Path) -> None:
    for kind in ("megabytes", "compute"):
        left, right = torso.plot(full_runs, kind).axes[0].get_xlim()
        assert left <= 0 < right


@pytest.mark.parametrize("ending", VECTORS + PIXELS)
def test_files_are_of_their_format_and_the_same_each_time(ending: str) -> None:
    found = [saved(to_figure(simple()), ending[1:]) for _ in range(2)]
    assert found[0].startswith(MAGIC[ending])
    assert found[0] == found[1]


def test_a_pdf_embeds_truetype_and_an_svg_keeps_text() -> None:
    """Type 42 is TrueType: journals refuse Type 3, which is matplotlib's usual."""
    pdf = saved(to_figure(simple(), width=4, height=3), "pdf")
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    assert b"CreationDate" not in pdf
    assert b"/MediaBox [ 0 0 288 216 ]" in pdf
    svg = saved(to_figure(simple()), "svg").decode()
    assert re.search(r"<text[^>]*>accuracy, %</text>", svg)
    assert "<dc:date>" not in svg
    assert b"/FontType 42" in saved(to_figure(simple()), "eps")


def test_postscript_mixes_colours_with_white_and_leaves_the_figure_as_it_was() -> None:
    """A band of s1 = #d55e00 at 16 %: 1 − 0.16 × (1 − 213/255) = 0.974 of red, 0.899 of green, 0.84 of blue."""
    figure = to_figure(simple())
    (band,) = figure.axes[0].patches
    before = band.get_facecolor()
    assert b"0.974 0.899 0.84 setrgbcolor" in saved(figure, "eps")
    assert (band.get_facecolor(), band.get_alpha()) == (before, 0.16)


def test_sizes_are_inches_and_one_alone_keeps_the_proportions() -> None:
    """The usual size: 480 × 300 units of a 96th of an inch, 5 × 3.125 inches."""
    for given, size in (({}, (5, 3.125)), ({"width": 3.2}, (3.2, 2)), ({"height": 2.5}, (4, 2.5))):
        assert to_figure(simple(), **given).get_size_inches() == pytest.approx(size)
    assert Image.open(BytesIO(saved(to_figure(simple(), 4, 2), "png"))).size == (1200, 600)


def test_plot_gives_a_figure_to_restyle(full_runs: Path) -> None:
    figure = torso.plot(full_runs, "rounds", style={"font.size": 7}, title=True)
    assert isinstance(figure, Figure)
    assert figure.get_suptitle() == "Initial accuracy per round"
    (axes,) = figure.axes
    assert (axes.texts[0].get_fontsize(), axes.yaxis.label.get_fontsize()) == (7, 7)
    assert axes.lines[0].get_label() == "fedavg"
    assert axes.lines[0].get_ydata()[:3].tolist() == [10, 20, 30]  # type: ignore[union-attr]
    axes.lines[0].set_color("black")
    axes.set_ylim(0, 100)
    assert saved(figure, "pdf").startswith(b"%PDF")
    assert torso.plot([str(full_runs / "fedavg"), full_runs / "fedper"], "rounds").axes[0].patches  # two: with bands
    assert mpl.rcParams["font.size"] == mpl.rcParamsDefault["font.size"]  # nobody else's figures change


def test_the_snippet_of_the_docs_runs(full_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(full_runs.parent)
    full_runs.rename("runs-of-test")
    Path("runs").mkdir()
    Path("runs-of-test").rename("runs/report")
    exec(snippet, {})
    assert Path("rounds.pdf").read_bytes().startswith(b"%PDF")


def test_plot_writes_what_the_ending_says_and_refuses_the_rest(tmp_path: Path, full_runs: Path) -> None:
    for name in ("x.svg", "x.PDF", "deep/x.png"):
        write_plot([full_runs], "rounds", tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(MAGIC[Path(name).suffix.lower()])
    write_plot([full_runs], "tsne", tmp_path / "t.svg", of="fedper")
    write_plot([full_runs], "rounds", tmp_path / "small.png", width=3, height=2, dpi=100)
    assert Image.open(tmp_path / "small.png").size == (300, 200)
    for kind, out, of, sizes, said in (
        ("round", "no.svg", None, {}, "did you mean 'rounds'"),
        ("rounds", "no.gif", None, {}, r"Accepted: .pdf, .svg, .eps, .ps, .png"),
        ("tsne", "no.svg", None, {}, "Choose one with --of: fedavg, fedbabu, fedper, fedprox"),
        ("tsne", "no.svg", "fed", {}, "no tsne chart has this name"),
        ("rounds", "deep", None, {}, "no ending"),
        ("rounds", "no.svg", None, {"width": 0}, r"--width 0 is out of range. Accepted: inches above 0"),
        ("rounds", "no.svg", None, {"height": float("nan")}, r"--height nan is out of range"),
        ("rounds", "no.svg", None, {"width": 0.6}, r"no room for the chart.*default: 5 × 3.12"),
        ("rounds", "no.png", None, {"dpi": 5000}, r"--dpi 5000: .* 10 to 4000 dots"),
    ):
        with pytest.raises(RequestError, match=said):
            write_plot([full_runs], kind, tmp_path / out, of, **sizes)  # type: ignore[arg-type]
    assert not [*tmp_path.glob("no.*")]
    bare = write_run(tmp_path / "bare" / "a")
    with pytest.raises(RequestError, match=r"have no data for it \(.*\)\. They have: .*clients"):
        write_plot([bare], "tsne", tmp_path / "no.svg")


def test_without_matplotlib_the_way_out_is_named(full_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torso.report.charts.figure")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RequestError, match=r'pip install "torso\[plot\]"'):
        torso.plot(full_runs, "rounds")


def test_the_page_does_not_load_matplotlib() -> None:
    code = "import sys, torso.cli, torso.report.write, torso.report.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_hundred_classes_and_a_thousand_clients_have_room(tmp_path: Path) -> None:
    write_run(tmp_path / "a", analyses=all_analyses(classes=100, clients=1000))
    for kind in ("partition", "four-factors", "cross-client"):
        for width in (None, 3.25):
            check_words(torso.plot(tmp_path, kind, width=width))
