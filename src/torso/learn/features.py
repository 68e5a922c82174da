"""Head-only lessons on features that are computed once.

Where nothing random and nothing that learns stands before the head, every epoch gives it the same features. They take
the place of the samples: a body that passes them on, under the same head, in the same order.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from torso.data.augment import Augmentation, Lens
from torso.data.batches import Deck
from torso.learn.course import Course
from torso.learn.phases import Lesson
from torso.learn.steps import Plain
from torso.nets import Body, Network, Tensors, apply, set_modes


def are_fixed(course: Course, lesson: Lesson, learning: tuple[str, ...]) -> bool:
    """Whether the lesson's features are the same in every epoch, and there are epochs enough to gain by it.

    Not where images are augmented, where BatchNorm goes by the batch, or where a step or a foreign body may do what
    nobody here can see."""
    room, net = course.room, course.room.net
    by_batch = any(isinstance(m, _BatchNorm) and m.running_mean is None for m in net.body.modules())
    return (
        lesson.epochs > 1
        and max(course.deck.sizes) > 0
        and not any(name.startswith("body.") for name in (*lesson.moving, *learning))
        and net.body.native
        and not by_batch
        and not room.change.random
        and course.meta is None
        and type(course.habits.step) is Plain
    )


@torch.no_grad()
def on_features(course: Course, lesson: Lesson, tensors: Tensors) -> Course:
    """The same course with features [G, n, d] of the body's tensors in place of samples."""
    room, deck = course.room, course.deck
    set_modes(room.net, lesson.moving)
    batches = deck.in_order(course.habits.batch_size, room.lens)
    features = torch.cat([apply(room.net, tensors, batch.inputs, batch.real).features for batch in batches], dim=1)
    clients, samples, size = features.shape
    places = torch.arange(clients * samples, device=features.device).view(clients, samples)
    net = Network(Body((), size), room.net.head)
    return replace(
        course,
        room=replace(room, net=net, lens=Lens(), change=Augmentation()),
        deck=Deck(features.reshape(-1, size), deck.labels[deck.index].flatten(), places, deck.sizes, deck.clients),
    )
