"""Local training of several runs at once: their clients train in one stack.

Each run has a thread, and only one thread goes at a time, so no other part of Torso has to know of the others. A run
that wants to train waits until all other runs do too or have ended. Then the requests that can share a stack are
trained together. The results are those of single runs: a client's batches are keyed by its own run's seed (`Shuffles`),
and the clients of a stack do not interact.
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
from torso.learn.drift import DriftState, NoDrift
from torso.learn.local import learn
from torso.learn.phases import stacked_phase
from torso.learn.task import LocalContext, LocalResult, LocalTask
from torso.nets import Tensors

T = TypeVar("T")


@dataclass
class JointRequest:
    """A run's request for local training: the arguments of `learn`, and later the result or the error."""

    member: int  # the number of the run
    task: LocalTask
    tensors: Tensors
    anchor: DriftState | None
    notes: Tensors
    learned: LocalResult | None = None
    error: Exception | None = None
    over: threading.Event = field(default_factory=threading.Event)  # set as soon as there is a result or an error

    @property
    def clients(self) -> int:
        return len(self.task.deck.clients)

    @property
    def held(self) -> DriftState | None:
        """The anchor, or None if the drift correction does not use it."""
        return None if type(self.task.settings.drift) is NoDrift else self.anchor

    def fits(self, other: JointRequest) -> bool:
        """Whether both requests can share a stack. Their networks are the same: the caller of `Lockstep` sees to
        that."""
        mine, its = self.task, other.task
        return (
            (mine.settings, mine.context.precision) == (its.settings, its.context.precision)
            and (mine.plan == its.plan or _differ_in_rates(mine, its))
            and mine.deck.samples.data_ptr() == its.deck.samples.data_ptr()
            and mine.deck.labels.data_ptr() == its.deck.labels.data_ptr()
            and (mine.context.change, mine.context.lens) == (its.context.change, its.context.lens)
            and _lengths(mine.meta) == _lengths(its.meta)
            and _names(self.held) == _names(other.held)
            and _shapes(self.notes) == _shapes(other.notes)  # a note may have one number for each client of its run
            and _shapes(self.tensors) == _shapes(other.tensors)
            and _same(self.tensors, other.tensors, mine.context.net.frozen)  # a stack has one copy for all clients
        )


class Lockstep:
    """A group of runs whose clients train in shared stacks. Their networks are made from the same options, and they use
    the same samples in memory."""

    def __init__(self) -> None:
        self._baton = threading.Lock()  # only the thread that holds it goes
        self._members = 0  # runs that have not ended
        self._member = threading.local()  # `number`: the thread's run
        self._requests: list[JointRequest] = []  # of the runs that wait
        self._over = False  # whether all runs must end now
        self._first: dict[bool, LocalContext] = {}  # the context that all runs use: on samples, on features

    def run_all(self, runs: Sequence[Callable[[], T]]) -> list[T | Exception]:
        """Do all runs; returns the result of each, or the exception that it raised."""
        ends: list[T | Exception] = [RuntimeError("it never ran")] * len(runs)

        def go(place: int) -> None:
            self._member.number = place
            with self._baton:
                try:
                    ends[place] = runs[place]()
                except Exception as error:  # returned to the caller of `run_all`
                    ends[place] = error
                except KeyboardInterrupt:  # raised by `learn` after `_end`
                    pass
                finally:  # in any case the others must not wait for this run
                    self._members -= 1
                    self._train_if_all_wait()
                    ended[place].set()

        self._members = len(runs)
        ended = [threading.Event() for _ in runs]
        threads = [threading.Thread(target=go, args=(place,), daemon=True) for place in range(len(runs))]
        for thread in threads:
            thread.start()
        try:
            for end in ended:  # not `join`: after an interrupt it believes that the thread has ended
                end.wait()
        except BaseException:  # Ctrl-C
            self._end()
            for end in ended:
                end.wait()
            raise
        return ends

    def _end(self) -> None:
        """End every run as soon as it wants to train. A thread that is inside a step when the interpreter exits would
        abort the process."""
        self._over = True
        for request in list(self._requests):
            request.over.set()

    def learn(self, task: LocalTask, tensors: Tensors, anchor: DriftState | None, notes: Tensors) -> LocalResult:
        """As `torso.learn.local.learn`, in one stack with the requests of other runs that fit. Called by a run's
        thread, which waits for the result."""
        request = JointRequest(self._member.number, task, tensors, anchor, notes)
        self._requests.append(request)
        self._train_if_all_wait()
        self._baton.release()
        request.over.wait()
        self._baton.acquire()
        if self._over:
            raise KeyboardInterrupt
        if request.error is not None:
            raise request.error
        assert request.learned is not None
        return request.learned

    def _train_if_all_wait(self) -> None:
        """Train all requests, stack after stack, if every run that has not ended waits for one."""
        if self._over:
            for request in self._requests:
                request.over.set()
            return
        if len(self._requests) < self._members:
            return
        waiting = sorted(self._requests, key=lambda request: request.member)
        self._requests = []
        for request in waiting:
            request.task = replace(request.task, context=self._common(request.task.context))
        for group in _groups(waiting):
            _answer(group)
        for request in waiting:
            request.over.set()

    def _common(self, context: LocalContext) -> LocalContext:
        """A run's context with the network and the recorder that all runs share, so that a recording serves all."""
        first = self._first.get(context.on_features)
        if first is None:
            recorder = None if context.recorder is None else context.recorder.another()
            first = self._first[context.on_features] = replace(context, recorder=recorder)
        return replace(context, net=first.net, recorder=first.recorder, lockstep=None)


def _answer(group: Sequence[JointRequest]) -> None:
    """Give each request of a group its result or its error. If the stack fails, the requests are tried one by one, so
    that only the run that caused the error gets it."""
    try:
        for request, learned in zip(group, _learn_together(group), strict=True):
            request.learned = learned
        return
    except torch.OutOfMemoryError as error:
        why = str(error)  # not the error itself: its traceback keeps the memory of the whole stack
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
            _answer([request])  # it may fit into memory alone
        else:
            request.error = torch.OutOfMemoryError(why)  # the run's engine makes smaller groups


def _groups(requests: Sequence[JointRequest]) -> list[list[JointRequest]]:
    """The requests in groups that can share a stack."""
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
    """Train the clients of a group in one stack."""
    first = group[0]
    task = first.task
    if len(group) == 1:
        return [learn(task, first.tensors, first.anchor, first.notes)]
    sizes = [request.clients for request in group]
    device = task.deck.index.device
    metas = [request.task.meta for request in group if request.task.meta is not None]
    phases_of_runs = zip(*(request.task.plan for request in group), strict=True)
    task = replace(
        task,
        plan=tuple(stacked_phase(of_runs, sizes, device) for of_runs in phases_of_runs),
        deck=Deck.beside([request.task.deck for request in group]),
        shuffle=Shuffles.beside([(request.task.shuffle, request.clients) for request in group]),
        meta=Deck.beside(metas) if task.meta is not None else None,
    )
    learned = learn(
        task,
        _stacked([request.tensors for request in group], task.context.net.frozen),
        None if first.held is None else _anchors(group),
        _stacked([request.notes for request in group]),
    )
    return list(_apart(learned, sizes))


def _stacked(parts: Sequence[Tensors], frozen: Collection[str] = ()) -> Tensors:
    """The stacks of several runs as one stack. Frozen tensors, which are the same in all runs, stay one tensor for all
    clients."""
    return {name: _joined([part[name] for part in parts], name in frozen) for name in parts[0]}


def _joined(parts: Sequence[Tensor], frozen: bool) -> Tensor:
    first = parts[0]
    if frozen:
        return first[:1].expand(sum(map(len, parts)), *first.shape[1:])
    return torch.cat(list(parts))


def _anchors(group: Sequence[JointRequest]) -> DriftState:
    """The anchors of a group as one. A tensor [*] that is the same for all clients of a run becomes [G, *]."""

    def each(of: Callable[[DriftState], Tensors]) -> Tensors:
        return _stacked([_spread(of(request.anchor), request) for request in group if request.anchor is not None])

    counts: list[int] = []  # of each client: the participants of its run's round
    for request in group:
        if request.anchor is not None:
            counts += [int(request.anchor.participants)] * request.clients
    participants = counts[0] if len(set(counts)) == 1 else on_device(group[0].task.deck.index.device, counts)
    return DriftState(each(lambda at: at.start), {}, each(lambda at: at.own), each(lambda at: at.shared), participants)


def _spread(held: Tensors, request: JointRequest) -> Tensors:
    return {n: t if t.ndim == request.tensors[n].ndim else t.expand(request.clients, *t.shape) for n, t in held.items()}


def _apart(learned: LocalResult, sizes: Sequence[int]) -> Iterator[LocalResult]:
    """The results of the runs, with `sizes` clients each, from that of their stack."""
    start = 0
    for size in sizes:
        yield learned.of_places(slice(start, start + size))
        start += size


def _differ_in_rates(mine: LocalTask, its: LocalTask) -> bool:
    """Whether the plans differ only in learning rates, and the step allows a rate for each client."""
    pairs = zip(mine.plan, its.plan, strict=False)
    alike = len(mine.plan) == len(its.plan) and all(one.differs_only_in_rates(other) for one, other in pairs)
    return mine.settings.step.any_rates and alike


def _names(anchor: DriftState | None) -> tuple[frozenset[str], ...] | None:
    return None if anchor is None else tuple(frozenset(part) for part in (anchor.start, anchor.own, anchor.shared))


def _lengths(meta: Deck | None) -> set[int] | None:
    """The numbers of samples of the server's data. They must be the same in a stack, because its endless batches start
    again when the longest is through."""
    return None if meta is None else set(meta.sizes)


def _same(mine: Tensors, its: Tensors, names: Collection[str]) -> bool:
    """Whether the named tensors are the same in two runs."""
    pairs = [(mine[name][0], its[name][0]) for name in names]
    return all(one.data_ptr() == other.data_ptr() or torch.equal(one, other) for one, other in pairs)


def _shapes(tensors: Tensors) -> dict[str, torch.Size]:
    return {name: tensor.shape[1:] for name, tensor in tensors.items()}
