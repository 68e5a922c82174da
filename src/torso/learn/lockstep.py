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
from torso.learn.course import Classroom, Course, Learned
from torso.learn.drift import Local, NoDrift
from torso.learn.local import learn
from torso.learn.phases import beside
from torso.nets import Tensors

T = TypeVar("T")


@dataclass
class Ask:
    """What a run asks for: the arguments of `learn`; later what came of it."""

    member: int  # whose it is
    course: Course
    tensors: Tensors
    anchor: Local | None
    notes: Tensors
    learned: Learned | None = None
    error: Exception | None = None
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def clients(self) -> int:
        return len(self.course.deck.clients)

    @property
    def held(self) -> Local | None:
        """The anchor, where the correction looks at it."""
        return None if type(self.course.habits.drift) is NoDrift else self.anchor

    def fits(self, other: Ask) -> bool:
        """Whether both can be one stack. That their networks are the same, those who meet have seen to."""
        mine, its = self.course, other.course
        return (
            (mine.habits, mine.room.precision) == (its.habits, its.room.precision)
            and (mine.plan == its.plan or _differ_in_rates(mine, its))
            and mine.deck.samples.data_ptr() == its.deck.samples.data_ptr()
            and mine.deck.labels.data_ptr() == its.deck.labels.data_ptr()
            and (mine.room.change, mine.room.lens) == (its.room.change, its.room.lens)
            and _lengths(mine.meta) == _lengths(its.meta)
            and _names(self.held) == _names(other.held)
            and _shapes(self.notes) == _shapes(other.notes)  # of one number for each client of the run, maybe
            and _shapes(self.tensors) == _shapes(other.tensors)
            and _same(self.tensors, other.tensors, mine.room.net.frozen)  # held once for all clients of a stack
        )


class Lockstep:
    """Of runs with networks made from the same options, on the same samples."""

    def __init__(self) -> None:
        self._baton = threading.Lock()  # whoever holds it runs
        self._members = 0
        self._member = threading.local()
        self._asks: list[Ask] = []
        self._over = False
        self._first: dict[bool, Classroom] = {}  # on samples, on features

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
        for ask in list(self._asks):
            ask.over.set()

    def learn(self, course: Course, tensors: Tensors, anchor: Local | None, notes: Tensors) -> Learned:
        """As `torso.learn.local.learn`, in whatever company there is."""
        ask = Ask(self._member.number, course, tensors, anchor, notes)
        self._asks.append(ask)
        self._teach()
        self._baton.release()
        ask.over.wait()
        self._baton.acquire()
        if self._over:
            raise KeyboardInterrupt
        if ask.error is not None:
            raise ask.error
        assert ask.learned is not None
        return ask.learned

    def _teach(self) -> None:
        """Once everybody waits: stack after stack."""
        if self._over:
            for ask in self._asks:
                ask.over.set()
        if self._over or len(self._asks) < self._members:
            return
        waiting, self._asks = sorted(self._asks, key=lambda ask: ask.member), []
        for ask in waiting:
            ask.course = replace(ask.course, room=self._common(ask.course.room))
        for group in _groups(waiting):
            _answer(group)
        for ask in waiting:
            ask.over.set()

    def _common(self, room: Classroom) -> Classroom:
        """A run's room with the network and the recorder of all: what was recorded for one serves the others."""
        first = self._first.get(room.on_features)
        if first is None:
            recorder = None if room.recorder is None else room.recorder.another()
            first = self._first[room.on_features] = replace(room, recorder=recorder)
        return replace(room, net=first.net, recorder=first.recorder, lockstep=None)


def _answer(group: Sequence[Ask]) -> None:
    """What the runs asked for, or what went wrong; a run's own trouble stays its own."""
    try:
        for ask, learned in zip(group, _learn_together(group), strict=True):
            ask.learned = learned
        return
    except torch.OutOfMemoryError as error:
        why = str(error)  # not the error itself: its traceback holds on to the memory of the whole stack
    except Exception as error:
        if len(group) == 1:
            group[0].error = error
            return
        for ask in group:
            _answer([ask])
        return
    if (recorder := group[0].course.room.recorder) is not None:
        recorder.forget()
    for ask in group:
        if len(group) > 1 and ask.clients == 1:
            _answer([ask])  # it may be the company alone that is too large
        else:
            ask.error = torch.OutOfMemoryError(why)  # the run's engine makes smaller groups


def _groups(asks: Sequence[Ask]) -> list[list[Ask]]:
    groups: list[list[Ask]] = []
    for ask in asks:
        for group in groups:
            if group[0].fits(ask):
                group.append(ask)
                break
        else:
            groups.append([ask])
    return groups


def _learn_together(group: Sequence[Ask]) -> list[Learned]:
    first, sizes = group[0], [ask.clients for ask in group]
    course = first.course
    if len(group) == 1:
        return [learn(course, first.tensors, first.anchor, first.notes)]
    metas, device = [ask.course.meta for ask in group], course.deck.index.device
    course = replace(
        course,
        plan=tuple(beside(lessons, sizes, device) for lessons in zip(*(ask.course.plan for ask in group), strict=True)),
        deck=Deck.beside([ask.course.deck for ask in group]),
        shuffle=Shuffles.beside([(ask.course.shuffle, ask.clients) for ask in group]),
        meta=Deck.beside([meta for meta in metas if meta is not None]) if first.course.meta is not None else None,
    )
    learned = learn(
        course,
        _stacked([ask.tensors for ask in group], course.room.net.frozen),
        None if first.held is None else _anchors(group),
        _stacked([ask.notes for ask in group]),
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


def _anchors(group: Sequence[Ask]) -> Local:
    """What is one tensor for all clients of a run [*] becomes one for each client [G, *]."""

    def each(of: Callable[[Local], Tensors]) -> Tensors:
        return _stacked([_spread(of(ask.anchor), ask) for ask in group if ask.anchor is not None])

    counts = [int(ask.anchor.participants) for ask in group if ask.anchor is not None for _ in range(ask.clients)]
    among = counts[0] if len(set(counts)) == 1 else on_device(group[0].course.deck.index.device, counts)
    return Local(each(lambda at: at.start), {}, each(lambda at: at.own), each(lambda at: at.shared), among)


def _spread(held: Tensors, ask: Ask) -> Tensors:
    return {n: t if t.ndim == ask.tensors[n].ndim else t.expand(ask.clients, *t.shape) for n, t in held.items()}


def _apart(learned: Learned, sizes: Sequence[int]) -> Iterator[Learned]:
    start = 0
    for size in sizes:
        yield learned.of_places(slice(start, start + size))
        start += size


def _differ_in_rates(mine: Course, its: Course) -> bool:
    """Whether a sweep of learning rates tells their plans apart, and nothing else."""
    pairs = zip(mine.plan, its.plan, strict=False)
    alike = len(mine.plan) == len(its.plan) and all(one.differs_in_rates(other) for one, other in pairs)
    return mine.habits.step.any_rates and alike


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
