"""The local loop: G clients train on their own data. Torso has only this one.

Training, fine-tuning, the server's training on its own data and local-only runs all call `learn` with different phases.
G clients, B samples; tensors are stacked [G, *]. One client at a time is G = 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torso.data.sending import on_device
from torso.learn.drift import DriftState
from torso.learn.features import are_fixed, on_features
from torso.learn.gradients import leading_gradients
from torso.learn.phases import LocalPhase, moved_by
from torso.learn.recorded_epochs import can_record_epoch, recorded_epoch
from torso.learn.stacked import rows_at
from torso.learn.steps import Learner, LocalSettings
from torso.learn.task import LocalResult, LocalTask
from torso.nets import Tensors, set_modes
from torso.precision import computing


def learn(
    task: LocalTask, tensors: Tensors, anchor: DriftState | None = None, notes: Tensors | None = None
) -> LocalResult:
    """Train copies of `tensors` [G, *] through all phases of a task. `anchor`: what drift corrections compare with;
    `notes` [G, *]: what the step remembers of each client."""
    if task.context.lockstep is not None:
        return task.context.lockstep.learn(task, tensors, anchor, notes or {})
    sorted_arguments, back = _longest_first(task, tensors, anchor, notes or {})
    *_, last = _by_epoch(*sorted_arguments)  # all states share the same memory
    if back is not None:
        return last.of_places(back)
    return last if task.context.recorder is None else last.copy()  # the next visit overwrites the recorder's memory


def learn_by_epoch(
    task: LocalTask, tensors: Tensors, anchor: DriftState | None = None, notes: Tensors | None = None
) -> Iterator[LocalResult]:
    """As `learn`, but yields the state before the first epoch and after each epoch. A state is valid until the next one
    is asked for: the next epoch changes its tensors in place."""
    sorted_arguments, back = _longest_first(task, tensors, anchor, notes or {})
    for learned in _by_epoch(*sorted_arguments):
        yield learned if back is None else learned.of_places(back)


_Arguments = tuple[LocalTask, Tensors, DriftState | None, Tensors]


def _longest_first(
    task: LocalTask, tensors: Tensors, anchor: DriftState | None, notes: Tensors
) -> tuple[_Arguments, Tensor | None]:
    """The arguments of `learn` with the clients sorted by their number of steps, most steps first, and the places that
    bring the clients back into their old order (None: the order has not changed).

    In this order, the clients that have no batch left in an epoch are the last rows, which are not computed."""
    order = task.deck.longest_first(task.settings.batch_size, task.context.skip_single, task.exact)
    if order is None:
        return (task, tensors, anchor, notes), None
    device = task.deck.index.device
    places = on_device(device, order)
    back = on_device(device, sorted(range(len(order)), key=order.__getitem__))
    sorted_anchor = None if anchor is None else anchor.of_places(places, tensors)
    sorted_tensors = {n: rows_at(t, places) for n, t in tensors.items()}
    sorted_notes = {n: rows_at(t, places) for n, t in notes.items()}
    return (task.of_places(order, places), sorted_tensors, sorted_anchor, sorted_notes), back


def _by_epoch(task: LocalTask, tensors: Tensors, anchor: DriftState | None, notes: Tensors) -> Iterator[LocalResult]:
    """Train, and yield the state before the first epoch and after each."""
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
        learner.rates = phase.rates
        learner.moving = phase.moving
        if not settings.shared_momentum:
            learner.names = tuple(phase.rates)
            learner.sgd = settings.optimiser()
        phase_task = task
        body = Tensors()  # tensors of the body while the phase trains on features, computed once, instead of samples
        learner.take = leading_gradients if context.recorder is None else context.recorder.gradients
        if are_fixed(task, phase, learner.names):
            phase_task = on_features(task, phase, learner.tensors)
            learner.take = leading_gradients  # a recording would be of a network that exists in this phase only
            body = {n: t for n, t in learner.tensors.items() if n.startswith("body.")}
        learner.net = phase_task.context.net
        learner.tensors = {n: t for n, t in learner.tensors.items() if n not in body}
        for _ in range(phase.epochs):
            set_modes(learner.net, phase.moving)  # in each epoch: the caller may have evaluated the network in between
            learner.meta = task.meta_batches(epoch)
            with computing(context.precision):
                if phase_task is task and can_record_epoch(learner, task):
                    recorded_epoch(learner, task, epoch)
                else:
                    settings.step.epoch(learner, phase_task.epoch(epoch))
            epoch += 1
            yield _learned(learner, epoch, body)
        learner.tensors = {**body, **learner.tensors}


def _copies(task: LocalTask, tensors: Tensors) -> Tensors:
    """The tensors to train. Those that move are copies; the others may share memory with `tensors`."""
    if task.context.recorder is not None:
        return task.context.recorder.home(tensors, min(task.settings.batch_size, max(task.deck.sizes)))
    moving = moved_by(task.plan)
    return {n: t.clone() if n in moving else t for n, t in tensors.items()}


def _learned(learner: Learner, epoch: int, body: Tensors | None = None) -> LocalResult:
    """The result after `epoch` epochs; `body`: tensors that the learner does not have in this phase."""
    tensors = {**body, **learner.tensors} if body else learner.tensors
    own = {**tensors, **learner.own_model} if learner.own_model else tensors
    return LocalResult(
        tensors, learner.loss / (learner.met + learner.met_on_host).clamp(min=1), epoch, own, learner.notes
    )


def paces(plan: Sequence[LocalPhase], batches: Sequence[int], settings: LocalSettings, device: torch.device) -> Tensors:
    """The sum of learning rate × effective steps of a visit, for each tensor [G]. `batches`: in one epoch, per
    client."""
    pace: Tensors = {}
    momentum = settings.step.momentum(settings.momentum)
    for phase in plan:
        steps = [phase.epochs * settings.step.steps(each) for each in batches]
        moved = on_device(device, [settings.drift.effective(count, momentum) for count in steps])
        for name, rate in settings.step.rates(phase.rates).items():
            pace[name] = pace.get(name, 0.0) + rate * moved
    return pace
