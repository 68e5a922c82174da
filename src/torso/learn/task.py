"""The input and output of the local loop.

`LocalContext` is the same for all clients of a worker; `LocalTask` has the data, phases and settings of G clients;
`LocalResult` is the result.

G clients, B samples; tensors are stacked [G, *].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

from torso.data.augment import Augmentation, FeatureLens, Lens
from torso.data.batches import Batch, Deck, Shuffle
from torso.learn.drift import DriftState
from torso.learn.phases import LocalPhase
from torso.learn.recorded import Recorder
from torso.learn.stacked import copies_of, rows_at
from torso.learn.steps import LocalSettings
from torso.nets import Network, Tensors
from torso.precision import Precision, activation_type
from torso.registry import is_foreign


class JointLearner(Protocol):
    """Trains the clients of several runs in one stack (`lockstep.py`)."""

    def learn(self, task: LocalTask, tensors: Tensors, anchor: DriftState | None, notes: Tensors) -> LocalResult: ...


@dataclass(frozen=True)
class LocalContext:
    """What a worker needs to train any client: a network without weights, how samples are read, how they are
    changed."""

    net: Network
    classes: int
    lens: Lens  # makes network inputs of stored samples
    change: Augmentation
    skip_single: bool  # whether batches of one sample are skipped: BatchNorm has one value per channel (spec 12.2)
    precision: Precision = "fp32"  # of training; evaluation is always in fp32
    exact: bool = False  # whether clients in a stack get the same bits as alone, if the network allows it
    recorder: Recorder | None = None  # replays recorded gradients instead of launching kernel by kernel
    lockstep: JointLearner | None = None  # set if several runs train in one stack

    @property
    def training_lens(self) -> Lens:
        """The lens of training, in the precision of training."""
        return replace(self.lens, dtype=activation_type(self.precision))

    @property
    def on_features(self) -> bool:
        """Whether the samples are features, which the body passes on unchanged."""
        return isinstance(self.lens, FeatureLens)


@dataclass(frozen=True)
class LocalTask:
    """What G clients do in a visit: the samples they train on, the phases and the settings of training."""

    context: LocalContext
    deck: Deck  # the clients' samples
    plan: tuple[LocalPhase, ...]
    settings: LocalSettings
    shuffle: Shuffle  # the order of the samples in each epoch
    meta: Deck | None = None  # data that the server gave to all clients (spec 5.7)

    @property
    def exact(self) -> bool:
        """Whether each client in the stack gets the same bits as alone."""
        return self.context.exact and self.context.net.keeps_bits

    def epoch(self, number: int) -> Iterator[Batch]:
        """The shuffled and augmented batches of an epoch."""
        context = self.context
        return self.deck.shuffled(
            self.settings.batch_size,
            context.training_lens,
            self.shuffle,
            number,
            context.change,
            context.skip_single,
            context.net.body.keyed_by,
        )

    def meta_batches(self, number: int) -> Iterator[Batch] | None:
        """Endless batches of the server's data (`meta`). Each epoch starts them again, so that clients with fewer
        batches in an epoch do not get out of step with the others of a stack."""
        if self.meta is None:
            return None
        context = self.context
        return self.meta.endless(
            self.settings.batch_size,
            context.training_lens,
            self.shuffle.for_use(f"meta {number}"),
            context.change,
            context.skip_single,
            context.net.body.keyed_by,
        )

    def of_places(self, order: Sequence[int], places: Tensor) -> LocalTask:
        """The task of the clients at these places, in this order. `order` and `places` are the same numbers, on the
        host and on the device."""
        meta = None if self.meta is None else self.meta.of_places(order, places)
        deck, shuffle = self.deck.of_places(order, places), self.shuffle.of_places(order)
        plan = tuple(phase.of_places(places) for phase in self.plan)
        return replace(self, deck=deck, plan=plan, shuffle=shuffle, meta=meta)


def stacks_alike(settings: LocalSettings, plan: Sequence[LocalPhase], sizes: Sequence[int]) -> bool:
    """Whether clients with these numbers of samples get the same bits in a stack as alone, if the network allows it.

    With different numbers of samples, only steps on batches can do that (unpadded.py). Features that a head-only phase
    computes once are padded, which changes bits."""
    parts = settings.objective, settings.step, settings.drift
    if any(map(is_foreign, parts)) or "none" in (settings.objective.stacks, settings.step.stacks):
        return False
    if min(sizes) == max(sizes):
        return True
    body_always_moves = all(any(name.startswith("body.") for name in phase.moving) for phase in plan)
    return settings.step.stacks == "any" and body_always_moves


@dataclass(frozen=True)
class LocalResult:
    """The result of local training for G clients."""

    tensors: Tensors  # [G, *]: all tensors of the models
    loss: Tensor  # [G]: mean loss over all samples that were trained on
    epochs: int  # epochs done
    own: Tensors  # [G, *]: the second model that the step trains (pFedMe's θ); without one, the same as `tensors`
    notes: Tensors = field(default_factory=dict)  # [G, *]: what the step gets back at the clients' next visit

    def copy(self) -> LocalResult:
        """A copy whose tensors share no memory with these."""
        copies = copies_of(self.tensors)
        own = {n: copies[n] if t is self.tensors.get(n) else t for n, t in self.own.items()}
        return replace(self, tensors=copies, own=own)

    def of_places(self, places: Tensor | slice) -> LocalResult:
        """The results of the clients at these places, in this order. With a slice they share memory with these; with a
        tensor of places they are copies, unless one tensor stands for all clients."""
        tensors = {n: rows_at(t, places) for n, t in self.tensors.items()}
        own = {n: tensors[n] if t is self.tensors.get(n) else t[places] for n, t in self.own.items()}
        notes = {n: t[places] for n, t in self.notes.items()}
        return replace(self, tensors=tensors, loss=self.loss[places], own=own, notes=notes)
