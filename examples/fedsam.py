"""A custom local step: sharpness-aware minimisation on the clients (FedSAM, Qu 2022). See docs/extending.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from torso.data.batches import Batch
from torso.kinds import Positive
from torso.learn.stacked import scaled
from torso.learn.steps import Learner, Step, steps
from torso.methods import Method, methods


@steps.register("own-sam")
@dataclass(frozen=True)
class SharpnessAware(Step):
    """w ← w − η∇ℓ(w + ρ·g/‖g‖) with g = ∇ℓ(w): the gradient is taken where the loss is about highest nearby."""

    rho: Positive = 0.05

    def epoch(self, learner: Learner, batches: Iterator[Batch]) -> None:
        for batch in batches:
            grads = learner.gradients(learner.tensors, batch)  # [G, *]
            length = torch.stack([g.flatten(1).square().sum(dim=1) for g in grads.values()]).sum(dim=0).sqrt()  # [G]
            reach = self.rho / length.clamp(min=1e-12)
            above = {n: learner.tensors[n] + scaled(g, reach) for n, g in grads.items()}
            learner.move(learner.leading({**learner.tensors, **above}, batch.again(1)), batch)

    @property
    def passes(self) -> int:
        return 2


@methods.register("own-fedsam")
def own_fedsam() -> Method:
    """FedAvg whose clients take sharpness-aware steps."""
    return Method(step=SharpnessAware(), paper="FedSAM (Qu 2022)")
