"""The local loop: G clients learn from their own data. It exists once.

Training, fine-tuning, the server's pass over its own data and local-only runs are all this function with other phases.
G clients, B samples; tensors are stacked [G, *]. One by one is G = 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torso.data.sending import on_device
from torso.learn.drift import Local
from torso.learn.features import are_fixed, on_features
from torso.learn.gradients import leading_gradients
from torso.learn.phases import LocalPhase, moved_by
from torso.learn.stacked import rows_at
from torso.learn.steps import Learner, LocalSettings
from torso.learn.strides import can_stride
from torso.learn.strides import epoch as stride
from torso.learn.task import LocalResult, LocalTask
from torso.nets import Tensors, set_modes
from torso.precision import computing


def learn(task: LocalTask, tensors: Tensors, anchor: Local | None = None, notes: Tensors | None = None) -> LocalResult:
    """Train copies of `tensors` [G, *] through the phases of a task. `anchor` is what drift corrections hold on to."""
    if task.context.lockstep is not None:
        return task.context.lockstep.learn(task, tensors, anchor, notes or {})
    placed, back = _placed(task, tensors, anchor, notes or {})
    *_, last = _by_epoch(*placed)  # all in the same memory
    if back is not None:
        return last.of_places(back)
    return last if task.context.recorder is None else last.copy()  # the recorder's memory is for the next visit


def learn_by_epoch(
    task: LocalTask, tensors: Tensors, anchor: Local | None = None, notes: Tensors | None = None
) -> Iterator[LocalResult]:
    """As `learn`, with the state before the first epoch and after each; the next epoch goes on in the same memory."""
    placed, back = _placed(task, tensors, anchor, notes or {})
    for learned in _by_epoch(*placed):
        yield learned if back is None else learned.of_places(back)


_Begun = tuple[LocalTask, Tensors, Local | None, Tensors]


def _placed(task: LocalTask, tensors: Tensors, anchor: Local | None, notes: Tensors) -> tuple[_Begun, Tensor | None]:
    """Clients of many steps stand first while they learn, so that those who are through with an epoch need not be
    computed; and the places at which they are to be found (None: their own)."""
    order = task.deck.longest_first(task.settings.batch_size, task.context.skip_single, task.exact)
    if order is None:
        return (task, tensors, anchor, notes), None
    device = task.deck.index.device
    there, back = on_device(device, order), on_device(device, sorted(range(len(order)), key=order.__getitem__))
    held = None if anchor is None else anchor.of_places(there, tensors)
    placed, noted = ({n: rows_at(t, there) for n, t in each.items()} for each in (tensors, notes))
    return (task.of_places(order, there), placed, held, noted), back


def _by_epoch(task: LocalTask, tensors: Tensors, anchor: Local | None, notes: Tensors) -> Iterator[LocalResult]:
    context, settings = task.context, task.settings
    nothing = torch.zeros(len(task.deck.clients), device=task.deck.index.device)
    learner = Learner(
        net=context.net,
        settings=settings,
        counts=task.deck.class_counts(context.classes),
        tensors=_copies(task, tensors),
        names=tuple(dict.fromkeys(n for phase in task.plan for n in phase.rates)),
        rates={},
        sgd=settings.optimiser(),
        anchor=anchor,
        start=tensors,
        notes=dict(notes),
        exact=task.exact,
        loss=nothing,
        met=nothing,
    )
    epoch = 0
    yield _learned(learner, epoch)
    for phase in task.plan:
        learner.rates, learner.moving = phase.rates, phase.moving
        if not settings.shared_momentum:
            learner.names, learner.sgd = tuple(phase.rates), settings.optimiser()
        met, still = task, Tensors()
        learner.take = leading_gradients if context.recorder is None else context.recorder.gradients
        if are_fixed(task, phase, learner.names):
            met, learner.take = on_features(task, phase, learner.tensors), leading_gradients  # a network of this phase
            still = {n: t for n, t in learner.tensors.items() if n.startswith("body.")}
        learner.net, learner.tensors = met.context.net, {n: t for n, t in learner.tensors.items() if n not in still}
        for _ in range(phase.epochs):
            set_modes(learner.net, phase.moving)  # each epoch anew: whoever looks in between may evaluate on it
            learner.meta = task.meta_batches(epoch)
            with computing(context.precision):
                if met is task and can_stride(learner, task):
                    stride(learner, task, epoch)
                else:
                    settings.step.epoch(learner, met.epoch(epoch))
            epoch += 1
            yield _learned(learner, epoch, still)
        learner.tensors = {**still, **learner.tensors}


def _copies(task: LocalTask, tensors: Tensors) -> Tensors:
    """The tensors to train, in memory of their own; what does not move may stay where it is."""
    if task.context.recorder is not None:
        return task.context.recorder.home(tensors, min(task.settings.batch_size, max(task.deck.sizes)))
    moving = moved_by(task.plan)
    return {n: t.clone() if n in moving else t for n, t in tensors.items()}


def _learned(learner: Learner, epoch: int, still: Tensors | None = None) -> LocalResult:
    tensors = {**still, **learner.tensors} if still else learner.tensors
    own = {**tensors, **learner.own_model} if learner.own_model else tensors
    return LocalResult(tensors, learner.loss / (learner.met + learner.all_met).clamp(min=1), epoch, own, learner.notes)


def paces(plan: Sequence[LocalPhase], batches: Sequence[int], settings: LocalSettings, device: torch.device) -> Tensors:
    """lr × effective steps of a visit, per tensor [G]; `batches` are those of one epoch, per client."""
    pace: Tensors = {}
    momentum = settings.step.momentum(settings.momentum)
    for phase in plan:
        steps = [phase.epochs * settings.step.steps(each) for each in batches]
        moved = on_device(device, [settings.drift.effective(count, momentum) for count in steps])
        for name, rate in settings.step.rates(phase.rates).items():
            pace[name] = pace.get(name, 0.0) + rate * moved
    return pace
