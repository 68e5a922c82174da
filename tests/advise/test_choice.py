"""The choice rule with numbers made by hand."""

from __future__ import annotations

import math

import pytest

from torso.advise.answer import Answer, answer_of
from torso.advise.candidates import ALONE, FEDAVG, beside, chosen, usual
from torso.advise.choice import (
    Arm,
    Outcome,
    Tuning,
    advised,
    at_both,
    challenger,
    further,
    gain,
    leading,
    ranked,
    reference,
)
from torso.advise.tournament import Course
from torso.advise.traits import Traits
from torso.config import Config
from torso.errors import RequestError

BABU, BRM = usual()[:2]
TRAITS = Traits(3, 2, 30, 10, 10.0, 10, 0.5, 1.0, 0.5)


def outcome(candidate: object, *values: float, rate: float = 0.1, epochs: int = 5) -> Outcome:
    return Outcome(Arm(candidate, rate), Tuning(0.03, epochs), dict(enumerate(values)))  # type: ignore[arg-type]


def test_a_gain_is_paired_by_client_and_averaged_over_seeds() -> None:
    """Client 0: (10 + 4) / 2 = 7, client 1: (0 + 4) / 2 = 2; clients 2 and 3 have no partner. Mean 4.5; the standard
    error of 7 and 2 is 2.5. The seeds have 5 and 4, whose mean has a standard error of 0.5: √(6.25 + 0.25).
    The interval of 90 % reaches Student's quantile at 0.95 with one degree of freedom, tan(0.45 π) = 6.314, to either
    side."""
    found = gain([{0: 80, 1: 90}, {0: 84, 1: 90, 2: 50}], [{0: 70, 1: 90}, {0: 80, 1: 86, 3: 1}])
    assert found is not None
    assert (found.mean, found.clients) == (4.5, 2)
    assert found.low == pytest.approx(4.5 - math.tan(0.45 * math.pi) * math.sqrt(6.5), abs=1e-3)
    assert found.high == pytest.approx(4.5 + math.tan(0.45 * math.pi) * math.sqrt(6.5), abs=1e-3)
    assert not found.clear
    assert gain([{0: 1.0}], [{1: 1.0}]) is None
    alone = gain([{0: 3.0}], [{0: 1.0}])
    assert alone is not None
    assert (alone.mean, alone.low, alone.clear) == (2.0, None, False)


def judged(ours: tuple[float, ...], alone: tuple[float, ...] = (50.0, 50.0, 50.0)) -> Course:
    """FedAvg has 60, 70 and 80 at its three clients; scores of the challenger and of training alone are given."""
    fedavg, best, by_itself = (
        outcome(FEDAVG, 60, 70, 80),
        outcome(BRM, *ours, rate=0.3),
        outcome(ALONE, *alone, epochs=1),
    )
    return Course(
        rates=[fedavg],
        arms=[best],
        judged={1: [fedavg, best, by_itself]},
        rounds={"rates": 8, "tournament": 8, "judgement": 8},
        fedavg=fedavg,
        best=best,
        alone=by_itself.arm,
    )


def answered(course: Course) -> Answer:
    return answer_of(course, Config(), TRAITS, 0.2, 0.03, {"rounds": 100.0, "seconds": 1.0})


def test_a_clear_gain_is_advised_with_its_rates() -> None:
    """Gains 2, 3, 4: mean 3, standard error 1/√3, quantile 2.920: from 1.31 to 4.69."""
    found = answered(judged((62, 73, 84)))
    assert not found.stay
    assert found.headline() == "Advice: fedavg-brm-ft."
    assert found.over_fedavg is not None
    assert found.over_fedavg.low == pytest.approx(3 - 2.91999 / math.sqrt(3), abs=1e-4)
    assert found.rates == {"train.lr": 0.3, "personalize.lr": 0.03, "personalize.epochs": 5}
    assert found.over_alone is not None
    assert found.over_alone.mean == pytest.approx((12 + 23 + 34) / 3)
    config = found.config
    assert (config.method.name, config.train.lr, config.personalize.lr) == ("fedavg-brm-ft", 0.3, 0.03)
    assert "+3.0 points [+1.3, +4.7]" in "\n".join(found.lines())


@pytest.mark.parametrize(
    "ours",
    [(60.0, 72.0, 84.0), (60.0, 70.0, 80.0), (58.0, 67.0, 76.0)],
    ids=["gains 0, 2, 4: from −1.4 to 5.4", "no gain", "clearly worse"],
)
def test_where_nothing_is_clearly_better_stay_with_fedavg(ours: tuple[float, ...]) -> None:
    found = answered(judged(ours))
    assert found.stay
    assert found.headline() == "Advice: stay with FedAvg and fine-tune."
    assert (found.method.arm.name, found.config.method.name, found.rates["train.lr"]) == ("fedavg", "fedavg", 0.1)
    assert found.over_alone is not None
    assert found.over_alone.mean == 20  # of FedAvg, which is what is advised
    assert found.as_json()["challenger"] == "fedavg-brm-ft"


def test_training_alone_is_advised_where_it_is_clearly_better() -> None:
    """Gains of training alone 12, 13, 14 over FedAvg, and 10 over the challenger, which is clearly better itself."""
    found = answered(judged((62, 73, 84), alone=(72, 83, 94)))
    assert found.headline() == "Advice: train alone (local-only)."
    assert (found.stay, found.over_alone) == (False, None)
    assert found.over_fedavg is not None
    assert found.over_fedavg.mean == 13
    assert found.config.method.name == "local-only"
    unsure = answered(judged((62, 73, 84), alone=(62, 74, 86)))  # gains 0, 1, 2 over the challenger: from −0.7
    assert unsure.headline() == "Advice: fedavg-brm-ft."


def test_training_alone_has_to_be_clearly_better_than_fedavg_as_well() -> None:
    """It gains 12, 13 and 14 over the challenger, which is clearly better than FedAvg at other clients; over FedAvg
    10, 10 and −10: from −16. So the challenger is advised."""
    fedavg, best, alone = outcome(FEDAVG, 60, 70, 80), outcome(BRM, 58, 67, 56), outcome(ALONE, 70, 80, 70)
    gains = {
        (best.arm, fedavg.arm): gain([{0: 9.0, 1: 9.0}], [{0: 1.0, 1: 1.0}]),
        (alone.arm, best.arm): gain([alone.scores], [best.scores]),
        (alone.arm, fedavg.arm): gain([alone.scores], [fedavg.scores]),
    }
    assert [over is not None and over.clear for over in gains.values()] == [True, True, False]
    assert advised(fedavg, best, alone, lambda ours, theirs: gains[ours.arm, theirs.arm]) is best


def test_a_challenger_that_fails_when_it_is_judged_is_not_advised() -> None:
    course = judged((62, 73, 84))
    course.judged[1] = [course.judged[1][0], Outcome(Arm(BRM, 0.3), Tuning(), {}, "failed"), course.judged[1][2]]
    found = answered(course)
    assert found.stay
    assert "fedavg-brm-ft was the best of the others, and failed when it was judged" in "\n".join(found.lines())


def test_the_rule_without_a_challenger() -> None:
    fedavg, alone = outcome(FEDAVG, 1.0), outcome(ALONE, 1.0)
    assert advised(fedavg, None, alone, lambda ours, theirs: None) is fedavg


def test_arms_are_ranked_by_paired_gains_over_the_best_fedavg() -> None:
    """FedProx was measured on clients 1 and 2, where FedAvg has 70 and 90: its 82 is a gain of 2."""
    weak, fedavg = outcome(FEDAVG, 50, 60, 70, rate=0.01), outcome(FEDAVG, 50, 70, 90)
    part = Outcome(Arm(chosen(["fedprox"])[0], 0.1), Tuning(0.03, 1), {1: 74.0, 2: 90.0})
    one, five = outcome(BRM, 51, 71, 91, epochs=1), outcome(BRM, 53, 73, 93)
    failed = Outcome(Arm(BABU, 0.3), Tuning(), {}, "failed: non-finite loss")
    seen = [weak, fedavg, part, one, five, failed]
    assert reference(seen) is fedavg
    assert reference([failed]) is None
    order = ranked(seen, fedavg)
    assert order == [(five, 3.0), (part, 2.0), (fedavg, 0.0), (weak, -10.0)]
    assert challenger(order) is five


def test_a_second_seed_on_other_samples_makes_a_gain_clear() -> None:
    """At the first seed the gains are 0, 2, 4: from −1.4, so FedAvg stays. At the second they are 4, 2, 0. Client by
    client the mean is 2, 2, 2: the interval is a point, and the challenger is advised. Training alone has one seed."""
    course = judged((60, 72, 84))
    assert answered(course).stay
    fedavg, best, _ = course.judged[1]
    again = Outcome(best.arm, best.tuning, {0: 64.0, 1: 72.0, 2: 80.0})
    course.judged[2] = [fedavg, again]
    found = answered(course)
    assert not found.stay
    assert found.over_fedavg is not None
    assert (found.over_fedavg.mean, found.over_fedavg.low, found.over_fedavg.high) == (2, 2, 2)
    assert found.over_alone is not None
    assert found.over_alone.mean == 22  # of 60, 72, 84 over 50, at the first seed


def test_seeds_that_disagree_make_a_gain_unclear() -> None:
    """Every client gains 8 at one seed and loses 4 at the other: 2 on average, and the same for all of them. The mean
    of 8 and −4 has a standard error of 6: ± 2.920 · 6."""
    course = judged((68, 78, 88))
    fedavg, best, _ = course.judged[1]
    course.judged[2] = [fedavg, Outcome(best.arm, best.tuning, {0: 56.0, 1: 66.0, 2: 76.0})]
    found = answered(course)
    assert found.stay
    assert found.over_fedavg is not None
    assert found.over_fedavg.mean == 2
    assert found.over_fedavg.high == pytest.approx(2 + 2.91999 * 6, abs=1e-4)


def test_the_fine_tuning_that_was_chosen_is_advised() -> None:
    """The same models, fine-tuned at another rate: 84 instead of 80 for every client."""
    arm = Arm(FEDAVG, 0.1)
    small, large = (Outcome(arm, Tuning(lr, 3), {0: value}) for lr, value in ((0.01, 80.0), (0.1, 84.0)))
    assert reference([small, large]) is large
    ((best, over),) = ranked([small, large], small)
    assert (best.tuning.lr, over) == (0.1, 4.0)


def test_further_rates_are_next_to_the_best_of_the_best_methods() -> None:
    """BABU has 6 at 0.1 and 9 at 1.0: beyond the end is 3.0. The second method has fewer rates then: 0.03 below 0.1.
    Then it is BABU's turn again: 3.0 has 7, so 0.3 lies between. The third method never has a turn."""
    third = chosen(["fedper"])[0]
    seen = [outcome(BABU, 6.0), outcome(BABU, 9.0, rate=1.0), outcome(BRM, 5.0), outcome(BRM, 4.0, rate=0.3)]
    seen += [outcome(third, 1.0), outcome(third, 0.0, rate=0.3)]

    def more() -> Arm | None:
        return further(ranked(seen, outcome(FEDAVG, 5.0)), [one.arm for one in seen], beside)

    assert more() == Arm(BABU, 3.0)
    seen.append(outcome(BABU, 7.0, rate=3.0))
    assert more() == Arm(BRM, 0.03)
    seen.append(outcome(BRM, 3.0, rate=0.03))
    assert more() == Arm(BABU, 0.3)
    seen.append(outcome(BABU, 8.0, rate=0.3))
    assert more() is None


def test_a_rate_at_the_edge_of_what_is_stable_loses_at_the_second_seed() -> None:
    """0.3 has 93 and 81, 0.1 has 90 and 90: 87 and 90 on average. BABU failed at the second seed and is left out."""
    first = [outcome(FEDAVG, 93.0, rate=0.3), outcome(FEDAVG, 90.0), outcome(BABU, 99.0)]
    second = [outcome(FEDAVG, 81.0, rate=0.3), outcome(FEDAVG, 90.0), Outcome(Arm(BABU, 0.1), Tuning(), {}, "failed")]
    both = at_both(first, second)
    assert [one.mean for one in both] == [87.0, 90.0]
    best = reference(both)
    assert best is not None
    assert best.arm.rate == 0.1


def test_who_is_run_at_a_second_seed() -> None:
    order = [(outcome(BRM, value, rate=rate), 0.0) for value, rate in ((9.0, 0.1), (8.0, 0.3), (7.0, 1.0))]
    order.append((outcome(BABU, 6.0), 0.0))
    assert [one.mean for one in leading(order, 3)] == [9.0, 8.0, 6.0]  # two rates of a method at most


def test_a_method_with_one_rate_is_left_as_it_is() -> None:
    seen = [outcome(BABU, 6.0), outcome(BRM, 7.0), outcome(BRM, 8.0, rate=0.3)]
    order = ranked(seen, outcome(FEDAVG, 5.0))
    assert further(order, [one.arm for one in seen], beside) == Arm(BRM, 1.0)
    assert further(order[2:], [seen[0].arm], beside) is None


def test_rates_are_multiples_of_that_of_fedavg_or_given() -> None:
    assert BRM.rates_beside(0.03) == (0.03, 0.1)
    assert BABU.rates_beside(0.03) == BABU.rates_beside(1.0) == (0.1, 1.0)


def test_who_competes() -> None:
    assert chosen([]) == usual()
    assert [one.name for one in chosen(["fedper", "ditto", "fedavg"])] == ["fedper", "ditto"]
    with pytest.raises(RequestError, match="did you mean 'fedper'"):
        chosen(["fedpr"])
    with pytest.raises(RequestError, match="take part anyway"):
        chosen(["fedavg"])
