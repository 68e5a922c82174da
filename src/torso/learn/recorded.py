"""Gradients of stacked clients, recorded as CUDA graphs: one launch replaces some hundred small kernels.

A recording reads fixed memory, so that it can be replayed for other clients, rounds and batches of the same shape.
Parameters are in this memory from the start of a visit (`home`); everything else is copied into it. A short or ragged
batch is padded to the recorded width and masked, so that two recordings are enough for an epoch in which all clients
have samples. When clients run out of samples, recordings of fewer clients (`clients_to_record`) are used, on the first
rows of the same memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from torso.data.batches import Batch
from torso.fast import is_fast
from torso.learn.gradients import Gradients
from torso.learn.objectives import Objective
from torso.learn.stacked import copy_all
from torso.nets import Network, Tensors, learnable

T = TypeVar("T")


class Graph(Protocol):
    """Recorded operations, such as a CUDA graph."""

    def replay(self) -> None: ...


class Recordable(NamedTuple):
    """Operations to record."""

    run: Callable[[], None]  # the operations, on fixed memory
    warm_up: Callable[[], None]  # the same on copies: called before, so that kernels are compiled


@dataclass(frozen=True)
class _Recording:
    """A recorded gradient, with the fixed memory of its inputs and outputs."""

    graph: Graph
    tensors: Tensors
    batch: Batch
    counts: Tensor
    grads: Tensors  # output
    total: Tensor  # output: summed losses
    buffers: frozenset[str]  # tensors that the forward pass changes: running statistics

    def replay(self, tensors: Tensors, batch: Batch, counts: Tensor) -> tuple[Tensors, Tensor]:
        """Copy the inputs in, replay the graph, and copy changed running statistics out."""
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
    """A recorded `Recordable`."""

    graph: torch.cuda.CUDAGraph
    run: Callable[[], None]  # kept because it holds the memory that the graph reads

    def replay(self) -> None:
        self.graph.replay()


class Recorder:
    """The gradients of `compute`, replayed from recordings if possible. A result is valid until the next call.

    `most`: the number of recordings that are kept; `frozen`: tensors of the network that never train."""

    def __init__(self, compute: Gradients, most: int = 64, frozen: Collection[str] = ()) -> None:
        self.compute = compute
        self.most = most
        self.frozen = frozen
        self.joins_steps = True  # whether several steps may be recorded as one (recorded_epochs.py)
        self._recordings: OrderedDict[object, _Recording] = OrderedDict()
        self._plays: OrderedDict[object, Callable[[], None]] = OrderedDict()
        self._made: dict[object, Any] = {}  # fixed memory that the plays use
        self.noted: dict[object, object] = {}  # values that are in this memory now
        self._homes: dict[tuple[str, torch.Size], Tensor] = {}  # fixed memory of the models' tensors
        self._here: Tensors = {}  # the homes of this visit
        self._modules: dict[int, list[nn.Module]] = {}  # layers by the id of their network
        self._width = 0  # samples in a full batch of this visit
        self._pool = _new_pool()

    def another(self) -> Recorder:
        """A recorder with the same options and no recordings."""
        made = type(self)(self.compute, self.most)
        made.frozen, made.joins_steps = self.frozen, self.joins_steps
        return made

    def forget(self) -> None:
        """Free all recordings and their memory, for example if memory has run out. Tensors at home are lost."""
        self._recordings.clear()
        self._plays.clear()
        self._made.clear()
        self.noted.clear()
        self._homes.clear()
        self._here.clear()
        self._pool = _new_pool()  # a pool without recordings that still holds memory can not be recorded into

    def home(self, tensors: Tensors, width: int) -> Tensors:
        """Begin a visit with batches of at most `width` samples; returns copies of the tensors [G, *] in the memory
        that recordings read. The next visit of as many clients overwrites them. A frozen tensor has one copy for all
        clients."""
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
        """Whether these tensors are the ones that `home` returned for this visit."""
        return all(self._here.get(name) is tensor for name, tensor in tensors.items())

    def made(self, key: object, make: Callable[[], T]) -> T:
        """The object under a key, made at the first call. It is kept as long as the recordings that use its memory."""
        if key not in self._made:
            self._made[key] = make()
        found: T = self._made[key]
        return found

    def place(self, what: str, like: Tensor) -> Tensor:
        """Fixed memory with the shape and dtype of `like`, not initialised."""
        return self.made(
            (what, like.shape, like.dtype), lambda: torch.empty_like(like, memory_format=torch.contiguous_format)
        )

    def play(self, key: object, make: Callable[[], Recordable]) -> None:
        """Replay the operations under a key; the first call records them."""
        if key not in self._plays:
            self._plays[key] = self._taped(make())
            if len(self._plays) > 2 * self.most:
                self._plays.popitem(last=False)
        self._plays.move_to_end(key)
        self._plays[key]()

    def _taped(self, play: Recordable) -> Callable[[], None]:
        """Record operations; returns the function that replays them."""
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
        """Gradients by the recording for batches of this width, which is made if there is none."""
        clients = len(batch.labels)
        rows = clients if batch.lead is None else clients_to_record(batch.lead, clients)
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
        """Which layers of a network are in train mode."""
        if id(net) not in self._modules:
            self._modules[id(net)] = list(net.modules())
        return tuple(module.training for module in self._modules[id(net)])

    def _is_home(self, name: str, tensor: Tensor) -> bool:
        """Whether a tensor is the home of its name in this visit, or the first rows of it."""
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
        """Record a gradient. Before, it is computed to warm up (kernels are compiled, libraries choose algorithms), and
        the running statistics that this changed are restored."""
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
        graph, (grads, total) = self._captured(step)
        return _Recording(graph, kept, batch, counts, grads, total, buffers)

    def _warm_up(self, step: Callable[[], tuple[Tensors, Tensor]]) -> None:
        self._on_the_side(lambda: self._try(step))

    def _on_the_side(self, run: Callable[[], None]) -> None:
        """Run on another stream, as CUDA demands for the warm-up of operations that will be recorded."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(side):
                run()
        finally:
            torch.cuda.current_stream().wait_stream(side)

    def _try(self, step: Callable[[], tuple[Tensors, Tensor]]) -> None:
        """Compute the step before it is recorded; called on the warm-up stream."""
        for _ in range(2):
            step()

    def _captured(self, step: Callable[[], tuple[Tensors, Tensor]]) -> tuple[Graph, tuple[Tensors, Tensor]]:
        """Record a step; returns the recording and the memory of its results."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            return graph, step()


def clients_to_record(lead: int, clients: int) -> int:
    """The number of clients of the recording that is used if `lead` of `clients` have samples: all, three quarters, a
    half and so on. So few recordings are enough for any `lead`, and at most a third of the work is wasted."""
    half = clients
    while half > 1 and (half + 1) // 2 >= lead:
        half = (half + 1) // 2
    quarters = -(-half * 3 // 4)
    return quarters if quarters >= lead else half


def _new_pool() -> Any:
    return torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None


def _room_for(batch: Batch, width: int, masked: bool) -> Batch:
    """Fixed memory for batches of this width; each sample has the same memory format as in `batch`."""
    clients, _, *shape = batch.inputs.shape
    each, within = batch.inputs[0, 0].numel(), batch.inputs.stride()[2:]
    inputs = batch.inputs.new_empty_strided((clients, width, *shape), (width * each, each, *within)).zero_()
    labels = batch.labels.new_zeros(clients, width)
    real = torch.zeros(clients, width, device=labels.device) if masked else None
    taught = {what: said.new_zeros(clients, width, *said.shape[2:]) for what, said in (batch.taught or {}).items()}
    keys = torch.zeros_like(batch.keys) if isinstance(batch.keys, Tensor) else None
    return Batch(inputs, labels, real, keys=keys, taught=taught or None)


def _fill(fixed: Batch, batch: Batch) -> None:
    """Copy a batch into fixed memory. If it is narrower, the columns to its right keep old samples, which are
    masked."""
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
