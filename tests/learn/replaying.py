"""A recorder that works on CPU: what a CUDA graph does, done by a trace of the operations.

As in a CUDA graph, Python runs once, when a recording is made: numbers and tensors that it used are fixed from then
on, and only what is written into fixed memory may change. So a value that a recording must not keep is found on CPU,
too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from torso.learn.recorded import Graph, Recordable, Recorder
from torso.learn.stacked import copy_all
from torso.nets import Tensors

Step = Callable[[], tuple[Tensors, Tensor]]


class Replaying:
    """In place of a CUDA graph: it repeats a step, into the memory of its first results."""

    def __init__(self, again: Step, first: tuple[Tensors, Tensor]) -> None:
        self.again, self.first = again, first

    def replay(self) -> None:
        TracingRecorder.replayed += 1
        (grads, total), (new, new_total) = self.first, self.again()
        copy_all([*grads.values(), total], [*(new[name] for name in grads), new_total])


class TracingRecorder(Recorder):
    """Records by tracing. `traced`: how many recordings were made; `replayed`: how often one was repeated."""

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

    def _warm_up(self, step: Step) -> None:
        """Trace here, since what this changes is restored after the warm-up."""
        again: Step = _trace(step)
        self._graph = Replaying(again, again())

    def _captured(self, step: Step) -> tuple[Graph, tuple[Tensors, Tensor]]:
        TracingRecorder.traced += 1
        return self._graph, self._graph.first


def _trace(run: Callable[[], Any]) -> Callable[[], Any]:
    return cast("Callable[[], Any]", make_fx(run)())
