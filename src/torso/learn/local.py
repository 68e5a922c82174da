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
from torso.data.batches import Batch, Deck, Shuffle
from torso.learn.drift import Drift, Local, NoDrift
from torso.learn.objectives import CrossEntropy, Objective, cross_entropy
from torso.learn.phases import Lesson, moved_by
from torso.learn.sgd import Sgd
from torso.nets import Network, Tensors, apply, set_modes


@dataclass(frozen=True)
class Habits:
    """How a client learns, the same for all clients of a run."""

    batch_size: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    objective: Objective = field(default_factory=CrossEntropy)
    drift: Drift = field(default_factory=NoDrift)
    shared_momentum: bool = False  # one optimiser over all phases, as FedBABU's FedRep code has it (spec 4.4)


@dataclass(frozen=True)
class Classroom:
    """What a worker needs for any client: a network without weights, the lens on the images, the augmentation."""

    net: Network
    classes: int
    lens: Lens
    change: Augmentation
    skip_single: bool  # BatchNorm would see one value per channel in a batch of one (spec 12.2)


@dataclass(frozen=True)
class Learned:
    """Stacked tensors after so many epochs; mean loss over all samples met [G]."""

    tensors: Tensors
    loss: Tensor
    epochs: int


def learn(
    room: Classroom,
    deck: Deck,
    tensors: Tensors,
    plan: Sequence[Lesson],
    habits: Habits,
    shuffle: Shuffle,
    anchor: Local | None = None,
) -> Learned:
    """Train copies of `tensors` [G, *] through the lessons. `anchor` is what drift corrections hold on to."""
    *_, last = learn_by_epoch(room, deck, tensors, plan, habits, shuffle, anchor)
    return last


def learn_by_epoch(
    room: Classroom,
    deck: Deck,
    tensors: Tensors,
    plan: Sequence[Lesson],
    habits: Habits,
    shuffle: Shuffle,
    anchor: Local | None = None,
) -> Iterator[Learned]:
    """As `learn`, with the state before the first epoch and after each; the next epoch goes on in the same memory."""
    moving = moved_by(plan)
    tensors = {n: t.clone() if n in moving else t for n, t in tensors.items()}
    every_name = tuple(dict.fromkeys(n for lesson in plan for n in lesson.rates))
    samples = torch.tensor(deck.used(habits.batch_size, room.skip_single), device=deck.index.device).clamp(min=1)
    counts = deck.class_counts(room.classes)
    loss = torch.zeros(len(deck.clients), device=deck.index.device)
    sgd = Sgd(habits.momentum, habits.weight_decay)
    epoch = 0
    yield Learned(tensors, loss, epoch)
    for lesson in plan:
        names = every_name if habits.shared_momentum else tuple(lesson.rates)
        if not habits.shared_momentum:
            sgd = Sgd(habits.momentum, habits.weight_decay)
        for _ in range(lesson.epochs):
            set_modes(room.net, lesson.moving)  # each epoch anew: whoever looks in between may evaluate on this network
            for batch in deck.shuffled(habits.batch_size, room.lens, shuffle, epoch, room.change, room.skip_single):
                grads, total = _gradients(room.net, tensors, names, batch, habits.objective, counts)
                grads = _correct(grads, tensors, anchor, habits.drift)
                sgd.step(tensors, grads, lesson.rates, batch.active)
                loss += total
            epoch += 1
            yield Learned(tensors, loss / (samples * epoch), epoch)


def _gradients(
    net: Network, tensors: Tensors, names: Sequence[str], batch: Batch, objective: Objective, counts: Tensor
) -> tuple[Tensors, Tensor]:
    """Gradients [G, *] of each client's mean loss, and the sum over samples [G]. Clients do not interact."""
    leaves = [tensors[n].detach().requires_grad_() for n in names]  # same memory, no history
    said = apply(net, {**tensors, **dict(zip(names, leaves, strict=True))}, batch.images, batch.real)
    losses = objective.per_sample(said.features, said.logits, batch.labels, counts)
    if said.personal is not None:  # one loss for both branches: nothing of the second reaches the first (spec 6.2)
        losses = losses + cross_entropy(said.personal, batch.labels)
    if batch.real is None:
        mean = losses.mean(dim=1)
        total = mean.detach() * losses.shape[1]
    else:
        # where, not a product: a padded sample may have a label that the client lacks, and an infinite loss with it
        total_with_graph = torch.where(batch.real > 0, losses, 0.0).sum(dim=1)
        mean = total_with_graph / batch.real.sum(dim=1).clamp(min=1)
        total = total_with_graph.detach()
    grads = torch.autograd.grad(mean.sum(), leaves)
    return dict(zip(names, grads, strict=True)), total


def _correct(grads: Tensors, params: Tensors, anchor: Local | None, drift: Drift) -> Tensors:
    """Let the drift correction see what travels and learns; the rest keeps its own gradient."""
    if anchor is None:
        return grads
    held = {n: g for n, g in grads.items() if n in anchor.start}
    return {**grads, **drift.gradient(held, replace(anchor, params={n: params[n] for n in held}))}


def paces(plan: Sequence[Lesson], steps: Sequence[int], habits: Habits, device: torch.device) -> Tensors:
    """lr × effective steps of a visit, per tensor [G]; `steps` are those of one epoch, per client."""
    pace: Tensors = {}
    for lesson in plan:
        count = [habits.drift.effective(lesson.epochs * each, habits.momentum) for each in steps]
        moved = torch.tensor(count, device=device)
        for name, rate in lesson.rates.items():
            pace[name] = pace.get(name, 0.0) + rate * moved
    return pace
