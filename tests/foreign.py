"""What somebody else might write for Torso."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torso.data.batches import Batch
from torso.learn.steps import Learner, Step


@dataclass(frozen=True)
class Clipped(Step):
    """As somebody who has read docs/extending.md writes one: for any G, nothing mixed along it, rates are numbers."""

    def epoch(self, learner: Learner, batches: Iterator[Batch]) -> None:
        for batch in batches:
            grads = learner.gradients(learner.tensors, batch)
            for name, rate in learner.rates.items():
                learner.tensors[name] -= rate * grads[name].clamp(-0.01, 0.01)
