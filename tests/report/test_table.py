"""The table of results: clients pooled over seeds, failed runs in sight, names printed as they are."""

from __future__ import annotations

import math
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from torso.measure import Accuracy
from torso.methods import methods
from torso.nets import bodies
from torso.nets.bodies import families
from torso.report.lists import axes_in_words, list_methods, list_models
from torso.report.printing import print_list
from torso.report.table import rows, table
from torso.results.result import Result
from torso.runs.events import Begin
from torso.runs.progress import LiveBars, PlainLines
from torso.runs.rounds import Round
from torso.server.state import Cost


def made(method: str, seed: int, *clients: float, generic: float = 50.0, status: str = "ok") -> Result:
    accuracy = {
        "initial": Accuracy.over(clients),
        "generic": Accuracy.over([generic], per_client=False),
    }
    return Result(
        method=method,
        dataset="digits",
        model="mlp",
        seed=seed,
        rounds=3,
        status=status,
        accuracy=accuracy if status == "ok" else {},
        cost=Cost(3_000_000, 1_000_000 * (seed + 1), 7),
        seconds={"train": 1.0, "measure": 1.0, "total": 2.0 + seed},
    )


def shown(view: Table | str, width: int = 120) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(view)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def shown_table(results: list[Result], width: int = 120) -> str:
    console = Console(file=StringIO(), width=width)
    return shown(table(results, console), width)


def test_a_usual_terminal_breaks_no_number_and_no_word() -> None:
    """80 columns, four accuracies and the worst tenth: numbers that were folded read as two."""
    names = ("initial", "without_head", "personalized")
    own = dict.fromkeys(names, Accuracy.over([4.9, 95.5]))
    said = shown_table([replace(made("fedrod-linear", 0, 50), accuracy={**made("x", 0, 1).accuracy, **own})], 80)
    assert said.count("50.2±45.3") == 3
    assert "personal-" in said
    assert "…" not in said


def test_numbers_that_do_not_fit_side_by_side_stand_below_each_other() -> None:
    """They were cut: `fedr…  20.0±40…  1…`."""
    names = ("initial", "without_head", "local", "personalized", "personal", "new_before", "new_after")
    accuracy = {**made("x", 0, 1).accuracy, **dict.fromkeys(names, Accuracy.over([4.9, 95.5]))}
    results = [replace(made(name, 0, 50), accuracy=accuracy) for name in ("fedrod-hyper-scaffold", "fedavg")]
    for width in (60, 80):
        said = shown_table([*results, made("fedper", 0, status="failed: gone")], width)
        assert "…" not in said
        assert max(map(len, said.splitlines())) <= width
        assert [name for name in ("fedrod-hyper-scaffold", "fedavg", "fedper (1 of 1 failed)") if name in said] == [
            "fedrod-hyper-scaffold", "fedavg", "fedper (1 of 1 failed)",
        ]  # fmt: skip
        assert said.count("50.2 ± 45.3") == 2 * len(names)


def test_clients_of_all_seeds_are_pooled_and_costs_averaged() -> None:
    """Unequal numbers of clients, so that the mean of means (37.5) would be another number."""
    (row,) = rows([made("fedavg", 0, 10, 20, 30), made("fedavg", 1, 50, generic=70)])
    assert row.seeds == 2
    assert row.accuracy["initial"].mean == 27.5
    assert row.accuracy["initial"].std == pytest.approx(np.std([10, 20, 30, 50]))
    assert row.accuracy["initial"].n == 4
    assert (row.accuracy["generic"].mean, row.accuracy["generic"].std) == (60, 10)  # over seeds: it has no clients
    assert (row.megabytes, row.seconds) == (4.5, 2.5)


def test_methods_come_in_order_of_appearance_with_mean_and_std() -> None:
    text = shown_table([made("fedper", 0, 10, 20), made("fedavg", 0, 30, 50)])
    assert text.index("fedper") < text.index("fedavg")
    assert "15.0 ± 5.0" in text
    assert "40.0 ± 10.0" in text
    assert "4.0" in text  # megabytes in both directions


def test_a_client_without_test_data_is_not_counted() -> None:
    (row,) = rows([made("fedavg", 0, 10, float("nan"), 30)])
    assert (row.accuracy["initial"].mean, row.accuracy["initial"].n) == (20, 2)


def test_a_failed_run_keeps_its_row_and_does_not_spoil_the_others() -> None:
    failure = "failed: non-finite loss in round 1, client 2"
    results = [made("bomb", 0, status=failure), made("fedavg", 0, 30, 50), made("fedavg", 1, status=failure)]
    bomb, fedavg = rows(results)
    assert (bomb.failed, bomb.seeds) == (1, 1)
    assert (fedavg.failed, fedavg.seeds) == (1, 2)
    assert fedavg.accuracy["initial"].mean == 40
    line = next(line for line in shown_table(results).splitlines() if "bomb" in line)
    assert "(1 of 1 failed)" in line
    assert line.count("–") == 2


def test_when_every_run_failed_there_is_still_a_table() -> None:
    assert "bomb" in shown_table([made("bomb", 0, status="failed: x")])


@pytest.mark.parametrize("name", ["my[bold]method[/bold]", "[/]", "[red]"])
def test_names_are_not_markup(name: str) -> None:
    assert name in shown_table([made(name, 0, 10)])


@pytest.mark.parametrize("display", [PlainLines, LiveBars])
def test_progress_prints_names_notes_and_failures_as_they_are(display: type[PlainLines] | type[LiveBars]) -> None:
    console = Console(file=StringIO(), width=200, force_terminal=display is LiveBars, color_system=None)
    watcher = display(console)
    for name in ("[/]", "a[red]b"):
        if isinstance(watcher, LiveBars):
            with watcher:
                tell(watcher, name)
        else:
            tell(watcher, name)
        assert name in console.file.getvalue()  # type: ignore[attr-defined]


def tell(watcher: PlainLines | LiveBars, name: str) -> None:
    watcher.begin(Begin(name, 0, 10, 3, 0, Path("runs") / name, f"continuing from {name}"))
    watcher.round(Round(1, name, 0.1, (1, 2), 0.5, Cost()), 0.1, {"initial": Accuracy.over([10.0, 20.0])})
    watcher.measuring(10)
    watcher.end(made(name, 0, status=f"failed: {name}"))


def test_plain_lines_say_round_participants_loss_accuracy_and_time_left() -> None:
    console = Console(file=StringIO(), width=200)
    lines = PlainLines(console)
    lines.begin(Begin("fedavg", 1, 10, 3, 1, Path("out"), "continuing after round 1"))
    lines.round(Round(2, "fedavg", 0.1, (1, 2), 0.5, Cost()), 0.1, {"initial": Accuracy.over([10.0, 20.0])})
    lines.round(Round(3, "fedavg", 0.1, (1, 2, 3), 0.25, Cost()), 0.1, {})
    said = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert said[0] == "fedavg seed 1: 3 rounds, 10 clients, folder out"
    assert said[1] == "fedavg seed 1: continuing after round 1"
    assert said[2].startswith("fedavg seed 1: round 2/3  2 clients  loss 0.5000  0.10 s  ")
    assert said[2].endswith("s left  initial 15.0 ± 5.0")
    assert said[3].endswith("0 s left  initial 15.0 ± 5.0")  # the last measured ones stay in sight
    assert "3 clients  loss 0.2500" in said[3]


def test_one_model_has_no_deviation_and_one_round_is_one_round() -> None:
    console = Console(file=StringIO(), width=200)
    lines = PlainLines(console)
    lines.begin(Begin("fedavg", 1, 1, 1, 0, Path("out"), ""))
    lines.round(Round(1, "fedavg", 0.1, (0,), 0.5, Cost()), 0.1, {"generic": Accuracy.over([50.0], per_client=False)})
    said = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert said[0] == "fedavg seed 1: 1 round, 1 client, folder out"
    assert "round 1/1  1 client  loss" in said[1]
    assert said[1].endswith("generic 50.0")


def test_the_lists_name_everything_that_is_registered() -> None:
    assert [row["name"] for row in list_methods()] == sorted(methods)
    assert all(row["about"] for row in list_methods())
    assert [row["name"] for row in list_models()] == [*sorted(bodies), *(f"{family}/NAME" for family in families)]
    sizes = {row["name"]: row["body_parameters"] for row in list_models()}
    assert sizes["resnet18"] == 11_168_832  # spec 11: 11,173,962 with a head of 512 × 10 + 10


def test_a_method_is_described_by_what_it_changes() -> None:
    assert axes_in_words(methods["fedavg"]) == "–"
    assert axes_in_words(methods["fedbabu"]) == "train=body share=body"
    assert axes_in_words(methods["fedper-reset"]) == "share=body rest=reset"
    assert axes_in_words(methods["fedprox"]) == "drift=proximal"


def test_the_worst_tenth_is_the_mean_of_the_lowest_clients_of_all_seeds() -> None:
    """Eleven personalised clients: ⌈1.1⌉ = 2 lowest, 5 and 10. Without personalised accuracies there is no column."""
    one, other = made("fedavg", 0, 50), made("fedavg", 1, 50)
    own = [
        replace(r, accuracy={"personalized": Accuracy.over(v)}) for r, v in ((one, [5.0, *[90.0] * 9]), (other, [10.0]))
    ]
    (row,) = rows(own)
    assert row.worst == 7.5
    assert "7.5" in shown_table(own)
    assert "worst" not in shown_table([one, other])


def test_the_worst_tenth_is_of_honest_clients_where_they_are_measured() -> None:
    """NaN is a client that attacks. Of the nine others the lowest has 20."""
    everybody, honest = [5.0, *[90.0] * 9], [math.nan, 20.0, *[90.0] * 8]
    accuracy = {"personalized": Accuracy.over(everybody), "benign": Accuracy.over(honest)}
    (row,) = rows([replace(made("fedavg", 0, 50), accuracy=accuracy)])
    assert row.worst == 20.0


def test_a_list_that_a_terminal_is_too_narrow_for_is_blocks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, object]] = [{"name": "conv3", "takes": "images", "about": "Three blocks of 3×3 convolutions."}]
    for width, expected in ((80, ["conv3   images   Three blocks of 3×3 convolutions."]), (20, [])):
        if width == 20:
            rows[0]["features"] = "–"
        monkeypatch.setenv("COLUMNS", str(width))
        print_list(rows, as_json=False)
        said = [line.strip() for line in capsys.readouterr().out.splitlines()]
        assert "–" not in "".join(said)  # a block leaves out what is unknown
        assert (set(expected) or {"conv3", "Three blocks of", "3×3 convolutions.", "takes images"}) <= set(said)
