"""A recorder that works on CPU: what a CUDA graph does, done by a trace of the operations.

As in a CUDA graph, Python runs once, when a recording is made: numbers and tensors that it used are fixed from then
on, and only what is written into fixed memory may change. So a value that a recording must not keep is found on CPU,
too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from torso.data.batches import Batch
from torso.learn.objectives import Objective
from torso.learn.recorded import Recordable, Recorder, _Recording
from torso.learn.stacked import copy_all
from torso.nets import Network, Tensors, learnable


class Replaying:
    """In place of a CUDA graph: it repeats traced operations."""

    def __init__(self, replay: Callable[[], None]) -> None:
        self.replay = replay


class TracingRecorder(Recorder):
    """Records by tracing. `traced`: how many recordings it made; `replayed`: how often one was repeated."""

    traced = replayed = 0

    def play(self, key: object, make: Callable[[], Recordable]) -> None:
        if key in self._plays:
            TracingRecorder.replayed += 1
            self._plays[key]()
            return
        found = make()
        found.warm_up()
        self._plays[key] = _trace(found.run)  # to trace is also to run once
        TracingRecorder.traced += 1

    def _record(
        self,
        net: Network,
        tensors: Tensors,
        names: Sequence[str],
        batch: Batch,
        objective: Objective,
        counts: Tensor,
    ) -> _Recording:
        kept = {n: t if self._is_home(n, t) else t.clone() for n, t in tensors.items()}
        buffers = frozenset(kept).difference(learnable(net, kept), net.frozen)
        before = {n: kept[n].clone() for n in buffers}
        again = _trace(lambda: self.compute(net, kept, names, batch, objective, counts))
        grads, total = again()
        for name, tensor in before.items():
            kept[name].copy_(tensor)

        def replay() -> None:
            TracingRecorder.replayed += 1
            new, new_total = again()
            copy_all([*grads.values(), total], [*(new[name] for name in grads), new_total])

        TracingRecorder.traced += 1
        graph = cast("torch.cuda.CUDAGraph", Replaying(replay))
        return _Recording(graph, kept, batch, counts, grads, total, buffers)


def _trace(run: Callable[[], Any]) -> Callable[[], Any]:
    return cast("Callable[[], Any]", make_fx(run)())
