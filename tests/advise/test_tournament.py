"""The tournament where time runs out, somebody stops it, or a candidate cannot be run. Time is told, not measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from torso.advise.arms import ArmRunner, Entry
from torso.advise.budget import Budget
from torso.advise.candidates import FEDAVG, candidates_named
from torso.advise.choice import Arm, Outcome, Tuning
from torso.advise.tournament import TooLittleTime, Tournament
from torso.config import Config
from torso.data import Federation
from torso.errors import RequestError
from torso.runs.events import Stop
from torso.runs.job import data_of
from torso.runs.run import Stopped

CONFIG = Config(
    data={"clients": 4, "shards": 5},
    train={"rounds": 2, "fraction": 0.5, "local_epochs": 1},
    run={"workers": 1},
)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return data_of(CONFIG)


class Clock:
    """Ten minutes, of which the pilot takes one second; `at` says what the time is when runs have ended."""

    def __init__(self, at: Callable[[str], float | None] = lambda text: None) -> None:
        self.now, self.at = 0.0, at

    def __call__(self) -> float:
        return self.now

    def told(self, text: str) -> None:
        if text.startswith("pilot"):
            self.now += 1.0
        self.now = self.at(text) or self.now


def held(
    federation: Federation, clock: Clock, names: Sequence[str] = ("fedper",), user: Stop | None = None
) -> Tournament:
    budget = Budget(None, 10.0, clock)
    return Tournament(CONFIG, federation, candidates_named(names), budget, user or Stop(), clock.told)


def test_with_enough_time_the_best_go_on_to_every_part(federation: Federation) -> None:
    course = held(federation, Clock()).hold()
    assert course.rounds == 2
    assert [{len(one.scores) for one in rung if one.scores} for rung in course.rungs] == [{1}, {2}, {3}]
    first, second, third = ([(one.arm.name, one.arm.rate) for one in rung] for rung in course.rungs)
    assert {name for name, _ in first} == {"fedavg", "fedper"}
    assert sorted(name for name, _ in second) == ["fedavg"] * 2 + ["fedper"] * 2
    assert sorted(name for name, _ in third) == ["fedavg"] + ["fedper"] * 2
    assert set(third) <= set(second) <= set(first)
    assert course.fedavg in course.rungs[-1]
    assert course.alone is not None
    assert [bool(some) for some in course.alone.scores] == [False, False, True]
    assert course.alone.arm.rate == course.fedavg.arm.rate
    scores = [dict(one.scores[0]) for one in course.rungs[0] if one.arm == course.fedavg.arm]
    assert dict(course.fedavg.scores[0]) in scores  # those of part A were kept


@pytest.mark.parametrize("part", [1, 2])
def test_where_fedavg_fails_at_its_rates_the_next_one_takes_its_place(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """A rate that diverges on a later part was advised, if it was the best on the parts before."""
    again, lost = ArmRunner.again, list[Arm]()

    def unstable(
        self: ArmRunner, entries: Sequence[Entry], rounds: int, seed: int, data: Federation
    ) -> tuple[list[Outcome], bool]:
        found, ended = again(self, entries, rounds, seed, data)
        if seed == CONFIG.run.seed + part and not lost:
            lost.extend(dict.fromkeys(one.arm for one in found if one.arm.candidate is FEDAVG))
        return [replace(one, scores=(), status="failed") if one.arm in lost else one for one in found], ended

    monkeypatch.setattr(ArmRunner, "again", unstable)
    course = held(federation, Clock()).hold()
    assert lost
    assert course.fedavg.arm not in lost
    assert {len(one.scores) for one in course.rungs[-1]} == {len(course.rungs)} == {3}
    assert course.alone is not None


def test_where_time_is_up_what_comes_after_still_has_its_share(federation: Federation) -> None:
    """The first run of a candidate ends at 599 s, when only the time of parts B and C is left: nobody else is run. By
    the pace of that run there is no time for part B either; part C, with training alone, is the second one then."""
    clock = Clock(lambda text: 599.0 if text.startswith("part A: 1 of 2") else None)
    course = held(federation, clock).hold()
    assert len({one.arm for one in course.rungs[0] if one.arm.name == "fedper"}) == 1
    assert [one.arm.name for one in course.others] == ["fedper"]
    assert course.alone is not None
    assert {len(one.scores) for one in (*course.rungs[-1], course.alone)} == {len(course.rungs)} == {2}


def test_a_part_that_did_not_end_does_not_count(federation: Federation) -> None:
    course = held(federation, Clock(lambda text: 1e6 if text.startswith("part C: 1") else None)).hold()
    assert (len(course.rungs), course.alone) == (2, None)
    with pytest.raises(TooLittleTime, match="so no method is advised"):
        held(federation, Clock(lambda text: 1e6 if text.startswith("part B: 1") else None)).hold()
    with pytest.raises(RequestError, match=r"--minutes 10 is too short for these data: .* Accepted: "):
        held(federation, Clock(lambda text: 590.0 if text.startswith("pilot") else None)).hold()


def test_a_user_may_stop_it(federation: Federation) -> None:
    user = Stop()
    clock = Clock()

    def told(text: str) -> None:
        clock.told(text)
        if text.startswith("part A"):
            user.ask()

    stopped = Tournament(CONFIG, federation, candidates_named(["fedper"]), Budget(None, 10.0, clock), user, told)
    with pytest.raises(Stopped, match="nothing was written"):
        stopped.hold()


def test_a_candidate_that_cannot_be_run_is_named(federation: Federation) -> None:
    there = Tournament(
        CONFIG, federation, candidates_named(["fedper", "fedavg-data-sharing"]), Budget(200, None), Stop()
    )
    course = there.hold()
    assert list(course.refused) == ["fedavg-data-sharing"]
    nobody = Tournament(CONFIG, federation, candidates_named(["fedavg-data-sharing"]), Budget(200, None), Stop())
    with pytest.raises(RequestError, match=r"no candidate can run with this config. fedavg-data-sharing: "):
        nobody.hold()


def test_rates_next_to_the_best_are_tried(federation: Federation) -> None:
    course = Tournament(CONFIG, federation, candidates_named(["fedbabu-balanced"]), Budget(400, None), Stop()).hold()
    assert {one.arm.rate for one in course.rungs[0] if one.arm.candidate is not FEDAVG} > {0.1, 1.0}


def test_a_larger_rate_of_fine_tuning_is_tried_where_more_epochs_help(federation: Federation) -> None:
    """With a learning rate of 1e-4 two rounds teach nothing, so that all comes from fine-tuning; what is measured
    again is what a run with that fine-tuning measures."""
    stable = held(federation, Clock()).stable
    smaller, small, large = stable.rates_of_tuning
    arm = Arm(FEDAVG, 0.0001)
    found, ended = stable.compete([arm], 1, 0, federation)
    assert ended
    assert [one.tuning for one in found] == [Tuning(lr, epochs) for lr in (small, smaller, large) for epochs in (1, 3)]
    anew, _ = stable.again([Entry(arm, large, (3,))], 1, 0, federation)
    assert anew[0].scores == found[5].scores
    assert found[5].mean > found[1].mean > found[0].mean


def test_a_smaller_rate_of_fine_tuning_is_always_tried_and_alone_where_more_epochs_harm(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a rate of 3 the second and third epoch spoil what the first has left; what is measured again is what a run
    with that fine-tuning measures."""
    stable = held(federation, Clock()).stable
    monkeypatch.setattr(ArmRunner, "rates_of_tuning", (0.001, 3.0, 30.0))
    arm = Arm(FEDAVG, 0.1)
    found, _ = stable.compete([arm], 3, 0, federation)
    assert [one.tuning for one in found] == [Tuning(lr, epochs) for lr in (3.0, 0.001) for epochs in (1, 3)]
    assert found[0].mean >= found[1].mean
    anew, _ = stable.again([Entry(arm, 0.001, (3,))], 3, 0, federation)
    assert anew[0].scores == found[3].scores
