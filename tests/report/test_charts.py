"""Drawings with known places, three kinds of files, and every chart from analyses of the promised shapes."""

from __future__ import annotations

import re
import zlib
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from torso.errors import RequestError
from torso.report.charts import KINDS
from torso.report.charts.clients import MOST, Swarm, signed, thinned
from torso.report.charts.drawing import (
    Boxes,
    Cells,
    Dots,
    Drawing,
    Line,
    Panel,
    Text,
    nice,
    shortened,
    spread,
    text_width,
    ticks,
)
from torso.report.charts.heat import Ramp, cells, evenly, matrix
from torso.report.charts.palette import DARK, LIGHT, level
from torso.report.charts.pdf import to_pdf
from torso.report.charts.png import SCALE, to_png
from torso.report.charts.rounds import by_megabytes, curve
from torso.report.charts.svg import to_svg, to_svg_file
from torso.report.comparison import Comparison, compare_folders
from torso.report.page import as_csv, build_page
from torso.report.write import plot

from .samples import all_analyses, write_run


@pytest.fixture
def full(tmp_path: Path) -> Comparison:
    """Four methods with everything that can be measured."""
    for number, method in enumerate(("fedavg", "fedbabu", "fedper", "fedprox")):
        found = {
            "initial": [50.0 + number, 60.0, 70.0],
            "personalized": [70.0, 59.0 + number, 90.0],
            "local_only": [60.0, 60.0, 95.0],
            **{f"personalized@{e}": [40.0 + e, 50.0, 60.0] for e in (0, 1, 5)},
            "generic": [55.0],
        }
        write_run(tmp_path / method, method, accuracy=found, analyses=all_analyses())
    return compare_folders([tmp_path])


def test_ticks_are_round_numbers_within_the_range() -> None:
    assert ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert ticks(0.13, 0.41, 4) == [0.2, 0.3, 0.4]
    assert ticks(-7, 12, 4) == [-5, 0, 5, 10]
    assert ticks(3, 3) == [3]
    assert [nice(v) for v in (-0.5, 20000, 2.5e6, 0.0001, 100)] == ["−0.5", "20k", "2.5M", "1e−04", "100"]


def test_a_panel_puts_its_ends_at_its_edges() -> None:
    panel = Panel(10, 20, 110, 220, (0, 50), (0, 100))
    assert (panel.x(0), panel.x(25), panel.x(50)) == (10, 60, 110)
    assert (panel.y(0), panel.y(100), panel.y(25)) == (220, 20, 170)


def test_names_are_moved_apart_in_their_order() -> None:
    assert spread([50.0, 51.0, 90.0], 10, 0, 100) == [50, 60, 90]
    assert spread([99.0, 98.0], 10, 0, 100) == [100, 90]


def test_text_is_measured_and_shortened() -> None:
    assert text_width("in", 1000) == 222 + 556
    assert shortened("fedavg", 12, 100) == "fedavg"
    assert shortened("a-method-with-a-long-name", 12, 60).endswith("…")


def test_equal_values_stand_apart_and_all_are_drawn() -> None:
    panel = Panel(0, 0, 100, 100, (0, 100), (0, 1))
    swarm = Swarm.of(panel, [(50.0, str(i)) for i in range(40)] + [(10.0, "alone")], middle=50, half=20)
    places = {(round(x, 3), round(y, 3)) for _, (x, y, _) in swarm.dots}
    assert len(places) == 41
    assert all(30 <= y <= 70 for _, y in places)
    assert (10, 50) in places
    at_fifty = [x for value, (x, _, _) in swarm.dots if value == 50]
    assert sum(at_fifty) / len(at_fifty) == pytest.approx(50, abs=1.5)


def test_too_many_dots_are_thinned_evenly_with_both_ends() -> None:
    many = [(float(i), "") for i in range(1000)]
    some = thinned(many)
    assert len(some) == MOST
    assert (some[0], some[-1]) == (many[0], many[-1])


def test_cells_take_their_step_of_the_ramp_and_leave_gaps_empty() -> None:
    found = matrix([[0.0, None], [5.0, 9.0]])
    assert found is not None
    frame, ground, *marks = cells(found, (0, 0, 20, 40), Ramp(0, 9), blank=0)
    assert isinstance(frame, Boxes)
    assert isinstance(ground, Boxes)
    assert marks == [Cells([(0, 1)], "q5", 0, 0, 10, 20), Cells([(1, 1)], "q8", 0, 0, 10, 20)]
    assert marks[1].boxes == [(10, 20, 10, 20)]  # type: ignore[union-attr]
    assert [level(v, -1, 1) for v in (-1, 0, 1)] == [0, 4, 8]
    assert matrix([[1, 2], [3]]) is None
    assert matrix("text") is None
    assert evenly(1000, 3).tolist() == [0, 500, 999] or len(evenly(1000, 3)) == 3


def test_a_curve_is_the_mean_over_seeds_with_the_final_measurement_at_its_end(tmp_path: Path) -> None:
    """The history says 10, 20, 30, 40 % at 1, 2, 3, 4 MB; the results say 55 and 65 % at 4 MB."""
    write_run(tmp_path / "a", seed=0, accuracy={"initial": [50.0, 60.0]})
    write_run(tmp_path / "b", seed=1, accuracy={"initial": [60.0, 70.0]})
    found = curve(compare_folders([tmp_path]).entries[0], "initial", by_megabytes)
    assert found is not None
    assert (found.xs, found.ys) == ((1, 2, 3, 4), (10, 20, 30, 60))
    assert (found.low[0], found.high[0]) == (5, 15)


def test_signs() -> None:
    assert [signed(v) for v in (1.25, -3.0, 0.04, -0.01)] == ["+1.2", "−3.0", "0.0", "0.0"]


MARKS = Drawing(
    60,
    [
        Line([(10, 10), (90, 10), (90, 40)], "s1", 2, (4, 2)),
        Dots([(50, 30, "<b>&")], "s0", 5, 0.5),
        Boxes([(0, 50, 10, 10)], "q8"),
        Text(20, 20, "a < b (±)\\ −1 <script>", "ink", anchor="middle"),
    ],
    width=100,
)


def test_svg_is_well_formed_and_escaped_with_classes_or_colours() -> None:
    for text in (to_svg(MARKS, 'say "x" <i>'), to_svg_file(MARKS).decode()):
        assert "<script>" not in text
        root = ElementTree.fromstring(text.encode())
        assert "a < b (±)\\ −1 <script>" in [node.text for node in root.iter() if node.tag.endswith("}text")]
    assert 'class="f-s0"' in to_svg(MARKS)
    assert LIGHT["s0"] in to_svg_file(MARKS).decode()
    assert "class=" not in to_svg_file(MARKS).decode()


def test_pdf_has_one_page_of_the_right_size_whose_table_points_at_its_objects() -> None:
    found = to_pdf(MARKS)
    assert found.startswith(b"%PDF-1.4")
    assert b"/MediaBox [0 0 75.00 45.00]" in found
    start = int(found.rsplit(b"startxref\n", 1)[1].split()[0])
    assert found[start:].startswith(b"xref")
    for number, place in enumerate(re.findall(rb"(\d{10}) 00000 n", found), 1):
        assert found[int(place) :].startswith(b"%d 0 obj" % number)
    stream = zlib.decompress(found.split(b"stream\n", 1)[1].split(b"\nendstream")[0]).decode("latin-1")
    assert "(a < b \\(±\\)\\\\ \x961 <script>) Tj" in stream  # WinAnsi: 0x96 is the dash that stands for the minus


def test_png_shows_the_colours_where_the_marks_are() -> None:
    image = Image.open(BytesIO(to_png(MARKS))).convert("RGB")
    assert image.size == (100 * SCALE, 60 * SCALE)
    assert "#{:02x}{:02x}{:02x}".format(*image.getpixel((5 * SCALE, 55 * SCALE))) == LIGHT["q8"]  # type: ignore[misc]


def test_palettes_have_the_same_roles_and_enough_contrast() -> None:
    """WCAG: text in series colours needs 3:1 (it is bold), ink and muted text 4.5:1."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    assert LIGHT.keys() == DARK.keys()
    for palette in (LIGHT, DARK):
        for role, least in (("ink", 4.5), ("muted", 4.5), *((f"s{i}", 3.0) for i in range(8))):
            bright, dark = sorted((light(palette[role]), light(palette["ground"])), reverse=True)
            assert (bright + 0.05) / (dark + 0.05) >= least, role


def test_every_kind_draws_from_a_full_comparison(full: Comparison) -> None:
    for name, kind in KINDS.items():
        charts = kind.make(full)
        assert charts, name
        for chart in charts:
            ElementTree.fromstring(to_svg(chart.drawing, chart.title).encode())
            assert "nan" not in to_svg(chart.drawing), name
            assert chart.rows, name
            assert all(len(row) == len(chart.columns) for row in chart.rows), name
            assert as_csv(chart).count("\n") == len(chart.rows) + 1
            assert to_pdf(chart.drawing)


@pytest.mark.parametrize("broken", [3, "x", [1], {"accuracy": [[1], [2, 3]]}, {"x": [1], "y": [1, 2], "label": []}])
def test_analyses_of_another_shape_are_named_not_drawn(tmp_path: Path, broken: object) -> None:
    write_run(tmp_path / "a", analyses=dict.fromkeys(all_analyses(), broken))
    comparison = compare_folders([tmp_path])
    page = build_page(comparison)
    for key in all_analyses():
        assert f"fedavg: {key} in analyses.json is not of the expected shape" in page, key


def test_plot_writes_what_the_ending_says_and_refuses_the_rest(tmp_path: Path, full: Comparison) -> None:
    runs = [tmp_path]
    for name, start in (("x.svg", b"<?xml"), ("x.pdf", b"%PDF"), ("deep/x.png", b"\x89PNG")):
        plot(runs, "rounds", tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)
    plot(runs, "tsne", tmp_path / "t.svg", of="fedper")
    for kind, out, of, said in (
        ("round", "x.svg", None, "did you mean 'rounds'"),
        ("rounds", "x.jpg", None, r"Accepted: .svg, .pdf, .png"),
        ("tsne", "x.svg", None, "Choose one with --of: fedavg, fedbabu, fedper, fedprox"),
        ("tsne", "x.svg", "fed", "there is no such tsne chart"),
        ("rounds", "deep", None, "no ending"),
    ):
        with pytest.raises(RequestError, match=said):
            plot(runs, kind, tmp_path / out, of)
    bare = write_run(tmp_path / "bare" / "a")
    with pytest.raises(RequestError, match="hold nothing for it"):
        plot([bare], "tsne", tmp_path / "x.svg")
