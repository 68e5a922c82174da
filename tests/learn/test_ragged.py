"""Clients of any sizes in one stack learn what each of them learns alone, in whatever memory; and no more is held."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.foreign import Clipped
from torch import Tensor
from torch.nn import MaxPool2d, Parameter

from torso.data.augment import PixelLens, augmentations
from torso.data.batches import Deck, Shuffle
from torso.data.deals import DealShape, samples_per_step
from torso.data.inputs import as_input
from torso.learn import local
from torso.learn.drift import Drift, DriftState, Dynamic, MultiTask, NoDrift, Proximal, Scaffold
from torso.learn.gradients import gradients
from torso.learn.local import learn, learn_by_epoch
from torso.learn.lockstep import JointRequest
from torso.learn.meta import MetaWeighted
from torso.learn.objectives import BalancedSoftmax
from torso.learn.phases import LocalPhase, Phase, local_phases, stacked_phase
from torso.learn.recorded import Recordable, Recorder, _Recording
from torso.learn.recorded_epochs import blocks
from torso.learn.steps import Envelope, LocalSettings, LookAhead, Plain, Step
from torso.learn.task import LocalContext, LocalResult, LocalTask
from torso.nets import Body, LinearHead, Network, Tensors, learnable, skeleton
from torso.nets.blocks import Unit

pytestmark = pytest.mark.usefixtures("double")
SIZES = (3, 0, 18, 1, 9, 18, 6, 11)  # in batches of 5 one, none, four, one (or none), two, four, two and three steps
COMMON, CLASSES, IMAGE = 12, 4, (1, 8, 8)
RATES = (0.05, 0.01, 0.02, 0.1, 0.07, 0.03, 0.09, 0.04)


@dataclass
class _Graph:
    """What stands for a CUDA graph: computes anew into the memory of its first outputs. Those of the others are lost,
    since graphs share one pool."""

    recorder: Replayed
    asked: tuple[Any, ...]
    grads: Tensors
    total: Tensor

    def replay(self) -> None:
        for graph in self.recorder.graphs:
            for out in (*graph.grads.values(), graph.total):
                out.fill_(torch.nan)
        grads, total = self.recorder.compute(*self.asked)
        self.total.copy_(total)
        for name, grad in grads.items():
            self.grads[name].copy_(grad)


class Replayed(Recorder):
    """A recorder without CUDA, as strict about memory as one with."""

    def __init__(self) -> None:
        super().__init__(gradients)
        self.graphs: list[_Graph] = []
        self.taped = 0

    def _record(self, net: Network, tensors: Tensors, names: Sequence[str], *rest: Any) -> _Recording:
        kept = {n: t if self._is_home(n, t) else t.clone() for n, t in tensors.items()}
        buffers = frozenset(kept).difference(learnable(net, kept))
        before = {n: kept[n].clone() for n in buffers}
        grads, total = self.compute(net, kept, names, *rest)
        for name, tensor in before.items():
            kept[name].copy_(tensor)
        graph = _Graph(self, (net, kept, names, *rest), grads, total)
        self.graphs.append(graph)
        return _Recording(graph, kept, rest[0], rest[2], grads, total, buffers)  # type: ignore[arg-type]

    def _taped(self, play: Recordable) -> Callable[[], None]:
        """What stands for a graph of several steps: they are done again on the memory that they were recorded on."""
        self.taped += 1
        before = {n: t.clone() for n, t in self._here.items()}
        play.warm_up()
        for name, tensor in before.items():
            assert torch.equal(self._here[name], tensor)
        return play.run


def drawn_net(seed: int, channels: int) -> Network:
    """`conv3`, which has 64 channels, with running statistics."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        ways = ((1, channels), (channels, channels), (channels, channels))
        body = Body([Unit(*way, 3, norm="running", pool=MaxPool2d(2)) for way in ways], channels)
        return Network(body, LinearHead().build(channels, CLASSES, True), as_input(IMAGE))


def task(plan: Sequence[Phase], step: Step, channels: int = 8, **settings: Any) -> tuple[LocalTask, Tensors]:
    """Eight clients, each with a network of its own."""
    nets = [drawn_net(seed, channels) for seed in range(len(SIZES))]
    tensors = {n: torch.stack([net.state_dict()[n] for net in nets]) for n in nets[0].state_dict()}
    total = sum(SIZES) + COMMON
    draw = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (total, 8, 8, 1), dtype=torch.uint8, generator=draw)
    labels = torch.randint(0, CLASSES, (total,), generator=draw)
    rows = list(torch.split(torch.arange(sum(SIZES)), SIZES))
    meta = [torch.arange(sum(SIZES), total)] * len(SIZES) if step.uses_meta else None
    net = skeleton(nets[0])
    context = LocalContext(
        net, CLASSES, PixelLens.of((0.5,), (0.25,), torch.device("cpu")), augmentations["none"], True
    )
    return (
        LocalTask(
            context,
            Deck.of(images, labels, rows, range(len(SIZES))),
            local_phases(net, plan, 2, 0.05),
            LocalSettings(5, 0.9, 0.01, step=step, **settings),
            Shuffle(0, "test", 1),
            None if meta is None else Deck.of(images, labels, meta, range(len(SIZES))),
        ),
        tensors,
    )


def anchor_of(tensors: Tensors, net: Network, shared: bool) -> DriftState:
    """Numbers to hold on to; `shared`: one tensor for all clients."""

    def drawn(seed: int, each: bool) -> Tensors:
        draw = torch.Generator().manual_seed(seed)
        shapes = {n: tensors[n].shape[0 if each else 1 :] for n in learnable(net, tensors)}
        return {n: torch.randn(shape, generator=draw) for n, shape in shapes.items()}

    return DriftState(drawn(1, not shared), {}, drawn(2, True), drawn(3, not shared))


def only(client: int, asked: LocalTask, rates: Sequence[float] | None = None) -> LocalTask:
    """The task of one client; at its own rate, where they have such."""
    place = torch.tensor([client])
    one = asked.of_places([client], place)
    if rates is None:
        return one
    return replace(one, plan=tuple(replace(x, rates=dict.fromkeys(x.rates, rates[client])) for x in one.plan))


def with_rates(plan: Sequence[LocalPhase], rates: Sequence[float]) -> tuple[LocalPhase, ...]:
    each = [[replace(x, rates=dict.fromkeys(x.rates, rate)) for x in plan] for rate in rates]
    return tuple(stacked_phase(column, [1] * len(rates), torch.device("cpu")) for column in zip(*each, strict=True))


def assert_same(together: LocalResult, alone: LocalResult, client: int) -> None:
    for kind in ("tensors", "own", "notes"):
        mine, its = getattr(together, kind), getattr(alone, kind)
        assert mine.keys() == its.keys()
        for name, tensor in its.items():
            torch.testing.assert_close(mine[name][client], tensor[0], rtol=1e-9, atol=1e-11, msg=f"{client} {name}")
    torch.testing.assert_close(together.loss[client], alone.loss[0], rtol=1e-9, atol=1e-11)


ALL, TWO, REP = (Phase("all"),), (Phase("head", 3), Phase("all", 1)), (Phase("head"), Phase("body", 1))
CASES: Mapping[str, tuple[Sequence[Phase], Step, Drift, bool]] = {
    "plain": (ALL, Plain(), NoDrift(), False),
    "fixed features first": (TWO, Plain(), Proximal(0.5), False),
    "FedRep, one optimiser": (REP, Plain(), NoDrift(), True),
    "FedRep, an optimiser each": (REP, Plain(), Proximal(0.5), False),
    "FedProx": (ALL, Plain(), Proximal(0.5), False),
    "SCAFFOLD": (ALL, Plain(), Scaffold(), False),
    "FedDyn": (ALL, Plain(), Dynamic(0.1), False),
    "MTL": (ALL, Plain(), MultiTask(0.1, 0.2), False),
    "Per-FedAvg": (ALL, LookAhead(), NoDrift(), False),
    "Per-FedAvg, held": (ALL, LookAhead(with_momentum=True), Scaffold(), False),
    "pFedMe": (ALL, Envelope(inner_steps=2), NoDrift(), False),
    "pFedMe in two phases": (REP, Envelope(inner_steps=2), Proximal(0.5), False),
    "a foreign step": (ALL, Clipped(), NoDrift(), False),
    "Meta-BSM": (ALL, MetaWeighted(hidden=3), NoDrift(), False),
}


WAYS = ((False, None, True), (False, RATES, False), (True, RATES, True), (True, None, False))
# recorded, rates, shared; the last has several steps in a recording


def ways(case: str) -> Sequence[tuple[bool, Sequence[float] | None, bool]]:
    """The second is the first where a step has no rates of its own and nobody holds on to anything."""
    _, step, drift, _ = CASES[case]
    few = WAYS if step.any_rates or type(drift) is not NoDrift else (WAYS[0], WAYS[2])
    return few if type(step) is Plain else few[:3]


@pytest.mark.parametrize(
    ("case", "recorded", "rates", "shared"), [(case, *way) for case in CASES for way in ways(case)]
)
def test_a_stack_is_its_clients_alone(case: str, recorded: bool, rates: Sequence[float] | None, shared: bool) -> None:
    """Some have no samples at all, some a single one, which is skipped; anchors are `shared` or each client's own."""
    plan, step, drift, momentum = CASES[case]
    rates = rates if step.any_rates else None
    objective = {"objective": BalancedSoftmax()} if step.uses_meta else {}
    asked, tensors = task(plan, step, drift=drift, shared_momentum=momentum, **objective)
    anchor = None if type(drift) is NoDrift else anchor_of(tensors, asked.context.net, shared)
    notes = {n: torch.stack([t * (1 + g) for g in range(len(SIZES))]) for n, t in step.notes(0).items()}
    stack = asked if rates is None else replace(asked, plan=with_rates(asked.plan, rates))
    if recorded:
        stack = replace(stack, context=replace(stack.context, recorder=Replayed()))
    before = {n: t.clone() for n, t in tensors.items()}
    seen = list(learn_by_epoch(stack, tensors, anchor, notes)) if not recorded else []
    visits = [learn(stack, tensors, anchor, notes) for _ in range(2 if recorded else 1)]
    for name, tensor in before.items():
        assert torch.equal(tensors[name], tensor)
    if isinstance(recorder := stack.context.recorder, Replayed):
        assert bool(recorder.taped) == (type(step) is Plain and rates is None)
    for client in range(len(SIZES)):
        place = torch.tensor([client])
        mine = {n: t[place] for n, t in tensors.items()}
        held = None if anchor is None else anchor.of_places(place, tensors)
        alone = learn(only(client, asked, rates), mine, held, {n: t[place] for n, t in notes.items()})
        for together in visits + seen[-1:]:
            assert_same(together, alone, client)


def bytes_held() -> int:
    """Of all tensors that are alive, memory that several share once. torch.export leaves fake ones, which have none."""
    gc.collect()
    alive = [thing for thing in gc.get_objects() if type(thing) in (Tensor, Parameter) and thing.device.type == "cpu"]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in alive}.values())


def test_memory_does_not_grow_with_epochs(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """One stack is given, one placed and one learns; what comes back is the fourth."""
    gc.freeze()  # what other tests hold is not looked through at each step
    request.addfinalizer(gc.unfreeze)
    asked, tensors = task((Phase("all", 6),), Plain(), channels=64)  # beside the weights, samples are little
    stack, before, held = sum(t.nbytes for t in tensors.values()), bytes_held(), list[int]()
    inner = local._learned

    def watched(*now: Any) -> LocalResult:
        held.append(bytes_held() - before)
        return inner(*now)

    monkeypatch.setattr(local, "_learned", watched)
    learn(asked, tensors)
    assert len(held) == 7
    assert max(held) < 3.5 * stack


def test_a_body_that_is_everybodys_and_does_not_learn_is_not_copied() -> None:
    """Fine-tuning of a head: all clients begin at one model."""
    asked, tensors = task((Phase("head"),), Plain())
    common = {n: t[0].expand(t.shape) for n, t in tensors.items()}
    for learned in (learn(asked, common), *learn_by_epoch(asked, common)):
        for name, tensor in learned.tensors.items():
            assert (tensor.data_ptr() == common[name].data_ptr()) == name.startswith("body.")


def test_stacks_of_other_sizes_have_recordings_of_their_own() -> None:
    """They may be of as many leading clients, but read other memory; those of the same size read who is there now."""
    asked, tensors = task(ALL, Plain(), objective=BalancedSoftmax())
    recorder = Replayed()
    for order in (list(range(8)), [2, 4, 5, 6], list(range(8)), [5, 2, 7], [4, 2, 0]):
        places = torch.tensor(order)
        mine, some = {n: t[places] for n, t in tensors.items()}, asked.of_places(order, places)
        found = learn(replace(some, context=replace(some.context, recorder=recorder)), mine).tensors
        for name, tensor in learn(some, mine).tensors.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-11, msg=name)


def test_steps_that_one_recording_takes() -> None:
    """Ten clients, batches of 5: nine steps of all, then the first has 17 more, and the last of them is short."""
    filled = samples_per_step([45 + 17 * 5 + 3, *[45] * 9], DealShape(10, 28, 5, False, False))
    found = list(blocks(filled))
    assert found == [
        (0, 8, 10, False), (8, 1, 10, False), (9, 8, 1, False), (17, 8, 1, False), (25, 1, 1, False), (26, 1, 1, True)
    ]  # fmt: skip


def test_a_short_epoch_of_equal_clients_is_one_recording() -> None:
    assert list(blocks(samples_per_step([25] * 4, DealShape(4, 8, 5, False, False)))) == [(0, 5, 4, False)]


def test_as_clients_fall_out_fewer_are_computed() -> None:
    """Of eight clients five are left, then two; three quarters of eight are six, and one of these lacks samples."""
    found = list(blocks(samples_per_step([15, 15, 10, 10, 10, 5, 5, 5], DealShape(8, 3, 5, False, False))))
    assert found == [(0, 1, 8, False), (1, 1, 6, True), (2, 1, 2, False)]


def test_plans_that_differ_in_more_than_rates_are_not_one_stack() -> None:
    asked, tensors = task((Phase("all", 2),), Plain())
    net, mine = asked.context.net, JointRequest(0, asked, tensors, None, {})

    def beside_it(*plan: Phase, lr: float = 0.5) -> bool:
        return mine.fits(JointRequest(1, replace(asked, plan=local_phases(net, plan, 2, lr)), tensors, None, {}))

    assert beside_it(Phase("all", 2))
    assert not beside_it(Phase("all", 3))
    assert not beside_it(Phase("body", 2))
    assert not beside_it(Phase("all", 2), Phase("all", 2))
    assert not beside_it(Phase("all", 2), lr=0.0)
    (phase,) = asked.plan
    assert not phase.differs_only_in_rates(replace(phase, moving=frozenset(phase.rates)))
