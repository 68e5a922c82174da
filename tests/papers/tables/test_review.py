"""The statistics of a reproduced table, by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from torso.papers.experiments.provenance import changed
from torso.papers.pages.reproduction import claims_page, overview
from torso.papers.pages.table import cell, notes
from torso.papers.tables.answers import Answer
from torso.papers.tables.collect import blank, collect, read, tidy
from torso.papers.tables.plan import plan
from torso.papers.tables.published import recipe
from torso.papers.tables.review import SecondLineCount, rank_correlations, review, spearman, within_error, within_points

from ..lines import answer, failed, nothing, second


def test_numbers_within_three_points_are_counted() -> None:
    answers = [answer("A", (80.0,), 83.0), answer("B", (80.0,), 83.1), answer("C", (80.0,), None), nothing("D", 80.0)]
    assert within_points(answers) == (1, 2)
    bug = {**answer("E", (80.0,), 80.0), "not_comparable": "a mistake"}
    cost = {**answer("F", (80.0,), 80.0), "metric": "total_communication_GB"}
    assert within_points([*answers, bug, cost]) == (1, 2)


def published_over(line: Answer, over: str, std: float | None) -> Answer:
    return {**line, "published": {**line["published"], "std_over": over, "std": std}}


SEEDS = (79.0, 80.0, 81.0)  # mean 80, standard deviation 1


@pytest.mark.parametrize(
    ("over", "std", "reach"),
    [
        # one run: Student's 4.3027 at 2 degrees of freedom, times the root of 1 + 1/3
        ("clients", 7.0, 4.9683),
        ("", None, 4.9683),
        # a mean of five seeds of unknown spread: times the root of 1/3 + 1/5
        ("5 seeds", None, 3.1422),
        # of standard deviation 2: root of 1/3 + 4/5, Student at 1.1333² / (1/9/2 + 16/25/4) = 5.959 degrees
        ("5 seeds", 2.0, 2.6093),
    ],
)
def test_the_error_is_of_the_difference_to_a_number_that_varies_too(over: str, std: float | None, reach: float) -> None:
    lines = [published_over(answer("A", SEEDS, 80.0 + apart), over, std) for apart in (reach - 0.001, reach + 0.001)]
    assert within_error([*lines, answer("one seed", (80.0,), 80.0)]) == (1, 2)


def test_what_diverged_is_not_near_and_has_no_difference() -> None:
    lines = [
        answer("A", (80.0,), 81.0),
        failed(nothing("B", 80.0)),
        failed(answer("C", (80.0, 80.0), 80.0)),  # the seeds that are left would flatter
        failed(nothing("D", 80.0), why="the disk is full"),
    ]
    found = review(lines)
    assert (found.near, found.within, found.offset) == ((1, 3), (0, 0), -1.0)
    assert (found.numbers, found.measured, found.diverged) == (4, 3, 2)


def test_second_lines_count_for_themselves_alone() -> None:
    firsts = [answer(m, (70.0 + i,), 60.0 + i, local_epochs=1) for i, m in enumerate("ABC")]
    firsts[2]["not_comparable"] = "a mistake"
    seconds = [second(answer(m, (60.0 + i,), 60.0 + i, local_epochs=1)) for i, m in enumerate("ABC")]
    other = second(answer("A", (70.0,), 60.0, local_epochs=1), "before fine-tuning")
    alone, together = review(firsts), review([*firsts, *seconds, other])
    assert (together.near, together.offset, together.settings) == ((0, 2), 10.0, 0)
    assert (alone.numbers, alone.near, alone.offset) == (together.numbers, together.near, together.offset)
    assert together.second == [
        SecondLineCount("as the paper's code", 3, 3, 0),
        SecondLineCount("before fine-tuning", 0, 1, 0),
    ]
    assert "as the paper's code: 3 of 3 (first lines: 0)" in overview({"fedbabu/13": [*firsts, *seconds]})


def test_each_ratio_of_a_long_tail_is_ranked_by_itself() -> None:
    found = [answer(m, (float(i),), float(i), imbalance_ratio=10) for i, m in enumerate("ABC")]
    found += [answer(m, (-float(i),), float(i), imbalance_ratio=100) for i, m in enumerate("ABC")]
    assert sorted(rank_correlations(found).values()) == pytest.approx([-1.0, 1.0])


def test_spearman_by_hand() -> None:
    """Ranks 1 2 3 4 and 2 1 3 4: 1 − 6·2/(4·15) = 0.8; with ties the mean rank."""
    assert spearman([1, 2, 3, 4], [20, 10, 30, 40]) == pytest.approx(0.8)
    assert spearman([1, 2, 3], [30, 20, 10]) == pytest.approx(-1)
    assert spearman([1, 1, 2], [5, 6, 7]) == pytest.approx(math.sqrt(3) / 2)
    assert math.isnan(spearman([1, 1, 1], [1, 2, 3]))


def test_order_is_judged_within_a_setting() -> None:
    right = [answer(m, (float(i),), 10.0 * i) for i, m in enumerate("ABC")]
    wrong = [answer(m, (-float(i),), 10.0 * i, shards=5) for i, m in enumerate("ABC")]
    few = [answer("A", (1.0,), 1.0, shards=10)]
    found = rank_correlations([*right, *wrong, *few])
    assert sorted(found.values()) == pytest.approx([-1.0, 1.0])
    summary = review([*right, *wrong, *few, nothing("Z", 3.0)])
    assert (summary.numbers, summary.measured, summary.settings) == (8, 7, 2)
    assert summary.order == pytest.approx(0.0)


def _lines(config: dict[str, Any] | None = None, seeds: int = 1, **ours: float | None) -> list[Answer]:
    """Records of fedbabu/13 in one setting, by method: run by the recipe, or by `config`; None: diverged."""
    setting = {"shards": 2, "fraction": 0.1, "local_epochs": 10}
    runs = {
        run.config.method.name: run for run in plan(recipe("fedbabu/13"), "shards=2,fraction=0.1,local_epochs=10").runs
    }
    lines = [line for line in blank("fedbabu/13") if not line["variant"] and setting.items() <= line["setting"].items()]
    for line in lines:
        name = line["method"].lower()
        if name in ours:
            known = {"config": changed(runs[name].config) | (config or {}), "machine": {}, "versions": {}, "data": ""}
            found = ours[name]
            good = {"ours": {"mean": found, "seeds": {str(seed): found for seed in range(seeds)}}}
            line.update(known | ({"status": "failed: non-finite"} if found is None else good))
    return lines


def _broken(lines: list[Answer]) -> list[Answer]:
    """The same, where the machine failed."""
    return [{**line, "ours": None, "status": "failed: CUDA error"} if line["ours"] else line for line in lines]


def test_results_are_taken_in_and_kept_until_they_are_run_again(tmp_path: Path) -> None:
    out, folder = tmp_path / "out", tmp_path / "docs"
    (out / "fedbabu-13").mkdir(parents=True)

    def command(answers: list[Answer], left: list[str]) -> dict[str, Any]:
        (out / "fedbabu-13" / "table.json").write_text(json.dumps(answers))
        assert collect(out, folder) == {"fedbabu/13": left}
        return {
            a["method"].lower(): a["ours"] and a["ours"]["mean"] for a in read(folder)["fedbabu/13"] if "config" in a
        }

    assert command(_lines(fedavg=1.0), []) == {"fedavg": 1.0}
    assert command(_lines(fedbabu=2.0), []) == {"fedavg": 1.0, "fedbabu": 2.0}
    assert command(_lines(fedavg=3.0), []) == {"fedavg": 3.0, "fedbabu": 2.0}
    assert command(_lines(fedavg=None), []) == {"fedavg": None, "fedbabu": 2.0}  # no success of old
    assert command(_lines(fedbabu=4.0, seeds=2), []) == {"fedavg": None, "fedbabu": 4.0}
    assert command(_lines(fedbabu=9.0), ["FedBABU: 1 seed, not 2"]) == {"fedavg": None, "fedbabu": 4.0}
    broken = _broken(_lines(fedbabu=9.0, fedper=9.0))
    assert command(broken, ["FedBABU: 0 seeds, not 2"]) == {"fedavg": None, "fedbabu": 4.0, "fedper": None}
    short = _lines({"train.rounds": 1, "run.precision": "bf16"}, fedbabu=9.0)  # of `--set train.rounds=1`
    assert command(short, ["FedBABU: train.rounds = 1, not 32"]) == {"fedavg": None, "fedbabu": 4.0, "fedper": None}
    (folder / "fedbabu-13.json").write_text(json.dumps([*_lines(fedavg=3.0)[:1], *short]))
    assert tidy(folder) == {"fedbabu/13": ["FedBABU: train.rounds = 1, not 32"]}  # the recipe was another then
    assert tidy(folder) == {}


def test_what_two_tables_ask_of_one_run_is_answered_in_both(tmp_path: Path) -> None:
    """FedAvg of table 13 is the run of table 15 in which all blocks learn and travel."""

    def of_15(lines: list[Answer]) -> list[tuple[str, Any, str]]:
        (tmp_path / "fedbabu-13.json").write_text(json.dumps(lines))
        assert tidy(tmp_path) == {}
        there = [line for line in read(tmp_path).get("fedbabu/15", []) if "config" in line]
        assert all(line["table"] == "15" for line in there)
        return [(line["method"], line["ours"] and line["ours"]["mean"], line["from"]) for line in there]

    assert of_15(_lines(fedavg=1.0)) == [("FedAvg", 1.0, "fedbabu/13")]
    assert of_15(_lines(fedavg=2.0)) == [("FedAvg", 2.0, "fedbabu/13")]  # it follows
    assert of_15(_lines(fedavg=None)) == [("FedAvg", None, "fedbabu/13")]  # divergence, too
    assert of_15(_lines(fedper=1.0)) == []
    assert of_15(_broken(_lines(fedavg=1.0))) == []


def test_a_table_that_has_run_something_itself_says_that(tmp_path: Path) -> None:
    """Table 4 fine-tunes everything, which table 5 leaves to the method; the same for FedAvg."""

    def answered(name: str, mean: float) -> None:
        run = next(run for run in plan(recipe(name)).runs if wanted.items() <= changed(run.config).items())
        lines = blank(name)
        for place in run.answers:
            ours = {"mean": mean, "seeds": {"0": mean}}
            lines[place] |= {"ours": ours, "status": "ok", "config": changed(run.config), "machine": {}, "versions": {}}
        (tmp_path / f"{name.replace('/', '-')}.json").write_text(json.dumps(lines))
        assert tidy(tmp_path) == {}

    def means(name: str) -> set[float]:
        return {line["ours"]["mean"] for line in read(tmp_path)[name] if line["ours"]}

    wanted = {"method.name": "fedavg", "data.shards": 10, "train.fraction": 0.1, "train.local_epochs": 4}
    wanted |= {"personalize.part": "full"}
    answered("fedbabu/4", 7.0)
    assert (means("fedbabu/4"), means("fedbabu/5")) == ({7.0}, {7.0})
    del wanted["personalize.part"]
    answered("fedbabu/5", 8.0)
    assert (means("fedbabu/4"), means("fedbabu/5")) == ({7.0}, {8.0})


def test_a_run_that_measured_fewer_clients_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "fedbabu-13.json").write_text(json.dumps(_lines({"measure.clients": 5}, fedavg=3.0)))
    assert tidy(tmp_path) == {"fedbabu/13": ["FedAvg: measure.clients = 5, not as usual"]}
    assert read(tmp_path) == {}


def test_a_cell_says_how_many_seeds_failed() -> None:
    assert cell(failed(answer("A", (80.0,), 79.0), 2)) == "80.0 ✗ 2 of 3 failed (79.0, +1.0)"
    assert cell(failed(nothing("A", 79.0), 3)) == "✗ (79.0)"
    assert cell(answer("A", (80.0,), None)) == "80.0 (✗)"
    assert cell(nothing("A", 79.0)) == "– (79.0)"


def test_doubts_about_published_numbers_are_told() -> None:
    said = notes(recipe("fedbabu/15"), blank("fedbabu/15"))
    assert "2 published numbers: conv12 and conv123 cells are identical in the paper (probable copy error)." in said
    assert any("not converge" in line for line in notes(recipe("fedfn/a2"), blank("fedfn/a2")))


def test_the_pages_say_what_ran_where_and_what_did_not() -> None:
    tables = {"fedbabu/13": [answer("FedBABU", (88.0, 90.0), 88.5, fraction=0.1, local_epochs=10)]}
    page = overview(tables)
    assert "89.0 (88.5, +0.5)" in page
    assert "a machine (bf16)" in page
    assert "re-encoded as JPEG" in page
    assert "| 1 of 1 | 1 of 1 | 1 of 1 | +0.5 | – | – |" in page
    assert "no evidence yet" in claims_page({})
    assert "(spec" not in claims_page({})
