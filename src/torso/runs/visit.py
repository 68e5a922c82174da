"""A visit: what happens on G clients between broadcast and upload (spec 1.2, steps 2 to 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from torso.data import Federation
from torso.data.batches import Shuffle, on_device
from torso.engine import SERVER, Desk
from torso.learn.attacks import Tamper
from torso.learn.course import Course, Learned
from torso.learn.drift import Local
from torso.learn.local import learn, learn_by_epoch, paces
from torso.learn.phases import Lesson
from torso.learn.stacked import all_finite
from torso.learn.steps import Habits
from torso.measure.accuracy import mean_loss
from torso.nets import Tensors
from torso.personal import Opening, Personal
from torso.personal.models import models_of
from torso.server.state import State
from torso.server.sums import add, weighted_sum


@dataclass(frozen=True)
class Sent:
    """What comes back from a group of clients: sums over the group for the server, and what each client keeps."""

    clients: tuple[int, ...]
    total: Tensors  # Σ_k w_k · shared part
    squares: Tensor  # Σ_k w_k · ‖shared parameters − received‖²
    change: Tensors  # Σ_k of the change of what the drift correction remembers
    kept: Mapping[int, Tensors]
    memory: Mapping[int, Tensors]
    own: Mapping[int, Tensors]
    notes: Mapping[int, Tensors]
    loss: Tensor  # [G], on the device: the round reads all of them at once
    finite: Tensor  # whether all that the clients keep is

    @classmethod
    def merged(cls, parts: Iterable[Sent]) -> Sent:
        """What several groups have sent, as one: summed in their order as they come, so that memory does not grow."""
        clients: list[int] = []
        sums: tuple[Tensors, Tensors] = ({}, {})
        kept: dict[str, dict[int, Tensors]] = {kind: {} for kind in ("kept", "memory", "own", "notes")}
        squares, losses, finite = torch.zeros(()), list[Tensor](), list[Tensor]()
        for part in parts:
            clients += part.clients
            add(sums[0], part.total)
            add(sums[1], part.change)
            squares = squares.to(part.squares.device) + part.squares
            for kind, held in kept.items():
                held.update(getattr(part, kind))
            losses.append(part.loss)
            finite.append(part.finite.to(part.loss.device))
        loss = torch.cat(losses) if losses else torch.zeros(0)
        good = torch.stack(finite).all() if finite else torch.tensor(True)
        return cls(tuple(clients), sums[0], squares, sums[1], **kept, loss=loss, finite=good)


@dataclass(frozen=True)
class Visit:
    """The work of one round: everything a group needs beside its own data."""

    state: State
    weights: Mapping[int, float]  # of the mean over participants; they sum to 1
    plan: tuple[Lesson, ...]
    habits: Habits
    personal: Personal
    shuffle: Shuffle
    travels: frozenset[str]
    corrected: tuple[str, ...]  # parameters that travel: what drift corrections and server rules see
    keeps: frozenset[str]
    batch_size: int  # of evaluation
    squares: bool = False  # whether the server rule wants to know how far the participants went
    averaged: bool = True  # whether what travels is averaged
    meta_data: bool = False  # whether clients train on the server's balanced images too
    gathered: Tensors = field(default_factory=dict)  # the mean of the participants' models before the round
    offers: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # whose models a client is sent besides
    tamper: Tamper | None = None  # what malicious clients do to what they send

    def __call__(self, desk: Desk, clients: Sequence[int]) -> Sent:
        at = self._open(desk, clients)
        start, notes = self.personal.before(at)
        anchor = self._anchor(clients)
        learned = learn(at.course, start, anchor, notes)
        weights = on_device(learned.loss.device, [self.weights[k] for k in clients])
        memory = self._remember(anchor, learned, at.course)
        sent = learned.tensors
        if self.tamper is not None:
            sent = self.tamper(at.received, sent, clients, desk.federation.malicious)
        travels = sorted(self.travels) if self.averaged else ()
        kept = {name: sent[name] for name in sorted(self.keeps)}  # others may be sent it (spec 5.6)
        own = self.personal.after(at, learned)
        return Sent(
            clients=tuple(clients),
            total=weighted_sum({name: sent[name] for name in travels}, weights),
            squares=self._squares(sent, weights),
            change={n: (t - anchor.own[n]).sum(dim=0) for n, t in memory.items()},
            kept=_apart(kept, clients),
            memory=_apart(memory, clients),
            own=_apart(own, clients),
            notes=_apart(learned.notes, clients),
            loss=learned.loss,
            finite=all_finite([*kept.values(), *own.values(), *learned.notes.values()]),
        )

    def for_clients(self, clients: Sequence[int]) -> Visit:
        """What these clients are told: no tensors of others but those that the server sends them (spec 5.6)."""
        offers = {k: self.offers[k] for k in clients if k in self.offers}
        return replace(
            self,
            state=self.state.for_clients(clients, [k for others in offers.values() for k in others]),
            weights={k: self.weights[k] for k in clients if k in self.weights},  # newcomers have none
            offers=offers,
        )

    def costs(self, federation: Federation, clients: Sequence[int]) -> Sequence[float]:
        """Steps of an epoch; the plan is everybody's."""
        if list(clients) == [SERVER]:
            return [1.0]
        steps: list[float] = np.ceil(federation.train.sizes_of(clients) / self.habits.batch_size).tolist()
        return steps

    def merged(self, parts: Iterable[Sent]) -> Sent:
        return Sent.merged(parts)

    def alone(self, desk: Desk, clients: Sequence[int]) -> Learned:
        """The same, of which nothing is uploaded and nothing kept (spec 9.4)."""
        return learn(*self._begin(desk, clients))

    def by_epoch(self, desk: Desk, clients: Sequence[int]) -> Iterator[Learned]:
        """As `alone`, before the first epoch and after each; each is gone with the next."""
        return learn_by_epoch(*self._begin(desk, clients))

    def _begin(self, desk: Desk, clients: Sequence[int]) -> tuple[Course, Tensors, Local, Tensors]:
        at = self._open(desk, clients)
        start, notes = self.personal.before(at)
        return at.course, start, self._anchor(clients), notes

    def _open(self, desk: Desk, clients: Sequence[int]) -> Opening:
        deck, held_out = desk.visit_deck(clients, self.meta_data), None
        if self.personal.holds_out:
            deck, held_out = deck.parted(self.personal.holds_out, self.shuffle.seed)
        meta = desk.meta_deck(clients) if self.habits.step.uses_meta else None
        received = desk.models(self.state.model, self.state.private, clients)
        sent = {name: self.state.model[name] for name in sorted(self.travels)}
        senders = on_device(deck.index.device, [self.offers.get(k, ()) for k in clients]).long()

        def fetch(slot: int) -> Callable[[], Tensors]:
            return lambda: models_of(sent, self.state.private, [self.offers[k][slot] for k in clients])

        return Opening(
            course=Course(desk.room, deck, self.plan, self.habits, self.shuffle, meta),
            received=received,
            own={**received, **self.state.own_models(clients)},
            notes=self._notes(desk, clients),
            offered=[fetch(slot) for slot in range(senders.shape[1])],
            senders=senders,
            loss=lambda tensors: mean_loss(desk.room, held_out or deck, tensors, self.batch_size),
            parameters=self.corrected,
        )

    def _notes(self, desk: Desk, clients: Sequence[int]) -> Tensors:
        """What the clients remember, stacked: what they did at their last visit, or what everybody begins with."""
        common, count = self.habits.step.notes(self.shuffle.seed), desk.federation.clients
        first = {k: {**common, **self.personal.notes(k, count, desk.room.net)} for k in clients}
        notes = [{**first[k], **self.state.notes.get(k, {})} for k in clients]
        device = desk.federation.train.labels.device
        return {name: torch.stack([own[name].to(device) for own in notes]) for name in notes[0]}

    def _anchor(self, clients: Sequence[int]) -> Local:
        start = {name: self.state.model[name] for name in self.corrected}
        if not self.habits.drift.remembers:
            return Local(start, {}, shared=self.gathered)
        zeros = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
        return Local(start, {}, models_of(zeros, self.state.memory, clients), {**zeros, **self.state.drift})

    def _remember(self, anchor: Local, learned: Learned, course: Course) -> Tensors:
        if not self.habits.drift.remembers:
            return {}
        batches = course.deck.steps(self.habits.batch_size, course.room.skip_single)
        at = replace(anchor, params={name: learned.tensors[name] for name in self.corrected})
        return self.habits.drift.finish(at, paces(self.plan, batches, self.habits, learned.loss.device))

    def _squares(self, tensors: Tensors, weights: Tensor) -> Tensor:
        total = torch.zeros_like(weights)
        for name in self.corrected if self.squares else ():
            total += (tensors[name] - self.state.model[name]).flatten(1).square().sum(dim=1)
        return (weights * total).sum()


def _apart(stacked: Tensors, clients: Sequence[int]) -> dict[int, Tensors]:
    """Stacked tensors [G, *] as each client's own, none of which holds on to the others' memory."""
    if not stacked:
        return {}
    if len(clients) == 1 and not any(t._is_view() for t in stacked.values()):  # as one of a larger stack may be
        return {clients[0]: {n: t[0] for n, t in stacked.items()}}
    return {k: {n: t[g].clone() for n, t in stacked.items()} for g, k in enumerate(clients)}
