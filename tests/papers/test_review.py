"""The statistics of a reproduced table, by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from torso.papers.answers import Answer
from torso.papers.claims import Claim, claims, judge
from torso.papers.docs import blank, claims_page, overview, read, take, write
from torso.papers.published import names, recipe
from torso.papers.review import pairs, rank_correlations, review, spearman, within_errors, within_points
from torso.papers.show import notes


def answer(method: str, ours: tuple[float, ...], published: float | None, **setting: Any) -> Answer:
    """A record as table.json has it; `ours`: a value a seed."""
    found = {"mean": sum(ours) / len(ours), "std": None, "seeds": {str(i): v for i, v in enumerate(ours)}}
    return {
        "paper": "FedBABU",
        "table": "13",
        "dataset": "CIFAR10",
        "model": "4convNet",
        "setting": {"partition": "shards", "shards": 2, **setting},
        "method": method,
        "variant": "",
        "metric": "personalized",
        "published": {"mean": published, "std": None, "std_over": "clients", "note": ""},
        "ours": found if ours else None,
        "status": "ok",
        "config": {},
        "machine": {"device": "a machine", "precision": "bf16"},
        "versions": {"torch": "2"},
        "data": "cifar10_jpeg.npz",
    }


def nothing(method: str, published: float, **setting: Any) -> Answer:
    return {**answer(method, (0.0,), published, **setting), "ours": None, "status": "not run"}


def test_numbers_within_three_points_are_counted() -> None:
    answers = [answer("A", (80.0,), 83.0), answer("B", (80.0,), 83.1), answer("C", (80.0,), None), nothing("D", 80.0)]
    assert within_points(answers) == (1, 2)
    bug = {**answer("E", (80.0,), 80.0), "not_comparable": "a mistake"}
    cost = {**answer("F", (80.0,), 80.0), "metric": "total_communication_GB"}
    assert within_points([*answers, bug, cost]) == (1, 2)


def test_standard_errors_are_over_seeds() -> None:
    """Seeds 79, 80, 81: standard deviation 1, standard error 1/√3 = 0.577; two of them are 1.155."""
    seeds = (79.0, 80.0, 81.0)
    assert within_errors([answer("A", seeds, 81.15), answer("B", seeds, 81.16), answer("C", (80.0,), 80.0)]) == (1, 2)


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


def test_a_claimed_difference_is_paired_within_settings() -> None:
    answers = [
        answer("A", (80.0,), 80.0, fraction=0.1),
        answer("B", (70.0,), 81.0, fraction=0.1),
        answer("A", (60.0,), 80.0, fraction=1.0),
        answer("B", (70.0,), 79.0, fraction=1.0),
        answer("Alone", (50.0,), 50.0),  # has no fraction: stands beside both
    ]
    ours = pairs(answers, {"method": "A"}, {"method": "B"}, ours=True)
    assert (ours.held, ours.there, ours.mean) == (1, 2, 0.0)
    assert pairs(answers, {"method": "A"}, {"method": "B"}, ours=True, margin=-10.5).held == 2
    assert pairs(answers, {"fraction": 0.1}, {"fraction": 1.0}, ours=True).there == 2  # A with A, B with B
    alone = pairs(answers, {"method": "A"}, {"method": "Alone"}, ours=True)
    assert (alone.held, alone.there, alone.mean) == (2, 2, 20.0)


def test_a_difference_is_clear_beyond_two_standard_errors() -> None:
    """Seeds 79, 80, 81 twice: 0.577 each, 0.816 of the difference; two of them are 1.63."""
    seeds = (79.0, 80.0, 81.0)
    above = [answer("A", (80.7, 81.7, 82.7), 1.0), answer("B", seeds, 2.0)]
    found = pairs(above, {"method": "A"}, {"method": "B"}, ours=True)
    assert (found.held, found.clear, found.against) == (1, 1, 0)
    assert pairs(above, {"method": "A"}, {"method": "B"}, ours=True, margin=0.1).clear == 0
    turned = pairs(above, {"method": "B"}, {"method": "A"}, ours=True)
    assert (turned.held, turned.clear, turned.against) == (0, 0, 1)
    assert pairs(above, {"method": "A"}, {"method": "B"}, ours=False).against == 0
    once = [answer("A", (90.0,), 1.0), answer("B", (80.0,), 2.0)]
    assert pairs(once, {"method": "A"}, {"method": "B"}, ours=True).clear == 0


def test_a_claim_has_a_verdict_or_no_evidence() -> None:
    claim = Claim("FedBABU", "A is better", ("fedbabu/13",), {"method": "A"}, {"method": "B"})
    better = [answer("A", (80.0,), 80.0), answer("B", (70.0,), 70.0)]
    mixed = [*better, answer("A", (1.0,), 2.0, shards=5), answer("B", (3.0,), 1.0, shards=5)]
    assert judge(claim, {"fedbabu/13": better}).word == "holds"
    assert judge(claim, {"fedbabu/13": mixed}).word == "holds in part"
    assert judge(claim, {"fedbabu/13": mixed[2:]}).word == "does not hold"
    verdict = judge(claim, {"fedbabu/13": [nothing("A", 80.0), nothing("B", 70.0)]})
    assert (verdict.word, verdict.published.held, verdict.published.there) == ("no evidence yet", 1, 1)


def test_methods_are_compared_one_to_one_where_a_claim_says_so() -> None:
    methods = ("FedAvg", "SCAFFOLD", "FedAvg+FN", "SCAFFOLD+FN")
    answers = [answer(m, (v,), v) for m, v in zip(methods, (10.0, 50.0, 20.0, 60.0), strict=True)]
    claim = Claim(
        "FedFN", "FN helps", ("x",), {"method": list(methods[2:])}, {"method": list(methods[:2])}, same="base"
    )
    assert judge(claim, {"x": answers}).ours.there == 2
    assert judge(claim, {"x": answers}).word == "holds"


def test_every_claim_meets_numbers_in_every_table_that_it_names() -> None:
    tables = {name: blank(name) for name in names()}
    found = claims()
    assert len(found) >= 30
    for claim in found:
        for name in claim.tables:
            published = judge(claim, {name: tables[name]}).published
            assert published.there, f"{claim.says}: nothing in {name}"
        assert judge(claim, tables).published.share >= 0.5, f"{claim.says}: against the paper's own numbers"


def test_results_are_taken_in_and_kept_until_they_are_run_again(tmp_path: Path) -> None:
    out, folder = tmp_path / "out", tmp_path / "docs"
    (out / "fedbabu-13").mkdir(parents=True)

    def command(*answers: Answer) -> dict[str, Any]:
        (out / "fedbabu-13" / "table.json").write_text(json.dumps(answers))
        assert take(out, folder) == ["fedbabu/13"]
        return {a["method"]: a["ours"] and a["ours"]["mean"] for a in read(folder)["fedbabu/13"]}

    assert command(answer("A", (1.0,), 1.0), nothing("B", 1.0)) == {"A": 1.0, "B": None}
    assert command(nothing("A", 1.0), answer("B", (2.0,), 1.0)) == {"A": 1.0, "B": 2.0}
    assert command(answer("A", (3.0,), 1.0), nothing("B", 1.0)) == {"A": 3.0, "B": 2.0}
    write(folder)
    assert "fedbabu/13" in (folder / "README.md").read_text()
    assert "no evidence yet" in (folder / "claims.md").read_text()


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
    assert "| 1 of 1 | 1 of 1 | 1 of 1 | +0.5 |" in page
    assert "no evidence yet" in claims_page({})
    assert "(spec" not in claims_page({})
