"""The local loop: G clients learn from their own data. It exists once.

Training, fine-tuning, the server's pass over its own data and local-only runs are all this function with other lessons.
G clients, B samples; tensors are stacked [G, *]. One by one is G = 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torso.data.augment import Augmentation, Lens
from torso.data.batches import Batch, Deck, Shuffle, on_device
from torso.learn.drift import Drift, Local, NoDrift
from torso.learn.features import are_fixed, on_features
from torso.learn.gradients import leading_gradients
from torso.learn.meeting import Meeting
from torso.learn.objectives import CrossEntropy, Objective
from torso.learn.phases import Lesson, moved_by
from torso.learn.recorded import Recorder
from torso.learn.sgd import Sgd
from torso.learn.stacked import copy_of, rows_at
from torso.learn.steps import Plain, Pupil, Step
from torso.nets import Network, Tensors, set_modes
from torso.precision import Precision, activation_type, computing


@dataclass(frozen=True)
class Habits:
    """How a client learns, the same for all clients of a run."""

    batch_size: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    objective: Objective = field(default_factory=CrossEntropy)
    drift: Drift = field(default_factory=NoDrift)
    step: Step = field(default_factory=Plain)
    shared_momentum: bool = False  # one optimiser over all phases, as FedBABU's FedRep code has it (spec 4.4)

    def optimiser(self) -> Sgd:
        return Sgd(self.step.momentum(self.momentum), self.weight_decay)


@dataclass(frozen=True)
class Classroom:
    """What a worker needs for any client: a network without weights, the lens on the images, the augmentation."""

    net: Network
    classes: int
    lens: Lens
    change: Augmentation
    skip_single: bool  # BatchNorm would see one value per channel in a batch of one (spec 12.2)
    precision: Precision = "fp32"  # of training; evaluation is always in fp32
    recorder: Recorder | None = None  # replays gradients instead of launching them kernel by kernel
    meeting: Meeting | None = None  # of runs that learn side by side

    @property
    def training_lens(self) -> Lens:
        return replace(self.lens, dtype=activation_type(self.precision))


@dataclass(frozen=True)
class Course:
    """What G clients go through: their samples, the lessons, how they learn. `meta`: data that everybody got."""

    room: Classroom
    deck: Deck
    plan: tuple[Lesson, ...]
    habits: Habits
    shuffle: Shuffle
    meta: Deck | None = None

    def epoch(self, number: int) -> Iterator[Batch]:
        size, room, keyed = self.habits.batch_size, self.room, not self.room.net.body.native
        return self.deck.shuffled(size, room.training_lens, self.shuffle, number, room.change, room.skip_single, keyed)

    def meta_batches(self, number: int) -> Iterator[Batch] | None:
        """Batches of the common data, over and over; anew in each epoch, so that nobody runs ahead of the others."""
        if self.meta is None:
            return None
        shuffle = self.shuffle.for_use(f"meta {number}")
        size, room, keyed = self.habits.batch_size, self.room, not self.room.net.body.native
        return self.meta.endless(size, room.training_lens, shuffle, room.change, room.skip_single, keyed)

    def of_places(self, order: Sequence[int], places: Tensor) -> Course:
        """That of the clients at these places, in this order."""
        meta = None if self.meta is None else self.meta.of_places(order, places)
        deck, shuffle = self.deck.of_places(order, places), self.shuffle.of_places(order)
        plan = tuple(lesson.of_places(places) for lesson in self.plan)
        return replace(self, deck=deck, plan=plan, shuffle=shuffle, meta=meta)


@dataclass(frozen=True)
class Learned:
    """Stacked tensors after so many epochs; mean loss over all samples met [G].

    `own` is the client's own model where the step makes one beside (pFedMe's θ), and the same tensors elsewhere;
    `notes` is what the step wants to be told at the next visit."""

    tensors: Tensors
    loss: Tensor
    epochs: int
    own: Tensors
    notes: Tensors = field(default_factory=dict)

    def copy(self) -> Learned:
        copies = {n: copy_of(t) for n, t in self.tensors.items()}
        own = {n: copies[n] if t is self.tensors.get(n) else t for n, t in self.own.items()}
        return replace(self, tensors=copies, own=own)

    def of_places(self, places: Tensor | slice) -> Learned:
        """The clients at these places, in this order; copies where the places are a tensor and clients differ."""
        tensors = {n: rows_at(t, places) for n, t in self.tensors.items()}
        own = {n: tensors[n] if t is self.tensors.get(n) else t[places] for n, t in self.own.items()}
        notes = {n: t[places] for n, t in self.notes.items()}
        return replace(self, tensors=tensors, loss=self.loss[places], own=own, notes=notes)


def learn(course: Course, tensors: Tensors, anchor: Local | None = None, notes: Tensors | None = None) -> Learned:
    """Train copies of `tensors` [G, *] through the lessons. `anchor` is what drift corrections hold on to."""
    if course.room.meeting is not None:
        return course.room.meeting.learn(course, tensors, anchor, notes or {})
    placed, back = _placed(course, tensors, anchor, notes or {})
    *_, last = _by_epoch(*placed)  # all in the same memory
    if back is not None:
        return last.of_places(back)
    return last if course.room.recorder is None else last.copy()  # the recorder's memory is for the next visit


def learn_by_epoch(
    course: Course, tensors: Tensors, anchor: Local | None = None, notes: Tensors | None = None
) -> Iterator[Learned]:
    """As `learn`, with the state before the first epoch and after each; the next epoch goes on in the same memory."""
    placed, back = _placed(course, tensors, anchor, notes or {})
    for learned in _by_epoch(*placed):
        yield learned if back is None else learned.of_places(back)


_Begun = tuple[Course, Tensors, Local | None, Tensors]


def _placed(course: Course, tensors: Tensors, anchor: Local | None, notes: Tensors) -> tuple[_Begun, Tensor | None]:
    """Clients of many steps stand first while they learn, so that those who are through with an epoch need not be
    computed; and the places at which they are to be found (None: their own)."""
    order = course.deck.longest_first(course.habits.batch_size, course.room.skip_single)
    if order is None:
        return (course, tensors, anchor, notes), None
    device = course.deck.index.device
    there, back = on_device(device, order), on_device(device, sorted(range(len(order)), key=order.__getitem__))
    held = None if anchor is None else anchor.of_places(there, tensors)
    placed, noted = ({n: rows_at(t, there) for n, t in each.items()} for each in (tensors, notes))
    return (course.of_places(order, there), placed, held, noted), back


def _by_epoch(course: Course, tensors: Tensors, anchor: Local | None, notes: Tensors) -> Iterator[Learned]:
    room, habits = course.room, course.habits
    nothing = torch.zeros(len(course.deck.clients), device=course.deck.index.device)
    pupil = Pupil(
        net=room.net,
        habits=habits,
        counts=course.deck.class_counts(room.classes),
        tensors=_copies(course, tensors),
        names=tuple(dict.fromkeys(n for lesson in course.plan for n in lesson.rates)),
        rates={},
        sgd=habits.optimiser(),
        anchor=anchor,
        notes=dict(notes),
        loss=nothing,
        met=nothing,
    )
    epoch = 0
    yield _learned(pupil, epoch)
    for lesson in course.plan:
        pupil.rates = lesson.rates
        if not habits.shared_momentum:
            pupil.names, pupil.sgd = tuple(lesson.rates), habits.optimiser()
        met, still = course, Tensors()
        pupil.take = leading_gradients if room.recorder is None else room.recorder.gradients
        if are_fixed(course, lesson, pupil.names):
            met, pupil.take = on_features(course, lesson, pupil.tensors), leading_gradients  # a network of this lesson
            still = {n: t for n, t in pupil.tensors.items() if n.startswith("body.")}
        pupil.net, pupil.tensors = met.room.net, {n: t for n, t in pupil.tensors.items() if n not in still}
        for _ in range(lesson.epochs):
            set_modes(pupil.net, lesson.moving)  # each epoch anew: whoever looks in between may evaluate on it
            pupil.meta = course.meta_batches(epoch)
            with computing(room.precision):
                habits.step.epoch(pupil, met.epoch(epoch))
            epoch += 1
            yield _learned(pupil, epoch, still)
        pupil.tensors = {**still, **pupil.tensors}


def _copies(course: Course, tensors: Tensors) -> Tensors:
    """The tensors to train, in memory of their own; what does not move may stay where it is."""
    if course.room.recorder is not None:
        return course.room.recorder.home(tensors, min(course.habits.batch_size, max(course.deck.sizes)))
    moving = moved_by(course.plan)
    return {n: t.clone() if n in moving else t for n, t in tensors.items()}


def _learned(pupil: Pupil, epoch: int, still: Tensors | None = None) -> Learned:
    tensors = {**still, **pupil.tensors} if still else pupil.tensors
    own = {**tensors, **pupil.apart} if pupil.apart else tensors
    return Learned(tensors, pupil.loss / pupil.met.clamp(min=1), epoch, own, pupil.notes)


def paces(plan: Sequence[Lesson], batches: Sequence[int], habits: Habits, device: torch.device) -> Tensors:
    """lr × effective steps of a visit, per tensor [G]; `batches` are those of one epoch, per client."""
    pace: Tensors = {}
    momentum = habits.step.momentum(habits.momentum)
    for lesson in plan:
        steps = [lesson.epochs * habits.step.steps(each) for each in batches]
        moved = on_device(device, [habits.drift.effective(count, momentum) for count in steps])
        for name, rate in habits.step.rates(lesson.rates).items():
            pace[name] = pace.get(name, 0.0) + rate * moved
    return pace
