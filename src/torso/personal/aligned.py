"""Visits that first align the received body with the client's previous one (FedAS, spec 19.14).

G clients, C classes, d features. θ is the received body, θ_k the client's body after its last visit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from torso.data.batches import Batch
from torso.kinds import Count, NotNegative
from torso.learn.gradients import gradients
from torso.learn.outputs import class_sums, one_hot_labels
from torso.learn.phases import moved_by
from torso.learn.stacked import per_client
from torso.learn.task import LocalResult
from torso.learn.teachers import TOLD_PREFIX, Prototypical, at_class
from torso.nets import Network, Tensors, learnable, part_names, set_modes
from torso.personal.base import OwnModelStart, Personal, VisitStart, personals

VISITED = "visited"  # name of a note: 1 after the client's first visit


class _DistanceToMeans(Prototypical):
    """The distance of features to class means, without cross-entropy."""

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        return features.new_zeros(labels.shape)


@personals.register("aligned")
@dataclass(frozen=True)
class Aligned(Personal):
    """Alignment before local training: a client takes SGD steps of rate `lr` with the received body, which bring its
    features near to the class means of its samples under its previous body (FedAS, spec 19.14).

    `over = "classes"`: the loss of a batch is the sum over its classes of the mean over the samples of the class, as in
    the authors' code; `"samples"`: the mean over all samples."""

    lr: NotNegative = 0.01
    epochs: Count = 1
    over: Literal["classes", "samples"] = "classes"

    @property
    def keeps(self) -> bool:
        return True

    def opening_passes(self, offered: int) -> float:
        return 1.0 + 3.0 * self.epochs

    def notes(self, client: int, clients: int, net: Network) -> Tensors:
        return {VISITED: torch.zeros(())}

    def before(self, at: VisitStart) -> tuple[Tensors, Tensors]:
        visited = at.notes[VISITED]
        moved = self.aligned(at)
        start = {n: torch.where(per_client(visited, t) > 0, t, at.received[n]) for n, t in moved.items()}
        return {**at.received, **start}, {**at.notes, VISITED: torch.ones_like(visited)}

    def after(self, at: VisitStart, learned: LocalResult) -> Tensors:
        return {n: learned.tensors[n] for n in moved_by(at.task.plan) if n.startswith("body.")}

    def begin(self, at: OwnModelStart) -> Tensors:
        return at.visit().own  # align and train once more

    def aligned(self, at: VisitStart) -> Tensors:
        """The parameters of the body [G, *] after the steps towards the class means of the previous body."""
        task, net = at.task, at.task.context.net
        body = learnable(net, (n for n in part_names(net, "body") if n in moved_by(task.plan)))
        if not body or not self.lr:
            return {}
        shuffle = task.shuffle.for_use("align")
        total, count = class_sums(task.context, task.deck, at.own, at.batch_size, shuffle)
        means = total / count.clamp(min=1).unsqueeze(-1)  # [G, C, d]
        counts = task.deck.class_counts(task.context.classes)
        tensors = at.received
        for epoch in range(self.epochs):
            for batch in replace(task, shuffle=shuffle).epoch(epoch):
                set_modes(net, frozenset())  # running statistics do not change
                goal = at_class(means, batch.labels)
                taught = {f"{TOLD_PREFIX}means": goal, f"{TOLD_PREFIX}known": self.weights(batch, means.shape[1])}
                grads, _ = gradients(net, tensors, body, replace(batch, taught=taught), _DistanceToMeans(), counts)
                tensors = {**tensors, **{n: tensors[n] - self.lr * g for n, g in grads.items()}}
        return {n: tensors[n] for n in body}

    def weights(self, batch: Batch, classes: int) -> Tensor:
        """The weights of samples [G, B] in the mean loss of a batch."""
        member = one_hot_labels(batch, classes)
        if self.over == "samples":
            return member.sum(dim=-1)
        count = member.sum(dim=1)  # [G, C]
        return count.sum(dim=1, keepdim=True) / at_class(count.clamp(min=1), batch.labels)
