"""The papers' claims, judged by pairs of numbers: by hand, and every claim by its paper's own."""

from __future__ import annotations

import pytest

from torso.papers.pages.claims import page
from torso.papers.tables.answers import Answer, RunAnswers, answers_of
from torso.papers.tables.claims import OWN, Claim, ClaimedDifference, claims, judge
from torso.papers.tables.collect import blank
from torso.papers.tables.pairs import matched, tally
from torso.papers.tables.plan import plan
from torso.papers.tables.published import names, recipe
from torso.papers.tables.review import value

from ..lines import answer, failed, nothing, second

A, B = {"method": "A"}, {"method": "B"}
CLAIM = Claim("FedBABU", "A is better", (ClaimedDifference(("fedbabu/13",), A, B),))
SEEDS = (79.0, 80.0, 81.0)  # mean 80, standard deviation 1


def shifted(by: float) -> tuple[float, ...]:
    return tuple(seed + by for seed in SEEDS)


def verdict(*lines: Answer, share: float = 1.0) -> str:
    return judge(Claim("FedBABU", "A is better", CLAIM.differences, share), {"fedbabu/13": lines}).word


def setting(number: int, better: tuple[float, ...], worse: tuple[float, ...], published: float = 1.0) -> list[Answer]:
    """A and B in one setting; `published`: A minus B in the paper."""
    return [answer("A", better, 50.0 + published, shards=number), answer("B", worse, 50.0, shards=number)]


def test_the_plain_draw_stands_in_for_first_lines_that_were_not_run() -> None:
    """And is named. First lines take over once as many of their pairs are there."""
    plain = [second(line, "plain draw") for line in setting(2, shifted(2), SEEDS)]
    unrun = [nothing("A", 51.0, shards=2), nothing("B", 50.0, shards=2)]
    assert verdict(*unrun, *plain) == "holds (plain draw)"
    assert verdict(*setting(2, SEEDS, shifted(9)), *plain) == "does not hold"
    assert (
        verdict(*unrun, *[second(line, "another way") for line in setting(2, shifted(2), SEEDS)]) == "no evidence yet"
    )


def test_a_claimed_difference_is_paired_within_settings() -> None:
    answers = [
        answer("A", (80.0,), 80.0, fraction=0.1),
        answer("B", (70.0,), 81.0, fraction=0.1),
        answer("A", (60.0,), 80.0, fraction=1.0),
        answer("B", (70.0,), 79.0, fraction=1.0),
        answer("Alone", (50.0,), 50.0),  # has no fraction: stands beside both
    ]
    ours = tally(matched(answers, A, B), ours=True)
    assert (ours.held, ours.there, ours.mean) == (1, 2, 0.0)
    assert tally(matched(answers, A, B, by=-10.5), ours=True).held == 2
    assert len(matched(answers, {"fraction": 0.1}, {"fraction": 1.0})) == 2  # A with A, B with B
    alone = tally(matched(answers, A, {"method": "Alone"}), ours=True)
    assert (alone.held, alone.there, alone.mean) == (2, 2, 20.0)
    assert not matched([answer("A", (1.0,), 1.0), second(answer("B", (1.0,), 1.0))], A, B)


def test_sides_are_compared_over_the_seeds_that_both_have() -> None:
    """At seed 0 A is ahead by 2; the mean of A's three seeds is 1 below B's only one."""
    (pair,) = matched([answer("A", (82.0, 78.0, 77.0), 1.0), answer("B", (80.0,), 1.0)], A, B)
    assert (pair.difference(ours=True), pair.held(ours=True), pair.seeds) == (2.0, True, 1)
    other = answer("B", (80.0,), 1.0)
    elsewhere = {**other, "ours": {**other["ours"], "seeds": {"7": 80.0}}}
    (apart,) = matched([answer("A", (82.0, 78.0, 77.0), 1.0), elsewhere], A, B)
    assert apart.difference(ours=True) == -1.0  # they share none: means


def test_a_key_that_both_sides_name_alike_has_to_agree() -> None:
    lines = [
        {**answer("A", (1.0,), 1.0, shards=shards, tau=tau), "metric": metric}
        for shards, tau in ((2, 1), (10, 5))
        for metric in ("without", "with")
    ]
    few = {"shards": [2, 10], "tau": [1, 5]}
    found = matched(lines, {"metric": "without", **few}, {"metric": "with", **few})
    assert [(p.better["setting"]["shards"], p.worse["setting"]["shards"]) for p in found] == [(2, 2), (10, 10)]


def test_a_difference_is_clear_beyond_students_interval() -> None:
    """Root of 1/3 + 1/3 is 0.8165; Student's 2.7764 at 4 degrees of freedom makes it 2.267."""
    for above, clear in ((2.26, 0), (2.28, 1)):
        lines = setting(2, shifted(above), SEEDS)
        found = tally(matched(lines, A, B), ours=True)
        assert (found.held, found.clear, found.against) == (1, clear, 0)
        turned = tally(matched(lines, B, A), ours=True)
        assert (turned.held, turned.clear, turned.against) == (0, 0, clear)
        assert tally(matched(lines, A, B, by=0.1), ours=True).clear == 0
    assert tally(matched(setting(2, (90.0,), (80.0,)), A, B), ours=True).clear == 0


def test_a_claim_has_a_verdict_or_no_evidence() -> None:
    better = setting(2, shifted(1.0), SEEDS)
    mixed = [*better, *setting(5, SEEDS, shifted(1.0))]
    assert verdict(*better) == "holds"
    assert verdict(*mixed) == "holds in part"
    assert verdict(*mixed[2:]) == "does not hold"
    found = judge(CLAIM, {"fedbabu/13": [nothing("A", 80.0), nothing("B", 70.0)]})
    assert (found.word, found.published.held, found.published.there) == ("no evidence yet", 1, 1)


def test_a_verdict_says_when_seeds_or_pairs_are_few() -> None:
    unrun = [line for i in (3, 4, 5) for line in (nothing("A", 51.0, shards=i), nothing("B", 50.0, shards=i))]
    several, one = setting(2, shifted(1.0), SEEDS), setting(10, (80.1,), (80.0,))
    assert verdict(*one) == "holds so far (one seed)"
    assert verdict(*one[::-1], *unrun) == "holds so far (one seed, few pairs)"
    assert verdict(*several, *unrun) == "holds so far (few pairs)"
    assert verdict(*several, *one, *unrun[:2]) == "holds so far (few pairs with several seeds)"
    assert verdict(*several, *one) == "holds"
    assert verdict(*setting(2, (70.0,), (80.0,))) == "does not hold so far (one seed)"


def test_pairs_that_are_clearly_against_a_claim_lower_its_verdict() -> None:
    eight = [line for i in range(8) for line in setting(i, shifted(1.0), SEEDS)]
    for below, word in ((-1.0, "holds"), (-9.0, "holds in part")):
        assert verdict(*eight, *setting(9, shifted(below), SEEDS), share=0.8) == word
    exception = setting(9, shifted(-9.0), SEEDS, published=-1.0)  # the paper's own
    assert verdict(*eight, *exception, share=0.8) == "holds"
    half = [*setting(1, shifted(1.0), SEEDS), *setting(2, shifted(-9.0), SEEDS)]
    assert verdict(*half) == "does not hold"  # one points its way, one is clearly against


def test_no_more_is_wanted_than_the_papers_own_numbers_reach_in_the_pairs_that_were_run() -> None:
    run = [*setting(1, SEEDS, shifted(1.0), published=-1.0), *setting(2, shifted(1.0), SEEDS)]
    assert verdict(*run, share=0.9) == "holds"
    assert verdict(*run[:2], share=0.9) == "does not hold"


def test_a_side_that_diverged_has_lost() -> None:
    a, b = setting(2, SEEDS, SEEDS)
    gone_a, gone_b = failed(nothing("A", 51.0), 3), failed(nothing("B", 50.0), 3)
    for lines, held in (((gone_a, b), 0), ((a, gone_b), 1), ((gone_a, gone_b), 0), ((failed(a), b), 0)):
        found = tally(matched(lines, A, B), ours=True)
        assert (found.held, found.there, found.diverged, found.walkovers) == (held, 1, 1, held)
    assert verdict(gone_a, b) == "does not hold"
    assert verdict(failed(nothing("A", 51.0), 3, "the disk is full"), b) == "no evidence yet"
    reported = [answer("A", SEEDS, 50.0), answer("B", SEEDS, None)]  # in the paper
    assert tally(matched(reported, A, B), ours=False).held == 1


def test_a_line_keeps_the_seeds_that_failed() -> None:
    made = plan(recipe("fedbabu/13"))
    place = next(iter(made.runs[0].answers))
    fine = RunAnswers(0, "ok", {place: (80.0, 1.0)}, {}, {})
    lost = [RunAnswers(seed, "failed: non-finite loss", {}, {}, {}) for seed in (1, 2)]
    found = [{} if i != place else {0: fine, 1: lost[0], 2: lost[1]} for i in range(len(made.lines))]
    (line,) = [line for line in answers_of(made, found) if line["ours"]]
    assert line["failed"] == {"1": "failed: non-finite loss", "2": "failed: non-finite loss"}
    assert line["ours"]["seeds"] == {"0": 80.0}
    assert line["status"].startswith("failed")


def test_pairs_of_our_own_settings_judge_a_claim_where_the_papers_cannot_be_run() -> None:
    """Of our own settings the paper has no numbers, so nothing but the claim's words says in what share it holds."""
    theirs = [nothing("A", 51.0, shards=3), nothing("B", 50.0, shards=3)]

    def own(number: int, better: tuple[float, ...], worse: tuple[float, ...]) -> list[Answer]:
        return [{**line, "published": {}} for line in setting(number, better, worse)]

    found = judge(CLAIM, {"fedbabu/13": [*theirs, *own(2, shifted(1.0), SEEDS), *own(5, shifted(1.0), SEEDS)]})
    assert (found.published.there, found.published_there.there, found.ours.there) == (1, 0, 2)
    assert found.word == "holds (another body)"
    assert (
        verdict(*theirs, *own(2, shifted(1.0), SEEDS), *own(5, SEEDS, shifted(1.0))) == "holds in part (another body)"
    )
    assert verdict(*theirs, *own(2, (80.0,), (81.0,))) == "does not hold so far (another body, one seed)"
    assert verdict(*setting(2, shifted(1.0), SEEDS), *own(5, shifted(1.0), SEEDS)) == "holds"  # one of the paper's, too


def test_methods_are_compared_one_to_one_where_a_claim_says_so() -> None:
    methods = ("FedAvg", "SCAFFOLD", "FedAvg+FN", "SCAFFOLD+FN")
    answers = [answer(m, (v,), v) for m, v in zip(methods, (10.0, 50.0, 20.0, 60.0), strict=True)]
    better, worse = {"method": list(methods[2:])}, {"method": list(methods[:2])}
    claim = Claim("FedFN", "FN helps", (ClaimedDifference(("x",), better, worse, same="base"),))
    assert (judge(claim, {"x": answers}).ours.held, judge(claim, {"x": answers}).ours.there) == (2, 2)


def test_a_claim_names_the_methods_of_which_nothing_was_run() -> None:
    lines = [answer("A", (2.0,), 3.0), answer("B", (1.0,), 2.0), nothing("C", 1.0)]
    claim = Claim("FedBABU", "A is best", (ClaimedDifference(("fedbabu/13",), A, {"method": ["B", "C"]}),))
    assert judge(claim, {"fedbabu/13": lines}).missing == ["C"]
    assert judge(claim, {"fedbabu/13": [nothing("A", 3.0), *lines[1:]]}).missing == []


def test_the_page_shows_how_many_pairs_were_run_and_with_how_many_seeds() -> None:
    tables = {name: blank(name) for name in names()}
    whole = plan(recipe("fedbabu/6"))
    found: list[dict[int, RunAnswers]] = [{} for _ in whole.lines]
    for place, line in enumerate(whole.lines):
        if line.published.setting["shards"] == 10:
            found[place] = {0: RunAnswers(0, "ok", {place: (line.published.mean or 0.0, 1.0)}, {}, {})}
    (row,) = [row for row in page(tables | {"fedbabu/6": answers_of(whole, found)}).splitlines() if "rapidly" in row]
    assert "**holds so far (one seed)** | 1 of 2 (1 seed) | 1 of 1, mean +35.9 | 2 of 2" in row


PUBLISHED = [claim for claim in claims() if claim.tables != (OWN,)]


@pytest.mark.parametrize("claim", PUBLISHED, ids=lambda claim: claim.says[:40])
def test_every_claim_holds_in_its_papers_own_numbers(claim: Claim) -> None:
    """As many seeds as it takes, each with the published number: a perfect reproduction."""
    tables = {name: [_as_published(line) for line in blank(name)] for name in claim.tables if name != OWN}
    for one in claim.differences:
        for name in set(one.tables) & tables.keys():
            assert one.pairs({name: tables[name]}), f"nothing in {name}"
    found = judge(claim, tables)
    assert found.published.share >= claim.share
    assert found.word == "holds"


def _as_published(line: Answer) -> Answer:
    mean = line["published"]["mean"]
    if mean is None:
        return failed({**line, "ours": None}, 3)
    return {**line, "ours": {"mean": mean, "std": 0.0, "seeds": {str(seed): mean for seed in range(3)}}}


def test_few_classes_are_two_shards_of_cifar10_and_ten_of_cifar100() -> None:
    (claim,) = [claim for claim in claims() if "fewest classes" in claim.says]
    pairs = judge(claim, {name: blank(name) for name in claim.tables}).pairs
    sides = [side for pair in pairs for side in (pair.better, pair.worse)]
    assert {(side["dataset"], side["setting"]["shards"]) for side in sides} == {("CIFAR10", 2), ("CIFAR100", 10)}
    assert len(claims()) >= 40


@pytest.mark.parametrize(
    ("table", "better", "worse", "settings"),
    [
        ("fedrod/7", "Fed-RoD (hyper)", "FedDyn", {"metric": {"G-FL (GM)"}, "alpha": {0.1, 0.3, None}}),
        ("fedrod/2", "FedAvg", "FedAvg (BRM)", {"metric": {"P-FL (PM)"}}),
        ("fedrod/8", "Fed-RoD (hyper)+FedDyn", "Fed-RoD (hyper)", {"alpha": {0.1, 0.3}}),
        ("fedfn/a11", "SphereFed (CE)", "SphereFed (CE)", {"temperature_tau": {15}}),
        ("fedbabu/2", "FedAvg+server_data_sharing", "FedAvg+server_data_sharing", {"shards": {100, 50, 10}}),
        ("fedbabu/11", "FedAvg", "FedBABU", {"shards": {100, 50, 10}}),
        ("fedbabu/11", "FedBABU", "FedAvg", {"shards": {10}, "fraction": {0.1}, "local_epochs": {10}}),
        ("fedbabu/25", "FedBABU", "FedAvg", {"shards": {20, 10, 5}}),
        ("fedbabu/25", "FedBABU", "Ditto", {"shards": {20, 10, 5}}),
    ],
)
def test_what_a_paper_says_is_compared_where_it_says_so(
    table: str, better: str, worse: str, settings: dict[str, set[object]]
) -> None:
    pairs = [pair for claim in claims() for pair in judge(claim, {table: blank(table)}).pairs]
    there = [p.better for p in pairs if (p.better["method"], p.worse["method"]) == (better, worse)]
    if "metric" in settings:
        there = [side for side in there if side["metric"] in settings["metric"]]
    assert there
    assert {key: {value(side, key) for side in there} for key in settings} == settings
