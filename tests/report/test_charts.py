"""Drawings with known places, and every chart of the page from analyses of the promised shapes."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from torso.report.charts import KINDS
from torso.report.charts.clients import MOST, Swarm, signed, thinned
from torso.report.charts.drawing import (
    Boxes,
    Cells,
    Dots,
    Drawing,
    Line,
    Text,
    fitted,
    nice,
    shortened,
    spread,
    text_room,
    ticks,
)
from torso.report.charts.heat import Heat, Ramp, cells, even_indices, matrix
from torso.report.charts.palette import DARK, LIGHT, level
from torso.report.charts.panels import Axis, End, Panel, Plot, Row
from torso.report.charts.rounds import by_megabytes, curve
from torso.report.charts.svg import to_svg
from torso.report.comparison import Comparison, compare_folders
from torso.report.page import as_csv, build_page

from .samples import all_analyses, write_run


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
    assert panel.value_at(panel.x(13), panel.y(77)) == pytest.approx((13, 77))


def test_names_are_moved_apart_in_their_order() -> None:
    assert spread([50.0, 51.0, 90.0], 10, 0, 100) == [50, 60, 90]
    assert spread([99.0, 98.0], 10, 0, 100) == [100, 90]


def test_text_is_measured_and_shortened() -> None:
    assert text_room("fedavg", 10) == pytest.approx(42)
    assert shortened("fedavg", 12, 100) == "fedavg"
    assert shortened("a-method-with-a-long-name", 12, 60) == "a-meth…"  # 60 / (0.7 × 12): seven letters
    assert fitted("fedavg", 12, 100) == ("fedavg", 12)
    assert fitted("ten-letters", 12, 77) == ("ten-letters", pytest.approx(10))  # 77 / (0.7 × 11)
    assert fitted("a-method-with-a-long-name", 12, 56) == ("a-method-…", 8)  # no smaller: 56 / (0.7 × 8) letters


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
    frame, ground, *marks = cells(Heat(found, Ramp(0, 9), blank=0), 0, 0, 20, 40)
    assert isinstance(frame, Boxes)
    assert isinstance(ground, Boxes)
    assert marks == [Cells([(0, 1)], "q5", 0, 0, 10, 20), Cells([(1, 1)], "q8", 0, 0, 10, 20)]
    assert [level(v, -1, 1) for v in (-1, 0, 1)] == [0, 4, 8]
    assert matrix([[1, 2], [3]]) is None
    assert matrix("text") is None
    assert even_indices(1000, 3).tolist() == [0, 500, 999] or len(even_indices(1000, 3)) == 3


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


def test_svg_is_well_formed_and_escaped_and_the_theme_colours_it() -> None:
    text = to_svg(MARKS, 'say "x" <i>')
    assert "<script>" not in text
    root = ElementTree.fromstring(text.encode())
    assert "a < b (±)\\ −1 <script>" in [node.text for node in root.iter() if node.tag.endswith("}text")]
    assert 'class="f-s0"' in text
    assert LIGHT["s0"] not in text


def test_a_panel_on_the_page_has_its_marks_in_units_and_its_words_around_it() -> None:
    panel = Panel(
        *(100, 20, 300, 120, (0, 10), (2, 0)),
        across=Axis("points", about=2),
        marks=[Line([(5, 0.5), (10, 1.5)], "s2")],
        ends=[End(10, 1.5, "fedavg", "s2")],
        rows=(Row("first", "s0", (("3", "s1"), ("4", "s0"))), Row("second", "s1", (("7", "s1"), ("8", "s0")))),
        heads=("lose", "gain"),
        title="who",
    )
    marks = Plot(160, [panel]).drawing().marks
    assert Line([(200, 45), (300, 95)], "s2") in marks
    words = {mark.text: (mark.x, mark.y, mark.anchor) for mark in marks if isinstance(mark, Text)}
    assert words["points"] == (300, 154, "end")
    assert words["5"] == (200, 138, "middle")  # a tick
    assert words["fedavg"] == (309, 99, "start")
    assert words["second"] == (0, 99, "start")
    assert (words["7"], words["8"]) == ((450, 99, "end"), (480, 99, "end"))
    assert words["lose · gain"] == (480, 10, "end")
    assert words["who"] == (100, 10, "start")


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


@pytest.mark.parametrize("broken", [3, "x", [1], {"accuracy": [[1], [2, 3]]}, {"x": [1], "y": [1, 2], "label": []}])
def test_analyses_of_another_shape_are_named_not_drawn(tmp_path: Path, broken: object) -> None:
    write_run(tmp_path / "a", analyses=dict.fromkeys(all_analyses(), broken))
    comparison = compare_folders([tmp_path])
    page = build_page(comparison)
    for key in all_analyses():
        assert f"fedavg: {key} in analyses.json does not have the expected shape" in page, key


def test_clients_heard_is_drawn_where_some_were_missing(tmp_path: Path, full: Comparison) -> None:
    """In round 1, two of three were heard; in the others, all."""
    (chart,) = KINDS["heard"].make(full)
    assert [row[2] for row in chart.rows if row[0] == "fedavg"] == pytest.approx([200 / 3, 100, 100, 100])
    write_run(tmp_path / "whole", "fedavg")
    assert KINDS["heard"].make(compare_folders([tmp_path / "whole"])) == []


def test_hours_and_staleness_are_drawn_where_time_is_simulated(tmp_path: Path, full_runs: Path) -> None:
    """Rounds of 2.5 hours, uploads of staleness r − 1 and r; a run without hours beside them has no curve."""
    plain = write_run(tmp_path / "runs" / "plain", "local-only")
    both = compare_folders([full_runs])
    (chart,) = KINDS["hours"].make(both)
    assert [row[1:3] for row in chart.rows if row[0] == "fedavg"] == [(2.5, 10), (5, 20), (7.5, 30), (10, 60)]
    (ages,) = KINDS["staleness"].make(both)
    assert [row[1:] for row in ages.rows if row[0] == "fedavg"] == [(r, r - 0.5) for r in range(1, 5)]
    for made in (chart, ages):
        assert {row[0] for row in made.rows} == {"fedavg", "fedbabu", "fedper", "fedprox"}
    alone = compare_folders([plain])
    assert KINDS["hours"].make(alone) == []
    assert KINDS["staleness"].make(alone) == []
