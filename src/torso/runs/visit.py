"""A visit: what happens on G clients between broadcast and upload (spec 1.2, steps 2 to 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from torso.data.batches import Shuffle
from torso.engine import Desk
from torso.learn.local import Habits, learn
from torso.learn.phases import Lesson
from torso.nets import Tensors
from torso.personal.models import models_of
from torso.server.sums import weighted_sum


@dataclass(frozen=True)
class Sent:
    """What comes back from a group of clients: one weighted sum of the shared part, and what each keeps and met."""

    clients: tuple[int, ...]
    total: Tensors  # Σ_k w_k · shared part
    kept: Mapping[int, Tensors]
    loss: tuple[float, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Visit:
    """The work of one round: everything a group needs beside its own data."""

    model: Tensors
    private: Mapping[int, Tensors]
    weights: Mapping[int, float]  # of the mean over participants; they sum to 1
    plan: tuple[Lesson, ...]
    habits: Habits
    shuffle: Shuffle
    travels: frozenset[str]
    keeps: frozenset[str]

    def __call__(self, desk: Desk, clients: Sequence[int]) -> Sent:
        tensors = models_of(self.model, self.private, clients)
        received = {name: self.model[name] for name in self.travels}
        learned = learn(desk.room, desk.train_deck(clients), tensors, self.plan, self.habits, self.shuffle, received)
        weights = torch.tensor([self.weights[k] for k in clients], device=learned.loss.device)
        alone = len(clients) == 1
        return Sent(
            clients=tuple(clients),
            total=weighted_sum({name: learned.tensors[name] for name in sorted(self.travels)}, weights),
            kept={
                client: {
                    n: learned.tensors[n][g] if alone else learned.tensors[n][g].clone() for n in sorted(self.keeps)
                }
                for g, client in enumerate(clients)
            },
            loss=tuple(learned.loss.tolist()),
            steps=learned.steps,
        )
