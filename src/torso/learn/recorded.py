"""Gradients of stacked clients as CUDA graphs: a step of some hundred small kernels is launched as one.

A recording reads fixed memory, so that it can be replayed for other clients, rounds and batches of the same shape.
Parameters live there from the start of a visit (`home`); anything else is copied in. A short or ragged batch is padded
to the recorded width and masked, so two recordings serve an epoch in which all clients have samples; as they fall out,
recordings of fewer and fewer clients (`rung`) take over, on the first rows of the same memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from torso.data.batches import Batch
from torso.fast import is_fast
from torso.learn.gradients import Gradients
from torso.learn.objectives import Objective
from torso.learn.stacked import copy_all
from torso.nets import Network, Tensors, learnable

T = TypeVar("T")


class Play(NamedTuple):
    """What is to be recorded: operations on fixed memory, and the same on copies, by which kernels are compiled."""

    run: Callable[[], None]
    warm_up: Callable[[], None]


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    tensors: Tensors
    batch: Batch
    counts: Tensor
    grads: Tensors
    total: Tensor
    buffers: frozenset[str]

    def replay(self, tensors: Tensors, batch: Batch, counts: Tensor) -> tuple[Tensors, Tensor]:
        rows = len(self.counts)
        away = [n for n, kept in self.tensors.items() if kept.data_ptr() != tensors[n].data_ptr()]
        for name in away:
            self.tensors[name].copy_(tensors[name][:rows])
        self.counts.copy_(counts[:rows])
        _fill(self.batch, batch)
        self.graph.replay()
        for name in self.buffers.intersection(away):  # running statistics have moved
            tensors[name][:rows].copy_(self.tensors[name])
        return self.grads, self.total


@dataclass(frozen=True)
class _Tape:
    graph: torch.cuda.CUDAGraph
    run: Callable[[], None]

    def replay(self) -> None:
        self.graph.replay()


class Recorder:
    """Gradients as `compute` gives them, replayed where they can be. What comes back is valid until the next call.

    `frozen`: tensors of the network that never learn."""

    def __init__(self, compute: Gradients, most: int = 64, frozen: Collection[str] = ()) -> None:
        self.compute = compute
        self.most = most
        self.frozen = frozen
        self.strides = True  # whether several steps may be recorded as one (strides.py)
        self._recordings: OrderedDict[object, _Recording] = OrderedDict()
        self._plays: OrderedDict[object, Callable[[], None]] = OrderedDict()
        self._made: dict[object, Any] = {}  # what those use: memory that stays where it is
        self.noted: dict[object, object] = {}  # what somebody has put there
        self._homes: dict[tuple[str, torch.Size], Tensor] = {}
        self._here: Tensors = {}  # the homes of this visit
        self._modules: dict[int, list[nn.Module]] = {}  # of networks
        self._width = 0
        self._pool = _new_pool()

    def another(self) -> Recorder:
        """One like this, with nothing recorded."""
        made = type(self)(self.compute, self.most)
        made.frozen, made.strides = self.frozen, self.strides
        return made

    def forget(self) -> None:
        """Give all memory back, as when it has run out; what is at home is lost."""
        self._recordings.clear()
        self._plays.clear()
        self._made.clear()
        self.noted.clear()
        self._homes.clear()
        self._here.clear()
        self._pool = _new_pool()  # nobody may record into a pool whose last recording is gone while it holds memory

    def home(self, tensors: Tensors, width: int) -> Tensors:
        """Begin a visit with batches of at most `width` samples: copies of the tensors in the memory that recordings
        read. The next visit of as many clients overwrites them. What is frozen has one place for all clients."""
        self._width = width
        there: list[Tensor] = []
        given: list[Tensor] = []
        for name, tensor in tensors.items():
            key, held = (name, tensor.shape), tensor[:1] if name in self.frozen else tensor
            if key not in self._homes:
                place = torch.empty_like(held, memory_format=torch.contiguous_format)
                self._homes[key] = place.expand_as(tensor) if name in self.frozen else place
            there.append(self._homes[key][: len(held)])
            given.append(held)
        copy_all(there, given)
        self._here = {name: self._homes[name, tensor.shape] for name, tensor in tensors.items()}
        return dict(self._here)

    def holds(self, tensors: Tensors) -> bool:
        """Whether these are the homes of this visit."""
        return all(self._here.get(name) is tensor for name, tensor in tensors.items())

    def made(self, key: object, make: Callable[[], T]) -> T:
        """Something that stays where it is, as long as recordings do; made when it is first asked for."""
        if key not in self._made:
            self._made[key] = make()
        found: T = self._made[key]
        return found

    def place(self, what: str, like: Tensor) -> Tensor:
        """Memory of this shape that stays where it is."""
        return self.made(
            (what, like.shape, like.dtype), lambda: torch.empty_like(like, memory_format=torch.contiguous_format)
        )

    def play(self, key: object, make: Callable[[], Play]) -> None:
        """Do what is recorded under a key; recorded now if nothing is."""
        if key not in self._plays:
            self._plays[key] = self._taped(make())
            if len(self._plays) > 2 * self.most:
                self._plays.popitem(last=False)
        self._plays.move_to_end(key)
        self._plays[key]()

    def _taped(self, play: Play) -> Callable[[], None]:
        """A recording; the operations themselves go with it, since they hold the memory that it reads."""
        self._on_the_side(play.warm_up)
        graph, run = torch.cuda.CUDAGraph(), play.run
        with torch.cuda.graph(graph, pool=self._pool):
            run()
        return _Tape(graph, run).replay

    def gradients(
        self,
        net: Network,
        tensors: Tensors,
        names: Sequence[str],
        batch: Batch,
        objective: Objective,
        counts: Tensor,
    ) -> tuple[Tensors, Tensor]:
        width = max(self._width, batch.labels.shape[1])
        return self._replayed(net, tensors, names, batch, objective, counts, width)

    def _replayed(
        self,
        net: Network,
        tensors: Tensors,
        names: Sequence[str],
        batch: Batch,
        objective: Objective,
        counts: Tensor,
        width: int,
    ) -> tuple[Tensors, Tensor]:
        """Gradients by the recording for batches of a width; recorded now if there is none."""
        clients = len(batch.labels)
        rows = clients if batch.lead is None else rung(batch.lead, clients)
        batch = batch.first(rows)
        masked = batch.real is not None or batch.labels.shape[1] < width
        at_home = frozenset(n for n, t in tensors.items() if self._is_home(n, t))
        modes = self._modes(net)
        switches = torch.get_float32_matmul_precision(), batch.inputs.dtype, is_fast(batch.inputs)
        shape = batch.inputs.shape[2:]  # of a sample; sequences have few lengths
        key = id(net), modes, tuple(names), objective, clients, rows, width, masked, at_home, switches, shape
        if key not in self._recordings:
            fixed = _room_for(batch, width, masked)
            _fill(fixed, batch)
            some = {name: tensor[:rows] for name, tensor in tensors.items()}
            self._recordings[key] = self._record(net, some, names, fixed, objective, counts[:rows].clone())
            if len(self._recordings) > self.most:
                self._recordings.popitem(last=False)
        self._recordings.move_to_end(key)
        return self._recordings[key].replay(tensors, batch, counts)

    def _modes(self, net: Network) -> tuple[bool, ...]:
        """Which of its layers are in train mode."""
        if id(net) not in self._modules:
            self._modules[id(net)] = list(net.modules())
        return tuple(module.training for module in self._modules[id(net)])

    def _is_home(self, name: str, tensor: Tensor) -> bool:
        """Whether it is the home of this visit, or its first rows."""
        home = self._here.get(name)
        return home is not None and home.data_ptr() == tensor.data_ptr() and home.shape[1:] == tensor.shape[1:]

    def _record(
        self,
        net: Network,
        tensors: Tensors,
        names: Sequence[str],
        batch: Batch,
        objective: Objective,
        counts: Tensor,
    ) -> _Recording:
        """Run once to warm up (kernels compile, libraries choose), put back what that moved, and record."""
        kept = {n: t if self._is_home(n, t) else t.clone() for n, t in tensors.items()}
        buffers = frozenset(kept).difference(learnable(net, kept), net.frozen)
        before = {n: kept[n].clone() for n in buffers}

        def step() -> tuple[Tensors, Tensor]:
            return self.compute(net, kept, names, batch, objective, counts)

        try:
            self._warm_up(step)
        finally:
            for name, tensor in before.items():
                kept[name].copy_(tensor)
        graph = torch.cuda.CUDAGraph()
        grads, total = self._captured(graph, step)
        return _Recording(graph, kept, batch, counts, grads, total, buffers)

    def _warm_up(self, step: Callable[[], tuple[Tensors, Tensor]]) -> None:
        self._on_the_side(lambda: self._try(step))

    def _on_the_side(self, run: Callable[[], None]) -> None:
        """On a stream of its own, as what is to be recorded must be tried."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(side):
                run()
        finally:
            torch.cuda.current_stream().wait_stream(side)

    def _try(self, step: Callable[[], tuple[Tensors, Tensor]]) -> None:
        """On a stream of its own, before it is recorded."""
        for _ in range(2):
            step()

    def _captured(
        self, graph: torch.cuda.CUDAGraph, step: Callable[[], tuple[Tensors, Tensor]]
    ) -> tuple[Tensors, Tensor]:
        with torch.cuda.graph(graph, pool=self._pool):
            return step()


def rung(lead: int, clients: int) -> int:
    """For how many of the clients a recording is made when `lead` of them have samples: all, three quarters, half and
    so on, so that few recordings serve any number and at most a third of the work is for nothing."""
    half = clients
    while half > 1 and (half + 1) // 2 >= lead:
        half = (half + 1) // 2
    quarters = -(-half * 3 // 4)
    return quarters if quarters >= lead else half


def _new_pool() -> Any:
    return torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None


def _room_for(batch: Batch, width: int, masked: bool) -> Batch:
    """Memory for batches of this width, each sample in the same memory format."""
    clients, _, *shape = batch.inputs.shape
    each, within = batch.inputs[0, 0].numel(), batch.inputs.stride()[2:]
    inputs = batch.inputs.new_empty_strided((clients, width, *shape), (width * each, each, *within)).zero_()
    labels = batch.labels.new_zeros(clients, width)
    real = torch.zeros(clients, width, device=labels.device) if masked else None
    taught = {what: said.new_zeros(clients, width, *said.shape[2:]) for what, said in (batch.taught or {}).items()}
    keys = torch.zeros_like(batch.keys) if isinstance(batch.keys, Tensor) else None
    return Batch(inputs, labels, real, keys=keys, taught=taught or None)


def _fill(fixed: Batch, batch: Batch) -> None:
    """Copy a batch in, a narrower one at the left; what stands further right is left over and masked."""
    width = batch.labels.shape[1]
    fixed.inputs[:, :width].copy_(batch.inputs)
    fixed.labels[:, :width].copy_(batch.labels)
    if isinstance(batch.keys, Tensor) and isinstance(fixed.keys, Tensor):
        fixed.keys.copy_(batch.keys)
    for what, said in (batch.taught or {}).items():
        assert fixed.taught is not None
        fixed.taught[what][:, :width].copy_(said)
    if fixed.real is not None:
        fixed.real.zero_()
        if batch.real is None:
            fixed.real[:, :width] = 1
        else:
            fixed.real[:, :width].copy_(batch.real)
