"""Runs that go side by side meet whenever they learn: clients of several runs in one stack, another client dimension.

Each run has a thread, of which one goes at a time, so nothing else in Torso has to know. Who wants to learn waits until
all the others do, or have ended; then those that can share a stack learn together. A client sees what it would see
alone: its batches are keyed by its own run's seed (`Shuffles`), and stacked clients do not interact.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from torso.data.batches import Deck, Shuffles
from torso.data.sending import on_device
from torso.learn.drift import Local, NoDrift
from torso.learn.local import learn
from torso.learn.phases import beside
from torso.learn.task import LocalContext, LocalResult, LocalTask
from torso.nets import Tensors

T = TypeVar("T")


@dataclass
class JointRequest:
    """What a run asks for: the arguments of `learn`; later what came of it."""

    member: int  # whose it is
    task: LocalTask
    tensors: Tensors
    anchor: Local | None
    notes: Tensors
    learned: LocalResult | None = None
    error: Exception | None = None
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def clients(self) -> int:
        return len(self.task.deck.clients)

    @property
    def held(self) -> Local | None:
        """The anchor, where the correction looks at it."""
        return None if type(self.task.settings.drift) is NoDrift else self.anchor

    def fits(self, other: JointRequest) -> bool:
        """Whether both can be one stack. That their networks are the same, those who meet have seen to."""
        mine, its = self.task, other.task
        return (
            (mine.settings, mine.context.precision) == (its.settings, its.context.precision)
            and (mine.plan == its.plan or _differ_in_rates(mine, its))
            and mine.deck.samples.data_ptr() == its.deck.samples.data_ptr()
            and mine.deck.labels.data_ptr() == its.deck.labels.data_ptr()
            and (mine.context.change, mine.context.lens) == (its.context.change, its.context.lens)
            and _lengths(mine.meta) == _lengths(its.meta)
            and _names(self.held) == _names(other.held)
            and _shapes(self.notes) == _shapes(other.notes)  # of one number for each client of the run, maybe
            and _shapes(self.tensors) == _shapes(other.tensors)
            and _same(self.tensors, other.tensors, mine.context.net.frozen)  # held once for all clients of a stack
        )


class Lockstep:
    """Of runs with networks made from the same options, on the same samples."""

    def __init__(self) -> None:
        self._baton = threading.Lock()  # whoever holds it runs
        self._members = 0
        self._member = threading.local()
        self._requests: list[JointRequest] = []
        self._over = False
        self._first: dict[bool, LocalContext] = {}  # on samples, on features

    def hold(self, runs: Sequence[Callable[[], T]]) -> list[T | Exception]:
        """Each run's result, or what it raised."""
        ends: list[T | Exception] = [RuntimeError("it never ran")] * len(runs)

        def attend(place: int) -> None:
            self._member.number = place
            with self._baton:
                try:
                    ends[place] = runs[place]()
                except Exception as error:  # told to whoever called the lockstep
                    ends[place] = error
                except KeyboardInterrupt:  # from `_end`
                    pass
                finally:  # whatever it was, the others do not wait for this one
                    self._members -= 1
                    self._teach()
                    ended[place].set()

        self._members = len(runs)
        ended = [threading.Event() for _ in runs]
        threads = [threading.Thread(target=attend, args=(place,), daemon=True) for place in range(len(runs))]
        for thread in threads:
            thread.start()
        try:
            for end in ended:  # `join` takes a thread for ended once it was interrupted
                end.wait()
        except BaseException:  # Ctrl-C
            self._end()
            for end in ended:
                end.wait()
            raise
        return ends

    def _end(self) -> None:
        """Whoever wants to learn ends: a thread amid a step when the interpreter ends would abort the process."""
        self._over = True
        for request in list(self._requests):
            request.over.set()

    def learn(self, task: LocalTask, tensors: Tensors, anchor: Local | None, notes: Tensors) -> LocalResult:
        """As `torso.learn.local.learn`, in whatever company there is."""
        request = JointRequest(self._member.number, task, tensors, anchor, notes)
        self._requests.append(request)
        self._teach()
        self._baton.release()
        request.over.wait()
        self._baton.acquire()
        if self._over:
            raise KeyboardInterrupt
        if request.error is not None:
            raise request.error
        assert request.learned is not None
        return request.learned

    def _teach(self) -> None:
        """Once everybody waits: stack after stack."""
        if self._over:
            for request in self._requests:
                request.over.set()
        if self._over or len(self._requests) < self._members:
            return
        waiting, self._requests = sorted(self._requests, key=lambda request: request.member), []
        for request in waiting:
            request.task = replace(request.task, context=self._common(request.task.context))
        for group in _groups(waiting):
            _answer(group)
        for request in waiting:
            request.over.set()

    def _common(self, context: LocalContext) -> LocalContext:
        """A run's room with the network and the recorder of all: what was recorded for one serves the others."""
        first = self._first.get(context.on_features)
        if first is None:
            recorder = None if context.recorder is None else context.recorder.another()
            first = self._first[context.on_features] = replace(context, recorder=recorder)
        return replace(context, net=first.net, recorder=first.recorder, lockstep=None)


def _answer(group: Sequence[JointRequest]) -> None:
    """What the runs asked for, or what went wrong; a run's own trouble stays its own."""
    try:
        for request, learned in zip(group, _learn_together(group), strict=True):
            request.learned = learned
        return
    except torch.OutOfMemoryError as error:
        why = str(error)  # not the error itself: its traceback holds on to the memory of the whole stack
    except Exception as error:
        if len(group) == 1:
            group[0].error = error
            return
        for request in group:
            _answer([request])
        return
    if (recorder := group[0].task.context.recorder) is not None:
        recorder.forget()
    for request in group:
        if len(group) > 1 and request.clients == 1:
            _answer([request])  # it may be the company alone that is too large
        else:
            request.error = torch.OutOfMemoryError(why)  # the run's engine makes smaller groups


def _groups(requests: Sequence[JointRequest]) -> list[list[JointRequest]]:
    groups: list[list[JointRequest]] = []
    for request in requests:
        for group in groups:
            if group[0].fits(request):
                group.append(request)
                break
        else:
            groups.append([request])
    return groups


def _learn_together(group: Sequence[JointRequest]) -> list[LocalResult]:
    first, sizes = group[0], [request.clients for request in group]
    task = first.task
    if len(group) == 1:
        return [learn(task, first.tensors, first.anchor, first.notes)]
    metas, device = [request.task.meta for request in group], task.deck.index.device
    task = replace(
        task,
        plan=tuple(
            beside(local_phases, sizes, device)
            for local_phases in zip(*(request.task.plan for request in group), strict=True)
        ),
        deck=Deck.beside([request.task.deck for request in group]),
        shuffle=Shuffles.beside([(request.task.shuffle, request.clients) for request in group]),
        meta=Deck.beside([meta for meta in metas if meta is not None]) if first.task.meta is not None else None,
    )
    learned = learn(
        task,
        _stacked([request.tensors for request in group], task.context.net.frozen),
        None if first.held is None else _anchors(group),
        _stacked([request.notes for request in group]),
    )
    return list(_apart(learned, sizes))


def _stacked(parts: Sequence[Tensors], frozen: Collection[str] = ()) -> Tensors:
    """Side by side; what is frozen, which is the same in all runs, stays one tensor for all clients."""
    return {name: _joined([part[name] for part in parts], name in frozen) for name in parts[0]}


def _joined(parts: Sequence[Tensor], frozen: bool) -> Tensor:
    first = parts[0]
    if frozen:
        return first[:1].expand(sum(map(len, parts)), *first.shape[1:])
    return torch.cat(list(parts))


def _anchors(group: Sequence[JointRequest]) -> Local:
    """What is one tensor for all clients of a run [*] becomes one for each client [G, *]."""

    def each(of: Callable[[Local], Tensors]) -> Tensors:
        return _stacked([_spread(of(request.anchor), request) for request in group if request.anchor is not None])

    counts = [
        int(request.anchor.participants)
        for request in group
        if request.anchor is not None
        for _ in range(request.clients)
    ]
    among = counts[0] if len(set(counts)) == 1 else on_device(group[0].task.deck.index.device, counts)
    return Local(each(lambda at: at.start), {}, each(lambda at: at.own), each(lambda at: at.shared), among)


def _spread(held: Tensors, request: JointRequest) -> Tensors:
    return {n: t if t.ndim == request.tensors[n].ndim else t.expand(request.clients, *t.shape) for n, t in held.items()}


def _apart(learned: LocalResult, sizes: Sequence[int]) -> Iterator[LocalResult]:
    start = 0
    for size in sizes:
        yield learned.of_places(slice(start, start + size))
        start += size


def _differ_in_rates(mine: LocalTask, its: LocalTask) -> bool:
    """Whether a sweep of learning rates tells their plans apart, and nothing else."""
    pairs = zip(mine.plan, its.plan, strict=False)
    alike = len(mine.plan) == len(its.plan) and all(one.differs_in_rates(other) for one, other in pairs)
    return mine.settings.step.any_rates and alike


def _names(anchor: Local | None) -> tuple[frozenset[str], ...] | None:
    return None if anchor is None else tuple(frozenset(part) for part in (anchor.start, anchor.own, anchor.shared))


def _lengths(meta: Deck | None) -> set[int] | None:
    """Batches of common data begin anew when the longest of a stack is through."""
    return None if meta is None else set(meta.sizes)


def _same(mine: Tensors, its: Tensors, names: Collection[str]) -> bool:
    """Whether these tensors are the same in two runs."""
    pairs = [(mine[name][0], its[name][0]) for name in names]
    return all(one.data_ptr() == other.data_ptr() or torch.equal(one, other) for one, other in pairs)


def _shapes(tensors: Tensors) -> dict[str, torch.Size]:
    return {name: tensor.shape[1:] for name, tensor in tensors.items()}
