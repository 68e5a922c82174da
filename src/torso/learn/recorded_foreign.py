"""Recorded gradients (recorded.py) for bodies of other libraries, which may not allow it.

Their BatchNorm would count padding. So a batch is recorded at its own width: a full batch at once, a narrower width
when it occurs for the second time, and only a few of these. If a module waits for the device, draws random numbers on
the host or cannot be recorded for another reason, it runs kernel by kernel, with one warning. Recording must never
break a run that works without it.

Full batches are compiled before they are recorded (`run.compile`): at once, or after so many steps that it is likely to
pay. A step that cannot be compiled is recorded as it is, with one warning.
"""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from torso.data.batches import Batch
from torso.learn.gradients import leading_gradients
from torso.learn.objectives import Objective
from torso.learn.recorded import Graph, Recorder, _new_pool, _Recording
from torso.nets import Network, Tensors
from torso.nets.compiled import Compile, Compiling
from torso.nets.compute import allows_padding, draws
from torso.nets.draws import Seeded
from torso.nets.layout import ChannelsLast

Step = Callable[[], tuple[Tensors, Tensor]]
_NARROW = 12  # most widths below the full one that are recorded, for each network and its modes
_WIDTHS = 4  # widths to which batches are padded: quarters of the full one
_OFTEN = 30_000  # steps. On an H200 compiling takes 20 to 27 s, and then a step saves 0.4 to 4.9 ms: it pays after
# 5,400 (ViT-S), 33,000 (ResNet18, bf16) and 73,000 (ResNet18, tf32) further steps (bench/README.md)
_FIRST: dict[Compile, float] = {"on": 0, "auto": _OFTEN, "off": float("inf")}  # steps before the step is compiled


_BACKEND = "inductor"


class CannotRecord(Exception):
    """A step that cannot be recorded; the message says why."""


class ForeignRecorder(Recorder):
    """A recorder for a body of another library: for one client at a time, or for several if one pass
    (`Body.one_pass`) or vmap computes them."""

    def __init__(self, *args: Any, compiles: Compile = "auto", **options: Any) -> None:
        super().__init__(*args, **options)
        self.compiles = compiles
        self.uncompiled = ""  # why compiling has been given up, if it has
        self._taken: Counter[object] = Counter()  # steps of full batches, by network and trained tensors
        # the same keys: recordings that were made before the step was compiled
        self._uncompiled: dict[object, list[weakref.ref[_Recording]]] = {}
        self._backend = ""  # the compiler of the step that is being recorded; "": it is not compiled
        self._whole = False  # whether the step that is being recorded has a full batch
        self.refused = ""  # why recording has been given up, if it has
        self._narrow: dict[object, Counter[int]] = {}  # how often each width occurred, by network and its modes
        self._seeded: Seeded | None = None  # the random numbers of the step that is being computed
        self._wanted = torch.zeros(0)  # the loss of the step that is being recorded

    def another(self) -> Recorder:
        made = super().another()
        assert isinstance(made, ForeignRecorder)
        made.compiles = self.compiles
        return made

    def _is_home(self, name: str, tensor: Tensor) -> bool:
        return tensor is self._here.get(name) or super()._is_home(name, tensor)  # called for each tensor in each step

    def forget(self) -> None:
        super().forget()
        self._uncompiled.clear()

    def gradients(
        self,
        net: Network,
        tensors: Tensors,
        names: Sequence[str],
        batch: Batch,
        objective: Objective,
        counts: Tensor,
    ) -> tuple[Tensors, Tensor]:
        given = net, tensors, names, batch, objective, counts
        width = 0 if self.refused else self._width_for(net, batch)
        if not width:
            return leading_gradients(*given)
        self._whole = width == max(self._width, batch.labels.shape[1])
        self._backend = self._backend_for(net, names, batch)
        try:
            with self._drawing(net, batch):
                return self._replayed(*given, width)
        except CannotRecord as error:
            self._refuse(net, str(error))
        except torch.OutOfMemoryError:
            if not self._recordings:
                raise
            self._refuse(net, "the recordings and a further one do not fit into memory")
        return leading_gradients(*given)

    def _refuse(self, net: Network, why: str) -> None:
        """Give up recording, with a warning."""
        self.refused = why
        self.forget()
        warnings.warn(f"{_name(net)} trains without CUDA graphs, kernel by kernel: {why}", stacklevel=3)

    def _width_for(self, net: Network, batch: Batch) -> int:
        """The width at which a batch is replayed; 0: it is computed kernel by kernel."""
        width, full = batch.labels.shape[1], max(self._width, batch.labels.shape[1])
        if draws(net, batch.inputs) and not (net.body.draws_there and batch.keys):
            return 0
        if len(batch.labels) > 1:  # if clients are computed one by one, recording them together gains nothing
            return full if allows_padding(net, batch.inputs) and (net.body.one_pass or net.body.vmaps) else 0
        if width == full:
            return full if batch.real is None else 0
        if allows_padding(net, batch.inputs):
            return wider(width, full)
        met = self._narrow.setdefault((id(net), self._modes(net), full), Counter())
        met[width] += met[width] < 2 and (not met[width] or sum(n > 1 for n in met.values()) < _NARROW)
        return width if met[width] > 1 else 0

    def _backend_for(self, net: Network, names: Sequence[str], batch: Batch) -> str:
        """The compiler of a step; "": it is not compiled. A compiled step would draw other random numbers, and
        compiling does not work with vmap, which computes several clients."""
        first, way = _FIRST[self.compiles], (id(net), tuple(names))
        if self.uncompiled or not self._whole or first == float("inf") or len(batch.labels) > 1:
            return ""
        if draws(net, batch.inputs):
            return ""
        self._taken[way] += 1
        if self._taken[way] <= first:
            return ""
        if made := self._uncompiled.pop(way, []):
            self._drop([one() for one in made])
        return _BACKEND

    def _drop(self, made: Sequence[_Recording | None]) -> None:
        """Forget recordings, so that the step is recorded again."""
        for key in [key for key, recording in self._recordings.items() if any(recording is one for one in made)]:
            del self._recordings[key]
        if not self._recordings:
            self._pool = _new_pool()

    @contextmanager
    def _drawing(self, net: Network, batch: Batch) -> Iterator[None]:
        """Inside, the step's random numbers come from the batch's key, also in a replay."""
        if not isinstance(batch.keys, tuple) or not draws(net, batch.inputs):
            yield
            return
        self._seeded = Seeded(batch.inputs.device, batch.keys[0])
        try:
            with self._seeded:
                yield
        finally:
            self._seeded = None

    def _restart(self) -> None:
        """Let the next computation draw the same random numbers again."""
        if self._seeded is not None:
            self._seeded.restart()

    def _record(self, net: Network, tensors: Tensors, names: Sequence[str], *given: Any) -> _Recording:
        """Record a step, compiled if `run.compile` says so and it works."""
        if self._backend:
            try:
                return self._checked(net, tensors, names, *given)
            except CannotRecord as error:
                self.uncompiled, self._backend = str(error), ""
                warnings.warn(f"{_name(net)} trains without torch.compile: {error}", stacklevel=3)
        made = self._checked(net, tensors, names, *given)
        if self._whole:
            self._uncompiled.setdefault((id(net), tuple(names)), []).append(weakref.ref(made))
        return made

    def _checked(self, *given: Any) -> _Recording:
        """Record a step, and check that a replay gives the loss of the step."""
        made = super()._record(*given)
        before = {name: made.tensors[name].clone() for name in made.buffers}
        self._restart()
        made.graph.replay()
        same = torch.allclose(made.total, self._wanted, rtol=1e-2, atol=1e-3, equal_nan=True)
        for name, tensor in before.items():
            made.tensors[name].copy_(tensor)
        self._restart()
        if not same:
            raise CannotRecord("a replay gives another loss than the step that was recorded")
        return made

    def _try(self, step: Step) -> None:
        """Compute the step twice: first kernels are chosen; then no operation may wait for the device. Waiting is the
        usual reason why a recording fails. It is found here because a failed recording leaves torch's generator in a
        broken state."""
        self._wanted = step()[1].clone()
        if self._whole:
            self._compile(step)
        try:
            with _no_waiting(), self._ways():
                step()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise CannotRecord(_first_line(error)) from None

    def _compile(self, step: Step) -> None:
        """Compute the step for the first time as it will be recorded, so that it is compiled now."""
        try:
            with self._ways():
                step()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a compiler may raise anything
            if not self._backend:
                raise
            raise CannotRecord(f"{type(error).__name__}: {_first_line(error)}") from None

    @contextmanager
    def _ways(self) -> Iterator[None]:
        """Inside, a full batch is computed in the faster memory layout and compiled. Narrow batches are not: searching
        for the layout and compiling again for each width would take too long."""
        with ChannelsLast() if self._whole else nullcontext(), Compiling(self._backend):
            yield

    def _captured(self, step: Step) -> tuple[Graph, tuple[Tensors, Tensor]]:
        stream = torch.cuda.current_stream()
        try:
            with self._ways():
                return super()._captured(lambda: _dense(*step()))
        except RuntimeError as error:  # includes running out of memory
            torch.cuda.set_stream(stream)
            _end_capture()
            raise CannotRecord(_first_line(error.__context__ or error)) from None


def _name(net: Network) -> str:
    """The class name of the user's body."""
    return type(getattr(net.body, "module", net.body)).__name__


def _dense(grads: Tensors, total: Tensor) -> tuple[Tensors, Tensor]:
    """Gradients in the memory layout of the parameters. A convolution in channels-last gives channels-last gradients;
    converting them outside the recording would take a launch for each."""
    return {name: grad.contiguous() for name, grad in grads.items()}, total


def wider(width: int, full: int) -> int:
    """The width to which a batch is padded: a multiple of a quarter of the full width, so that few widths occur."""
    quarter = -(-full // _WIDTHS)
    return min(-(-width // quarter) * quarter, full)


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Inside, an operation that waits for the device raises a RuntimeError."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _end_capture() -> None:
    """Repair torch's generator after a failed recording: it believes to be recorded until a recording succeeds."""
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
