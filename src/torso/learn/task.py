"""What clients learn with and from: what a worker has for any client (LocalContext), what G clients do
(LocalTask), what comes of it (LocalResult).

G clients, B samples; tensors are stacked [G, *].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

from torso.data.augment import Augmentation, FeatureLens, Lens
from torso.data.batches import Batch, Deck, Shuffle
from torso.learn.drift import Local
from torso.learn.phases import LocalPhase
from torso.learn.recorded import Recorder
from torso.learn.stacked import copies_of, rows_at
from torso.learn.steps import LocalSettings
from torso.nets import Network, Tensors
from torso.precision import Precision, activation_type
from torso.registry import is_foreign


class JointLearner(Protocol):
    """Learns for several runs in one stack (`lockstep.py`)."""

    def learn(self, task: LocalTask, tensors: Tensors, anchor: Local | None, notes: Tensors) -> LocalResult: ...


@dataclass(frozen=True)
class LocalContext:
    """What a worker needs for any client: a network without weights, the lens on the samples, the augmentation."""

    net: Network
    classes: int
    lens: Lens
    change: Augmentation
    skip_single: bool  # BatchNorm would see one value per channel in a batch of one (spec 12.2)
    precision: Precision = "fp32"  # of training; evaluation is always in fp32
    exact: bool = False  # whether clients of a stack are to have the bits that each has alone, where the network can
    recorder: Recorder | None = None  # replays gradients instead of launching them kernel by kernel
    lockstep: JointLearner | None = None  # where runs learn side by side

    @property
    def training_lens(self) -> Lens:
        return replace(self.lens, dtype=activation_type(self.precision))

    @property
    def on_features(self) -> bool:
        """Whether features have taken the place of samples, and the body passes them on."""
        return isinstance(self.lens, FeatureLens)


@dataclass(frozen=True)
class LocalTask:
    """What G clients go through: their samples, the local_phases, how they learn. `meta`: data that everybody got."""

    context: LocalContext
    deck: Deck
    plan: tuple[LocalPhase, ...]
    settings: LocalSettings
    shuffle: Shuffle
    meta: Deck | None = None

    @property
    def exact(self) -> bool:
        """Whether the clients' bits are those that each of them has alone."""
        return self.context.exact and self.context.net.keeps_bits

    def epoch(self, number: int) -> Iterator[Batch]:
        size, context, keyed = self.settings.batch_size, self.context, self.context.net.body.keyed_by
        return self.deck.shuffled(
            size, context.training_lens, self.shuffle, number, context.change, context.skip_single, keyed
        )

    def meta_batches(self, number: int) -> Iterator[Batch] | None:
        """Batches of the common data, over and over; anew in each epoch, so that nobody runs ahead of the others."""
        if self.meta is None:
            return None
        shuffle = self.shuffle.for_use(f"meta {number}")
        size, context, keyed = self.settings.batch_size, self.context, self.context.net.body.keyed_by
        return self.meta.endless(size, context.training_lens, shuffle, context.change, context.skip_single, keyed)

    def of_places(self, order: Sequence[int], places: Tensor) -> LocalTask:
        """That of the clients at these places, in this order."""
        meta = None if self.meta is None else self.meta.of_places(order, places)
        deck, shuffle = self.deck.of_places(order, places), self.shuffle.of_places(order)
        plan = tuple(phase.of_places(places) for phase in self.plan)
        return replace(self, deck=deck, plan=plan, shuffle=shuffle, meta=meta)


def stacks_alike(settings: LocalSettings, plan: Sequence[LocalPhase], sizes: Sequence[int]) -> bool:
    """Whether clients of these sizes learn the same bits in a stack as each alone, with a network that keeps them.

    Beside clients of other sizes, steps on batches do (widths.py). What is computed of a whole client is padded: the
    features that a phase holds on to."""
    parts = settings.objective, settings.step, settings.drift
    if any(map(is_foreign, parts)) or "none" in (settings.objective.stacks, settings.step.stacks):
        return False
    if min(sizes) == max(sizes):
        return True
    bodies = all(any(name.startswith("body.") for name in phase.moving) for phase in plan)
    return settings.step.stacks == "any" and bodies


@dataclass(frozen=True)
class LocalResult:
    """Stacked tensors after so many epochs; mean loss over all samples met [G].

    `own` is the client's own model where the step makes one beside (pFedMe's θ), and the same tensors elsewhere;
    `notes` is what the step wants to be told at the next visit."""

    tensors: Tensors
    loss: Tensor
    epochs: int
    own: Tensors
    notes: Tensors = field(default_factory=dict)

    def copy(self) -> LocalResult:
        copies = copies_of(self.tensors)
        own = {n: copies[n] if t is self.tensors.get(n) else t for n, t in self.own.items()}
        return replace(self, tensors=copies, own=own)

    def of_places(self, places: Tensor | slice) -> LocalResult:
        """The clients at these places, in this order; copies where the places are a tensor and clients differ."""
        tensors = {n: rows_at(t, places) for n, t in self.tensors.items()}
        own = {n: tensors[n] if t is self.tensors.get(n) else t[places] for n, t in self.own.items()}
        notes = {n: t[places] for n, t in self.notes.items()}
        return replace(self, tensors=tensors, loss=self.loss[places], own=own, notes=notes)
