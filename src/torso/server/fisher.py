"""Weights of models in the mean by their Fisher information (FedAS, spec 19.14)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from torso.learn.gradients import gradients
from torso.learn.objectives import CrossEntropy
from torso.learn.outputs import all_batches
from torso.learn.phases import moved_by
from torso.nets import Network, Tensors, learnable, set_modes
from torso.server.statistics import Declared, Statistic, Statistics, VisitEnd, statistics


@statistics.register("fisher")
@dataclass(frozen=True)
class Fisher(Statistics):
    """Weights by Fisher information: each client sends Σ_B ‖∇ℓ_B‖², the sum over its batches of the squared norm of the
    gradient of the mean loss after local training. It estimates the trace of the client's Fisher information and is the
    weight of the client's model in the mean (FedAS, spec 19.14)."""

    weighs: ClassVar[str] = "fisher"
    passes: ClassVar[float] = 3.0

    def declares(self, net: Network, classes: int) -> Declared:
        return {"fisher": Statistic((), "the trace of its Fisher information", numbers="not negative", power=5)}

    def of_clients(self, at: VisitEnd) -> Tensors:
        task, tensors = at.task, at.learned.tensors
        names = learnable(task.context.net, sorted(moved_by(task.plan)))
        counts = task.deck.class_counts(task.context.classes)
        total = torch.zeros(len(task.deck.clients), device=task.deck.index.device)
        for batch in all_batches(task.context, task.deck, task.settings.batch_size, task.shuffle.for_use("fisher")):
            set_modes(task.context.net, frozenset())
            grads, _ = gradients(task.context.net, tensors, names, batch, CrossEntropy(), counts)
            for grad in grads.values():
                total = total + grad.flatten(1).square().sum(dim=1)
        return {"fisher": total}
