"""What is a good prediction? One loss per sample; the local loop takes the mean over each client's batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from torso.registry import Registry


class Objective(Protocol):
    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """Features [G, B, d], logits [G, B, C], labels [G, B] → losses [G, B]."""
        ...


objectives: Registry[type[Objective]] = Registry("method.objective")


@objectives.register("cross-entropy")
@dataclass(frozen=True)
class CrossEntropy:
    """−log softmax(logits) at the label."""

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
