"""The local loop: G clients learn from their own data. It exists once.

Training, fine-tuning, the server's pass over its own data and local-only runs are all this function with other lessons.
G clients, B samples; tensors are stacked [G, *]. One by one is G = 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torso.data.sending import on_device
from torso.learn.course import Course, Learned
from torso.learn.drift import Local
from torso.learn.features import are_fixed, on_features
from torso.learn.gradients import leading_gradients
from torso.learn.phases import Lesson, moved_by
from torso.learn.stacked import rows_at
from torso.learn.steps import Habits, Pupil
from torso.learn.strides import can_stride
from torso.learn.strides import epoch as stride
from torso.nets import Tensors, set_modes
from torso.precision import computing


def learn(course: Course, tensors: Tensors, anchor: Local | None = None, notes: Tensors | None = None) -> Learned:
    """Train copies of `tensors` [G, *] through the lessons. `anchor` is what drift corrections hold on to."""
    if course.room.lockstep is not None:
        return course.room.lockstep.learn(course, tensors, anchor, notes or {})
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
    order = course.deck.longest_first(course.habits.batch_size, course.room.skip_single, course.exact)
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
        start=tensors,
        notes=dict(notes),
        exact=course.exact,
        loss=nothing,
        met=nothing,
    )
    epoch = 0
    yield _learned(pupil, epoch)
    for lesson in course.plan:
        pupil.rates, pupil.moving = lesson.rates, lesson.moving
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
                if met is course and can_stride(pupil, course):
                    stride(pupil, course, epoch)
                else:
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
    own = {**tensors, **pupil.own_model} if pupil.own_model else tensors
    return Learned(tensors, pupil.loss / (pupil.met + pupil.all_met).clamp(min=1), epoch, own, pupil.notes)


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
