"""A visit: what happens on G clients between broadcast and upload (spec 1.2, steps 2 to 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torso.data.batches import Deck, Shuffle
from torso.engine import Desk
from torso.learn.drift import Local
from torso.learn.local import Habits, Learned, learn, paces
from torso.learn.phases import Lesson
from torso.nets import Tensors
from torso.personal.models import models_of
from torso.server.sums import weighted_sum


@dataclass(frozen=True)
class Sent:
    """What comes back from a group of clients: sums over the group for the server, and what each client keeps."""

    clients: tuple[int, ...]
    total: Tensors  # Σ_k w_k · shared part
    squares: Tensor  # Σ_k w_k · ‖shared parameters − received‖²
    change: Tensors  # Σ_k of the change of what the drift correction remembers
    kept: Mapping[int, Tensors]
    memory: Mapping[int, Tensors]
    loss: tuple[float, ...]


@dataclass(frozen=True)
class Visit:
    """The work of one round: everything a group needs beside its own data."""

    model: Tensors
    private: Mapping[int, Tensors]
    memory: Mapping[int, Tensors]
    drift: Tensors  # the server's mean of memories
    weights: Mapping[int, float]  # of the mean over participants; they sum to 1
    plan: tuple[Lesson, ...]
    habits: Habits
    shuffle: Shuffle
    travels: frozenset[str]
    corrected: tuple[str, ...]  # parameters that travel: what drift corrections and server rules see
    keeps: frozenset[str]
    squares: bool  # whether the server rule wants to know how far the participants went

    def __call__(self, desk: Desk, clients: Sequence[int]) -> Sent:
        tensors = desk.models(self.model, self.private, clients)
        anchor = self._anchor(clients)
        deck = desk.train_deck(clients)
        learned = learn(desk.room, deck, tensors, self.plan, self.habits, self.shuffle, anchor)
        weights = torch.tensor([self.weights[k] for k in clients], device=learned.loss.device)
        own = self._remember(anchor, learned, deck, desk)
        return Sent(
            clients=tuple(clients),
            total=weighted_sum({name: learned.tensors[name] for name in sorted(self.travels)}, weights),
            squares=self._squares(learned.tensors, weights),
            change={n: (t - anchor.own[n]).sum(dim=0) for n, t in own.items()},
            kept=_apart({name: learned.tensors[name] for name in sorted(self.keeps)}, clients),
            memory=_apart(own, clients),
            loss=tuple(learned.loss.tolist()),
        )

    def _anchor(self, clients: Sequence[int]) -> Local:
        start = {name: self.model[name] for name in self.corrected}
        if not self.habits.drift.remembers:
            return Local(start, {})
        zeros = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
        return Local(start, {}, models_of(zeros, self.memory, clients), {**zeros, **self.drift})

    def _remember(self, anchor: Local, learned: Learned, deck: Deck, desk: Desk) -> Tensors:
        if not self.habits.drift.remembers:
            return {}
        steps = deck.steps(self.habits.batch_size, desk.room.skip_single)
        at = replace(anchor, params={name: learned.tensors[name] for name in self.corrected})
        return self.habits.drift.finish(at, paces(self.plan, steps, self.habits, learned.loss.device))

    def _squares(self, tensors: Tensors, weights: Tensor) -> Tensor:
        total = torch.zeros_like(weights)
        for name in self.corrected if self.squares else ():
            total += (tensors[name] - self.model[name]).flatten(1).square().sum(dim=1)
        return (weights * total).sum()


def _apart(stacked: Tensors, clients: Sequence[int]) -> dict[int, Tensors]:
    """Stacked tensors [G, *] as each client's own, none of which holds on to the others' memory."""
    alone = len(clients) == 1
    return {k: {n: t[g] if alone else t[g].clone() for n, t in stacked.items()} for g, k in enumerate(clients)}
