"""Sharpness-aware steps, which take the gradient where the loss nearby is about highest (FedSAM, spec 19.6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from torso.data.batches import Batch
from torso.kinds import NotNegative
from torso.learn.stacked import client_norms, padded, scaled
from torso.learn.steps import Learner, Step, steps
from torso.nets import Tensors


@steps.register("sam")
@dataclass(frozen=True)
class SharpnessAware(Step):
    """A sharpness-aware step: w ← w − η∇ℓ(w + ρ·g/‖g‖) with g = ∇ℓ(w). The norm is over all tensors that train (FedSAM,
    spec 19.6).

    Both gradients are of the same batch. Running statistics and the reported loss are those at w."""

    rho: NotNegative = 0.05
    any_rates: ClassVar[bool] = True

    @property
    def passes(self) -> int:
        return 2

    def epoch(self, learner: Learner, batches: Iterator[Batch]) -> None:
        statistics = [name for name, _ in learner.net.named_buffers() if name in learner.tensors]
        for batch in batches:
            above = self.climbed(learner, learner.leading(learner.tensors, batch))
            spare = {name: learner.tensors[name].clone() for name in statistics}  # for the second pass to change
            grads, _ = learner.at({**learner.tensors, **above, **spare}, batch.again(1))
            learner.move(grads, batch)

    def climbed(self, learner: Learner, grads: Tensors) -> Tensors:
        """w + ρ·g/‖g‖ for the tensors that train [G, *]; w for clients without a gradient."""
        reach = self.rho / client_norms(grads).clamp(min=torch.finfo(torch.float32).tiny)
        steps = {name: padded(scaled(grad, reach), len(learner.loss)) for name, grad in grads.items()}
        return {name: learner.tensors[name] + step for name, step in steps.items()}
