"""The choice rule with numbers made by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from torso.advise.answer import Answer
from torso.advise.candidates import (
    ALONE,
    FEDAVG,
    UNKNOWN_SPREAD,
    candidates_named,
    default_candidates,
    untried_rate_near,
)
from torso.advise.choice import (
    Arm,
    Outcome,
    Scores,
    Tuning,
    best_guess,
    gain,
    joined,
    next_arm,
    promoted,
    ranked,
    reference,
    steady,
)
from torso.advise.tournament import TournamentRecord
from torso.advise.traits import Traits
from torso.config import Config
from torso.errors import RequestError

KNOWN = {one.name: one.model_copy(update={"gain": 0.0, "spread": UNKNOWN_SPREAD}) for one in default_candidates()}
BABU, BRM = KNOWN["fedbabu-balanced"], KNOWN["fedavg-brm-ft"]
TRAITS = Traits(3, 2, 30, 10, 10.0, 10, 0.5, 1.0, 0.5)


def outcome(candidate: object, *values: float, rate: float = 0.1, epochs: int = 5) -> Outcome:
    """Measured on one part."""
    return Outcome(Arm(candidate, rate), Tuning(0.03, epochs), (dict(enumerate(values)),))  # type: ignore[arg-type]


def failed(candidate: object, rate: float = 0.1) -> Outcome:
    return Outcome(Arm(candidate, rate), Tuning(), (), "failed: non-finite loss")  # type: ignore[arg-type]


def test_a_gain_is_paired_by_client_and_averaged_over_parts() -> None:
    """Client 0: (10 + 4) / 2 = 7, client 1: (0 + 4) / 2 = 2; clients 2 and 3 have no partner. Mean 4.5; the standard
    error of 7 and 2 is 2.5. The parts have 5 and 4, whose mean has a standard error of 0.5: √(6.25 + 0.25).
    The interval of 80 % reaches Student's quantile at 0.9 with one degree of freedom, tan(0.4 π) = 3.078, to either
    side."""
    found = gain([{0: 80, 1: 90}, {0: 84, 1: 90, 2: 50}], [{0: 70, 1: 90}, {0: 80, 1: 86, 3: 1}])
    assert found is not None
    assert (found.mean, found.clients) == (4.5, 2)
    assert found.low == pytest.approx(4.5 - math.tan(0.4 * math.pi) * math.sqrt(6.5), abs=1e-3)
    assert found.high == pytest.approx(4.5 + math.tan(0.4 * math.pi) * math.sqrt(6.5), abs=1e-3)
    assert gain([{0: 1.0}], [{1: 1.0}]) is None
    alone = gain([{0: 3.0}], [{0: 1.0}])
    assert alone is not None
    assert (alone.mean, alone.low, alone.clear) == (2.0, None, False)


def test_a_gain_is_drawn_towards_zero_the_more_the_less_is_known_of_it() -> None:
    """Gains 2, 3, 4: mean 3 with variance 1/3. With 1 point as usual 1 / (1 + 1/3) = 3/4 of it is kept: 2.25 with
    variance 1/4, so ± 1.886 / 2. Gains 0, 3, 6 have variance 3, of which a quarter is kept: 0.75."""
    zero: Scores = {0: 0, 1: 0, 2: 0}
    sure, unsure = (gain([values], [zero], 1.0) for values in ({0: 2, 1: 3, 2: 4}, {0: 0, 1: 3, 2: 6}))
    assert sure is not None
    assert unsure is not None
    assert (sure.mean, unsure.mean) == pytest.approx((2.25, 0.75))
    assert (sure.low, sure.high) == pytest.approx((2.25 - 1.88562 / 2, 2.25 + 1.88562 / 2), abs=1e-4)


def test_a_gain_is_drawn_towards_what_the_method_gained_elsewhere() -> None:
    """Mean 3 with variance 1/3, of which 3/4 is kept with a spread of 1; the last quarter is the expected gain, 2."""
    over = gain([{0: 2, 1: 3, 2: 4}], [{0: 0, 1: 0, 2: 0}], 1.0, 2.0)
    assert over is not None
    assert over.mean == pytest.approx(3 * 3 / 4 + 2 / 4)
    assert over.low == pytest.approx(over.mean - 1.88562 / 2, abs=1e-4)


def test_what_is_known_of_a_method_decides_between_equal_scores() -> None:
    fedavg, seen = outcome(FEDAVG, 50, 50, 50), (54.0, 55.0, 56.0)
    known = BRM.model_copy(update={"name": "known", "gain": 2.0, "spread": 1.0})
    best, _ = best_guess(fedavg, [outcome(BRM, *seen), outcome(known, 53.0, 54.0, 55.0)])
    assert best is not None
    assert best.arm.candidate is BRM  # 5 of the usual 3 points: 27/28 of 5; 4 drawn to 2 with a spread of 1: 3.5
    best, _ = best_guess(fedavg, [outcome(BRM, 40, 50, 66), outcome(known, 48, 53, 54)])
    assert best is not None
    assert best.arm.candidate is known  # 2 with variance 57 is nearly forgotten; 5/3 with variance 3.4 is drawn to 2


def test_the_best_guess_is_the_largest_gain_after_that() -> None:
    """BABU has 6, BRM 5 on average; BABU's gains are −6, 6, 18, BRM's 4, 5, 6."""
    fedavg = outcome(FEDAVG, 50, 50, 50)
    best, over = best_guess(fedavg, [outcome(BABU, 44, 56, 68), brm := outcome(BRM, 54, 55, 56), failed(ALONE)])
    assert best is brm
    assert over is not None
    assert over.mean == pytest.approx(5 / (1 + 1 / (3 * UNKNOWN_SPREAD**2)))
    assert best_guess(fedavg, [failed(BRM)]) == (None, None)


def answered(ours: tuple[float, ...], alone: tuple[float, ...] = (50.0, 50.0, 50.0)) -> Answer:
    """FedAvg has 60, 70 and 80 at its three clients on every part; the others have it on the last one."""
    fedavg = outcome(FEDAVG, 60, 70, 80)
    last = [
        replace(fedavg, scores=fedavg.scores * 2),
        replace(one := outcome(BRM, *ours, rate=0.3), scores=one.scores * 2),
    ]
    course = TournamentRecord(rungs=[[fedavg, one], last], rounds=8)
    by_itself = outcome(ALONE, *alone, epochs=1)
    course.alone = replace(by_itself, scores=({}, *by_itself.scores))
    return Answer(course, TRAITS, Config(), 0.2, {"rounds": 100.0, "seconds": 1.0})


def test_a_clear_gain_is_advised_with_its_rates() -> None:
    """Gains 2, 3, 4 on both parts: mean 3, variance 1/3, of which 27/28 is kept with 3 points as usual."""
    found = answered((62, 73, 84))
    assert (found.stay, found.guess is found.method) == (False, True)
    assert found.headline() == "Advice: fedavg-brm-ft."
    over = found.over_fedavg
    assert over is not None
    assert over.mean == pytest.approx(3 * 27 / 28)
    assert over.low == pytest.approx(3 * 27 / 28 - 1.88562 * math.sqrt(27 / 28 / 3), abs=1e-4)
    data = found.as_json()
    assert data["rates"] == {"train.lr": 0.3, "personalize.lr": 0.03, "personalize.epochs": 5}
    assert data["guess"]["method"] == data["advice"] == "fedavg-brm-ft"
    config = found.config
    assert (config.method.name, config.train.lr, config.personalize.lr) == ("fedavg-brm-ft", 0.3, 0.03)
    assert "over FedAvg with fine-tuning: +2.9 points [+1.8, +4.0]" in "\n".join(found.lines())
    assert found.over_alone is not None
    assert found.over_alone.mean > 0


def test_where_nothing_is_clearly_better_stay_with_fedavg_and_know_the_best_guess() -> None:
    """Gains −2, 1, 4: mean 1, variance 3, 3/4 kept: 0.75 ± 1.886 · 1.5. Three to one it would be above 0.816 · 1.5."""
    found = answered((58, 71, 84))
    assert found.headline() == "Advice: stay with FedAvg and fine-tune."
    assert (found.method.arm.name, found.config.method.name, found.config.train.lr) == ("fedavg", "fedavg", 0.1)
    assert (found.as_json()["advice"], found.as_json()["guess"]["method"]) == ("fedavg", "fedavg-brm-ft")
    said = "\n".join(found.lines())
    assert "best guess: fedavg-brm-ft, with train.lr = 0.3" in said
    assert "+0.8 points [-2.1, +3.6], which is not clear" in said
    assert "# Gain over FedAvg" not in found.as_toml()
    guess = found.as_toml(guess=True)
    assert "Best guess: fedavg-brm-ft." in guess
    assert 'name = "fedavg-brm-ft"' in guess


def test_three_to_one_is_clear_even_if_the_interval_that_is_shown_contains_zero() -> None:
    """Gains 0, 2, 4: mean 2, variance 4/3, 27/31 kept: 1.74 ± 1.886 · 1.08; 1.74 is above 0.816 · 1.08."""
    found = answered((60, 72, 84))
    assert found.headline() == "Advice: fedavg-brm-ft."
    assert "+1.7 points [-0.3, +3.8]" in "\n".join(found.lines())


def test_where_nothing_looks_better_fedavg_is_the_best_guess() -> None:
    for ours in ((60.0, 70.0, 80.0), (58.0, 67.0, 76.0)):
        found = answered(ours)
        assert (found.stay, found.guess is found.course.fedavg) == (True, True)
        assert "the best of the others is fedavg-brm-ft" in "\n".join(found.lines())


def test_training_alone_is_compared_with_and_not_advised() -> None:
    found = answered((62, 73, 84), alone=(72, 83, 94))
    assert found.headline() == "Advice: fedavg-brm-ft."
    over = found.over_alone
    assert over is not None
    assert (over.mean, over.low, over.high) == (-10, -10, -10)  # the same at every client, on the last part
    assert "over training alone: -10.0 points [-10.0, -10.0]. Training alone looks better" in "\n".join(found.lines())
    assert "looks better" not in "\n".join(answered((62, 73, 84)).lines())


def test_where_all_others_fail_fedavg_is_left() -> None:
    found = answered((62, 73, 84))
    found.course.rungs[-1].pop()
    found.course.alone = None
    assert (found.stay, found.best, found.over_alone) == (True, None, None)
    assert "every other method failed" in "\n".join(found.lines())


def test_arms_are_ranked_by_paired_gains_over_the_best_fedavg() -> None:
    """FedProx was measured on clients 1 and 2, where FedAvg has 70 and 90: its 82 is a gain of 2."""
    weak, fedavg = outcome(FEDAVG, 50, 60, 70, rate=0.01), outcome(FEDAVG, 50, 70, 90)
    part = Outcome(Arm(candidates_named(["fedprox"])[0], 0.1), Tuning(0.03, 1), ({1: 74.0, 2: 90.0},))
    one, five = outcome(BRM, 51, 71, 91, epochs=1), outcome(BRM, 53, 73, 93)
    seen = [weak, fedavg, part, one, five, failed(BABU, 0.3)]
    assert reference(seen) is fedavg
    assert reference(seen[-1:]) is None
    assert ranked(seen, fedavg) == [(five, 3.0), (part, 2.0), (fedavg, 0.0), (weak, -10.0)]


def test_the_fine_tuning_that_was_chosen_is_advised() -> None:
    """The same models, fine-tuned at another rate: 84 instead of 80 for every client."""
    arm = Arm(FEDAVG, 0.1)
    small, large = (Outcome(arm, Tuning(lr, 3), ({0: value},)) for lr, value in ((0.01, 80.0), (0.1, 84.0)))
    assert reference([small, large]) is large
    ((best, over),) = ranked([small, large], small)
    assert (best.tuning.lr, over) == (0.1, 4.0)


def test_further_rates_are_next_to_the_best_of_the_best_methods() -> None:
    """BABU has 6 at 0.1 and 9 at 1.0: beyond the end is 3.0. That has 7, so 0.3 lies between. Then it is the second
    method's turn: 0.03 below 0.1. The others never have one."""
    third, fourth = candidates_named(["fedper", "ditto"])
    seen = [outcome(BABU, 6.0), outcome(BABU, 9.0, rate=1.0), outcome(BRM, 5.0), outcome(BRM, 4.0, rate=0.3)]
    seen += [outcome(third, 2.0), outcome(fourth, 1.0), outcome(fourth, 0.0, rate=0.3)]

    def more() -> Arm | None:
        return next_arm(ranked(seen, outcome(FEDAVG, 5.0)), [one.arm for one in seen], untried_rate_near)

    assert more() == Arm(BABU, 3.0)
    seen.append(outcome(BABU, 7.0, rate=3.0))
    assert more() == Arm(BABU, 0.3)
    seen.append(outcome(BABU, 8.0, rate=0.3))
    assert more() == Arm(BRM, 0.03)
    seen.append(outcome(BRM, 3.0, rate=0.03))
    assert more() is None  # the third has one rate, and is left as it is


def test_a_rate_at_the_edge_of_what_is_stable_loses_at_the_second_seed() -> None:
    """0.3 has 93 and 81, 0.1 has 90 and 90: 87 and 90 on average. BABU failed at the second seed and is left out."""
    first = [outcome(FEDAVG, 93.0, rate=0.3), outcome(FEDAVG, 90.0), outcome(BABU, 99.0)]
    second = [outcome(FEDAVG, 81.0, rate=0.3), outcome(FEDAVG, 90.0), failed(BABU)]
    both = joined(first, second)
    assert [(one.mean, len(one.scores)) for one in both] == [(87.0, 2), (90.0, 2)]
    best = reference(both)
    assert best is not None
    assert best.arm.rate == 0.1


def two_parts(candidate: object, rate: float, a: float, b: float) -> Outcome:
    """Two clients with the same accuracy, on part A and on part B: clients do not differ, parts do."""
    scores = ({0: a, 1: a}, {0: b, 1: b})
    return Outcome(Arm(candidate, rate), Tuning(0.03, 5), scores)  # type: ignore[arg-type]


def test_a_larger_rate_has_to_be_better_by_more_than_its_standard_error() -> None:
    """0.3 is 2 behind 0.1 on part A and 4 ahead on B: mean 1, standard error √(18 / 2) = 3, so 0.1 is level with it.
    1 ahead on A and 5 ahead on B: mean 3, standard error √(8 / 2) = 2, so 0.3 is better."""
    small = two_parts(FEDAVG, 0.1, 92.0, 90.0)
    level, better = two_parts(FEDAVG, 0.3, 90.0, 94.0), two_parts(FEDAVG, 0.3, 93.0, 95.0)
    assert steady([level, small]) is small
    assert steady([small, better]) is better
    larger = two_parts(FEDAVG, 0.03, 99.0, 99.0)  # the smallest rate is the best one
    assert steady([larger, level, small]) is larger
    assert steady([failed(FEDAVG)]) is None
    one_part = outcome(FEDAVG, 94.0, 90.0, rate=0.03)  # not measured where the best was
    assert steady([level, one_part]) is level


def test_fedavg_goes_on_at_the_steady_rate_and_a_guess_has_one() -> None:
    small, level = two_parts(FEDAVG, 0.1, 92.0, 90.0), two_parts(FEDAVG, 0.3, 90.0, 94.0)
    babu = two_parts(BABU, 0.3, 91.0, 95.0)  # 0, 1 and 1 ahead of the steady rates
    calm = two_parts(BABU, 0.1, 93.0, 91.0)
    assert promoted([level, small, babu], fedavg=1, others=1) == [babu, small]
    assert promoted([level, small], fedavg=2, others=0) == [level, small]  # both go to the second part
    best, over = best_guess(small, [babu, calm])
    assert best is calm
    assert over is not None
    assert over.mean == pytest.approx(1.0)  # on both parts, so nothing is known to vary


def test_who_goes_on_to_the_next_part() -> None:
    """The best of FedAvg, and of the others at most two rates of a method."""
    seen = [outcome(BRM, value, rate=rate) for value, rate in ((9.0, 0.1), (8.0, 0.3), (7.0, 1.0))]
    seen += [outcome(BABU, 6.0), outcome(FEDAVG, 5.0), outcome(FEDAVG, 4.0, rate=0.3), failed(BABU, 0.3)]
    assert [one.mean for one in promoted(seen, 1, 3)] == [9.0, 8.0, 6.0, 5.0]
    assert [one.mean for one in promoted(seen, 2, 1)] == [9.0, 5.0, 4.0]


def test_a_method_with_one_rate_is_left_as_it_is() -> None:
    seen = [outcome(BABU, 6.0), outcome(BRM, 7.0), outcome(BRM, 8.0, rate=0.3)]
    order = ranked(seen, outcome(FEDAVG, 5.0))
    assert next_arm(order, [one.arm for one in seen], untried_rate_near) == Arm(BRM, 1.0)
    assert next_arm(order[2:], [seen[0].arm], untried_rate_near) is None


def test_rates_are_multiples_of_that_of_fedavg_or_given() -> None:
    assert BRM.rates_beside(0.03) == (0.03, 0.1)
    assert BABU.rates_beside(0.03) == BABU.rates_beside(1.0) == (0.1, 1.0)


def test_who_competes() -> None:
    assert candidates_named([]) == default_candidates()
    assert [one.name for one in candidates_named(["fedper", "ditto", "fedavg"])] == ["fedper", "ditto"]
    with pytest.raises(RequestError, match="did you mean 'fedper'"):
        candidates_named(["fedpr"])
    with pytest.raises(RequestError, match="always take part"):
        candidates_named(["fedavg"])
