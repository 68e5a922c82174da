"""Runs side by side are the runs alone, whoever else is there, stops or breaks."""

from __future__ import annotations

import io
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tests.foreign import Clipped
from tests.near import assert_states_near, far
from tests.runs.samples import history_of, tiny

from torso import Config, Result, run
from torso.data import DataCache, build
from torso.engine import Workspace
from torso.learn import lockstep
from torso.learn.gradients import Gradients, leading_gradients
from torso.learn.lockstep import JointRequest
from torso.learn.recorded import Recorder
from torso.learn.steps import steps
from torso.nets import Tensors
from torso.parallel.packs import packs
from torso.parallel.together import run_together
from torso.runs.events import Listener, Stop
from torso.runs.progress import PlainLines
from torso.runs.rounds import Round
from torso.runs.run import Stopped

CASES = ("data.shards=2", "data.shards=5", "data.partition=dirichlet-class", "run.seed=1", "train.fraction=0.5")
METHODS = ("fedavg", "fedbabu", "scaffold", "ditto", "fedrod-hyper", "fedrep", "per-fedavg", "pfedme", "mtl", "fedfomo")


RAGGED = ("run.engine=batched", "data.partition=dirichlet-class", "train.rounds=3", "measure.names=[]")


def configs(method: str, *sets: str) -> list[Config]:
    return [tiny(method, "run.engine=batched", "train.local_epochs=2", *sets, case) for case in CASES]


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The numbers of clients of the runs that shared a stack, stack after stack."""
    seen: list[list[int]] = []
    learn = lockstep._learn_together

    def watched(group: list[JointRequest]) -> object:
        seen.append([ask.clients for ask in group])
        return learn(group)

    monkeypatch.setattr(lockstep, "_learn_together", watched)
    return seen


@pytest.mark.parametrize("method", [*METHODS, "fedrod-meta-bsm"])
def test_side_by_side_is_alone(method: str, tmp_path: Path, stacks: list[list[int]]) -> None:
    """Other seeds, other federations of the same images, other numbers of participants; what clients keep as well."""
    asked = configs(method, "train.rounds=3")
    outs = [tmp_path / str(place) for place in range(len(asked))]
    found = dict(run_together(asked, outs, clients=1000))
    assert [3, 3, 3, 3, 5] in stacks  # all five learned in one stack
    for place, config in enumerate(asked):
        alone, beside = run(config), found[place]
        assert isinstance(beside, Result)
        assert_states_near(alone, beside, model=1e-4, kept=1e-3)
        for name, accuracy in alone.accuracy.items():
            assert beside.accuracy[name].mean == pytest.approx(accuracy.mean, abs=1.0)


@pytest.mark.parametrize(
    ("method", "other"),
    [
        ("fedfomo", "data.clients=20"),  # what a client remembers has a number for each of the others
        ("fedrod-meta-bsm", "data.validation=0.2"),  # fewer common images: they begin anew sooner
        ("per-fedavg", "run.seed=1"),  # an odd batch is left over, whatever others do with theirs
    ],
)
def test_what_others_have_more_of_is_not_noticed(method: str, other: str, tmp_path: Path) -> None:
    sets = ("run.engine=batched", "train.batch_size=10", "train.rounds=3", 'measure.names=["initial"]')
    ragged = tiny(method, *sets, "data.partition=dirichlet-class")
    asked = [ragged, tiny(method, *sets, other)]
    outs = [tmp_path / str(place) for place in range(2)]
    for place, found in run_together(asked, outs, clients=1000):
        assert isinstance(found, Result), found
        run(asked[place], tmp_path / f"alone {place}")
        mine, theirs = history_of(outs[place]), history_of(tmp_path / f"alone {place}")
        assert [line.pop("loss") for line in mine] == pytest.approx([line.pop("loss") for line in theirs], rel=1e-4)
        assert mine == theirs


UPLOADS = ("attack.kind=none", "attack.kind=sign-flip", "attack.kind=alie", "attack.kind=random-updates")
RULES = ("method.server=mean", "method.server=median", "method.server=krum")


def _as_alone(asked: list[Config], folder: Path) -> None:
    """Run them side by side and alone, and compare."""
    found = dict(run_together(asked, [folder / str(place) for place in range(len(asked))], clients=1000))
    for place, config in enumerate(asked):
        alone, beside = run(config), found[place]
        assert isinstance(beside, Result), beside
        assert beside.malicious == alone.malicious
        assert_states_near(alone, beside, model=1e-4, kept=1e-3)


def _hostile(*sets: str) -> Config:
    common = ("run.engine=batched", "train.rounds=2", "train.fraction=0.6", "attack.fraction=0.4", "measure.names=[]")
    return tiny("fedper", *common, *sets)


def test_attacks_on_uploads_and_server_rules_share_a_stack(tmp_path: Path, stacks: list[list[int]]) -> None:
    asked = [_hostile(*pair) for pair in zip(UPLOADS, (*RULES, "run.seed=1"), strict=True)]
    assert packs(asked, 1000) == [[0, 1, 2, 3]]
    _as_alone(asked, tmp_path)
    assert [6, 6, 6, 6] in stacks


@pytest.mark.parametrize("attack", ["label-flip", "backdoor"])
def test_attacks_on_data_share_a_stack_where_the_attackers_are_the_same(
    attack: str, tmp_path: Path, stacks: list[list[int]]
) -> None:
    """At another seed others attack, so other labels are trained on."""
    asked = [_hostile(f"attack.kind={attack}", rule) for rule in RULES[:2]]
    other = _hostile(f"attack.kind={attack}", "run.seed=1")
    assert packs([*asked, other, _hostile()], 1000) == [[0, 1], [2], [3]]
    _as_alone(asked, tmp_path)
    assert [6, 6] in stacks


@pytest.mark.parametrize(
    ("method", "sets"),
    [
        ("fedper", ("privacy.noise=0.3", "privacy.clip=0.5", "privacy.quantile=0.5")),  # each its noise and clip
        ("fedper", ("method.server=fedbuff", "method.server.buffer=2", "run.speeds.sigma=1")),  # as many as begin
        ("moon", ("method.server=fedbuff", "method.server.buffer=2", "run.speeds.sigma=1")),  # each its teachers
    ],
    ids=["private", "buffered", "taught and buffered"],
)
def test_private_and_asynchronous_runs_share_a_stack(
    method: str, sets: tuple[str, ...], tmp_path: Path, stacks: list[list[int]]
) -> None:
    common = ("run.engine=batched", "train.rounds=3", "train.fraction=0.6", "measure.names=[]")
    asked = [tiny(method, *common, *sets, f"run.seed={seed}") for seed in range(2)]
    assert packs(asked, 1000) == [[0, 1]]
    _as_alone(asked, tmp_path)
    assert any(len(stack) == 2 for stack in stacks)


def test_who_ends_early_or_breaks_leaves_the_others_alone(tmp_path: Path) -> None:
    asked = [*configs("fedavg")[:2], tiny("fedavg", "run.engine=batched", "train.lr=1e30"), configs("fedavg")[3]]
    asked[2] = asked[2].but("train.local_epochs=2")
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "mine.txt").write_text("not a run")
    found = dict(run_together(asked, [tmp_path / str(place) for place in range(4)], clients=1000))
    whole, refused, burst, other = (found[place] for place in range(4))
    assert isinstance(whole, Result)
    assert whole.ok
    assert "is not empty" in str(refused)
    assert isinstance(burst, Result)
    assert burst.status.startswith("failed: non-finite")
    assert isinstance(other, Result)
    assert other.ok


class _StopsAfter(Listener):
    def __init__(self, rounds: int, stop: Stop) -> None:
        self.left, self.stop = rounds, stop

    def round(self, round: Round, seconds: float, accuracy: object) -> None:
        self.left -= 1
        if not self.left:
            self.stop.ask()


def test_a_stop_ends_them_all_and_the_same_call_goes_on(tmp_path: Path) -> None:
    asked = configs("fedper")[:3]
    outs, stop = [tmp_path / str(place) for place in range(3)], Stop()
    with pytest.raises(Stopped, match="Continue"):
        list(run_together(asked, outs, clients=1000, stop=stop, listener=_StopsAfter(5, stop)))
    assert not any((out / "result.json").exists() for out in outs)
    whole = dict(run_together(asked, [tmp_path / f"whole {place}" for place in range(3)], clients=1000))
    for place, found in run_together(asked, outs, clients=1000):
        before = whole[place]
        assert isinstance(found, Result)
        assert isinstance(before, Result)
        assert found.state is not None
        assert before.state is not None
        assert far(found.state.model, before.state.model) < 1e-4


def test_memory_that_runs_out_in_company_makes_smaller_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stacks: list[list[int]]
) -> None:
    learn, asked = lockstep._learn_together, configs("fedavg")[:3]

    def small(group: list[JointRequest]) -> object:
        if sum(ask.clients for ask in group) > 6:
            raise torch.OutOfMemoryError("too many")
        return learn(group)

    monkeypatch.setattr(lockstep, "_learn_together", small)
    found = dict(run_together(asked, [tmp_path / str(place) for place in range(3)], clients=1000))
    assert all(isinstance(result, Result) and result.ok for result in found.values())
    assert max(sum(stack) for stack in stacks) <= 6


def test_one_client_of_each_is_not_too_large_because_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn, asked = lockstep._learn_together, [c.but("train.fraction=0.1") for c in configs("fedavg")[:3]]

    def small(group: list[JointRequest]) -> object:
        if len(group) > 1:
            raise torch.OutOfMemoryError("too many")
        return learn(group)

    monkeypatch.setattr(lockstep, "_learn_together", small)
    found = dict(run_together(asked, [tmp_path / str(place) for place in range(3)], clients=1000))
    assert [result.status for result in found.values() if isinstance(result, Result)] == ["ok"] * 3


def test_what_one_run_cannot_do_is_its_own_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn, asked = lockstep._learn_together, configs("fedavg")[:3]

    def clumsy(group: list[JointRequest]) -> object:
        if any(ask.member == 1 for ask in group):
            raise ValueError("not with me")
        return learn(group)

    monkeypatch.setattr(lockstep, "_learn_together", clumsy)
    found = dict(run_together(asked, [tmp_path / str(place) for place in range(3)], clients=1000))
    assert isinstance(found[1], ValueError)
    assert [getattr(found[place], "status", "") for place in (0, 2)] == ["ok", "ok"]


def test_runs_that_meet_have_one_recorder_which_forgets_when_memory_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorder here computes and records nothing: that it is one, and is told, is what counts."""
    made: list[Told] = []

    class Told(Recorder):
        def __init__(self, compute: Gradients, most: int = 8) -> None:
            super().__init__(compute, most)
            self.gradients, self.used, self.forgot = compute, 0, 0  # type: ignore[method-assign]
            made.append(self)

        def home(self, tensors: Tensors, width: int) -> Tensors:
            self.used += 1
            return {name: tensor.clone() for name, tensor in tensors.items()}

        def forget(self) -> None:
            self.forgot += 1

    at, learn = Workspace.at, lockstep._learn_together
    monkeypatch.setattr(
        Workspace,
        "at",
        lambda *a, **k: replace(d := at(*a, **k), context=replace(d.context, recorder=Told(leading_gradients))),
    )
    tries = iter([True])

    def once(group: list[JointRequest]) -> object:
        if next(tries, False):
            raise torch.OutOfMemoryError("too many")
        return learn(group)

    monkeypatch.setattr(lockstep, "_learn_together", once)
    asked = [config.but("measure.names=[]") for config in configs("fedavg")[:3]]
    found = run_together(asked, [tmp_path / str(place) for place in range(3)], clients=1000)
    assert all(isinstance(result, Result) for _, result in found)
    (shared,) = (recorder for recorder in made if recorder.used)
    assert shared.forgot >= 1


def test_a_client_does_not_keep_the_memory_of_the_whole_stack(tmp_path: Path, stacks: list[list[int]]) -> None:
    asked = [config.but("train.fraction=0.1") for config in configs("fedper")[:3]]
    for _, found in run_together(asked, [tmp_path / str(place) for place in range(3)], clients=1000):
        assert isinstance(found, Result)
        assert found.state is not None
        kept = [tensor for own in found.state.clients.of_kind("kept").values() for tensor in own.values()]
        assert kept
        assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in kept)
    assert [1, 1, 1] in stacks


def test_an_interrupt_ends_all_runs_before_it_is_heard(tmp_path: Path) -> None:
    """A thread that is left would abort the process when it exits."""
    asked = [config.but("train.rounds=100000") for config in configs("fedavg")[:3]]
    outs = [tmp_path / str(place) for place in range(3)]

    class Interrupts(Listener):
        def round(self, round: Round, seconds: float, accuracy: object) -> None:
            if round.round == 2:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    before, there = signal.signal(signal.SIGINT, signal.default_int_handler), set(threading.enumerate())
    try:
        with pytest.raises(KeyboardInterrupt):
            list(run_together(asked, outs, clients=1000, listener=Interrupts()))
    finally:
        signal.signal(signal.SIGINT, before)
    for thread in set(threading.enumerate()) - there:
        thread.join(1)
    assert set(threading.enumerate()) <= there


def test_what_is_finished_is_told_before_a_stop(tmp_path: Path) -> None:
    short, stop = tiny("fedavg", "run.engine=batched", "train.local_epochs=2"), Stop()
    asked, outs = [short, short.but("run.seed=1")], [tmp_path / "0", tmp_path / "1"]
    run(asked[0], outs[0])
    ends = run_together(asked, outs, clients=1000, stop=stop, listener=_StopsAfter(1, stop))
    assert next(ends)[0] == 0
    with pytest.raises(Stopped, match="after round 1 of 4"):
        next(ends)


def test_a_finished_run_of_another_config_is_nobodys_result(tmp_path: Path) -> None:
    run(tiny("fedavg"), tmp_path / "0")
    ((_, found),) = run_together([tiny("fedavg", "run.seed=1")], [tmp_path / "0"])
    assert "run.seed was 0, now 1" in str(found)


@pytest.mark.parametrize("method", ["fedavg", "fedrep", "per-fedavg", "scaffold", "fedrod-hyper", "fedrod-meta-bsm"])
def test_a_sweep_of_rates_is_one_stack(method: str, tmp_path: Path, stacks: list[list[int]]) -> None:
    """Three rates, one of them twice, with ragged clients: the order of a stack is no longer that of the runs."""
    sets = *RAGGED, "train.batch_size=10", "train.weight_decay=0.01"
    asked = [tiny(method, *sets, f"train.lr={rate}") for rate in (0.01, 0.1, 0.03)]
    asked.append(asked[1].but("run.seed=1"))
    found = dict(run_together(asked, [tmp_path / str(place) for place in range(4)], clients=1000))
    one_rate = method == "fedrod-meta-bsm"  # whose step has a net that learns too, at one rate
    assert max(map(len, stacks)) == (2 if one_rate else 4)
    for place, config in enumerate(asked):
        beside = found[place]
        assert isinstance(beside, Result), beside
        assert_states_near(run(config), beside, model=1e-4, kept=1e-3)


def test_a_foreign_step_has_one_rate_in_a_stack(
    tmp_path: Path, stacks: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(steps, "clipped", Clipped)
    sets = *RAGGED, "train.batch_size=10", "method.step=clipped"
    asked = [tiny("fedavg", *sets, f"train.lr={rate}") for rate in (0.1, 0.1, 0.03)]
    found = dict(run_together(asked, [tmp_path / str(place) for place in range(3)], clients=1000))
    assert max(map(len, stacks)) == 2
    for place, config in enumerate(asked):
        beside = found[place]
        assert isinstance(beside, Result), beside
        assert_states_near(run(config.but("run.engine=one-by-one")), beside, model=1e-4, kept=1e-3)


def test_methods_whose_clients_learn_alike_share_a_stack(tmp_path: Path, stacks: list[list[int]]) -> None:
    """Ditto learns twice a round, so that it falls behind the others; local-only has everybody in each round."""
    asked = [
        tiny(method, *RAGGED, f"train.lr={rate}")
        for method, rate in (("fedavg", 0.1), ("fedper", 0.05), ("fedadam", 0.1), ("ditto", 0.02), ("local-only", 0.1))
    ]
    assert packs(asked, 1000) == [[0, 1, 2, 3, 4]]
    found = dict(run_together(asked, [tmp_path / str(place) for place in range(5)], clients=1000))
    assert max(map(len, stacks)) == 5
    for place, config in enumerate(asked):
        beside = found[place]
        assert isinstance(beside, Result), beside
        assert_states_near(run(config), beside, model=1e-4, kept=1e-3)


def test_each_run_has_its_own_label(tmp_path: Path) -> None:
    shown = Console(file=io.StringIO(), width=200)
    asked = configs("fedavg")[2:4]
    list(run_together(asked, [tmp_path / "0", tmp_path / "1"], clients=1000, listener=PlainLines(shown)))
    assert isinstance(shown.file, io.StringIO)
    lines = shown.file.getvalue().splitlines()
    assert [sum(f"fedavg seed {seed}: round" in line for line in lines) for seed in (0, 1)] == [4, 4]


def test_who_can_stand_beside_whom() -> None:
    alike = configs("fedbabu")
    assert packs(alike, 100) == [[0, 1, 2, 3, 4]]
    assert packs(alike, 9) == [[0, 1, 2], [3, 4]]  # three participants each, the last has five
    assert packs(alike) == [[0], [1], [2], [3], [4]]  # one at a time on CPU
    kin = ["train.lr=0.05", "method.name=fedadam-babu", "personalize.lr=0.5", 'measure.names=["initial"]']
    assert packs([alike[0], *(alike[0].but(other) for other in kin)], 100) == [[0, 1, 2, 3, 4]]
    others = [
        "method.name=fedavg",
        "method.name=fedprox-babu",
        "model.body=conv3",
        "train.local_epochs=1",
        "train.head_lr_factor=0.5",
        "data.augment=flip",
    ]
    assert len(packs([alike[0], *(alike[0].but(other) for other in others)], 100)) == 1 + len(others)
    ray = [config.but("run.engine=ray") for config in alike]
    assert packs(ray) == packs(alike)  # it is the workers' device that counts
    assert packs([config.but("run.ray.gpus_per_worker=0.33") for config in ray]) == [[0, 1, 2, 3, 4]]
    made = [alike[0].but("data.source=synthetic", f"run.seed={seed}") for seed in (0, 1)]
    assert len(packs(made, 100)) == 2  # other images
    assert packs([alike[0].but("run.engine=one-by-one"), alike[1]], 100) == [[0], [1]]


def test_a_shelf_reads_once() -> None:
    data_cache, device = DataCache(), torch.device("cpu")
    one, other = (build(config.data, 0, device, data_cache) for config in configs("fedavg")[:2])
    assert one.train.samples.data_ptr() == other.train.samples.data_ptr()
    assert one.train.order.tolist() != other.train.order.tolist()
    made = tiny("fedavg", "data.source=synthetic")
    assert not torch.equal(*(build(made.data, seed, device, data_cache).train.samples for seed in (0, 1)))
