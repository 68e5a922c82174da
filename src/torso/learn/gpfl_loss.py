"""The loss of GPFL, which pulls features to the embedding of their class (spec 19.24)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torso.data.batches import Batch
from torso.errors import RequestError
from torso.kinds import NotNegative
from torso.learn.objectives import CrossEntropy, Objective, cross_entropy, objectives
from torso.nets import Network, Output
from torso.nets.gpfl import GpflHead


@objectives.register("guided")
@dataclass(frozen=True)
class Guided(Objective):
    """Cross-entropy of the cosines + λ·‖f_G − e_y‖, with f_G the generic features and e_y the embedding of the label's
    class at the start of the visit (GPFL, spec 19.24).

    `over = "batch"`: λ·√(Σ_batch ‖f_G − e_y‖²) once for each batch, as in the authors' code; `"squares"`: the square of
    each sample's distance."""

    lam: NotNegative = 0.01
    over: Literal["samples", "batch", "squares"] = "samples"

    def per_sample(self, features: Tensor, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        return cross_entropy(logits, labels)

    def of_output(self, said: Output, batch: Batch, counts: Tensor) -> Tensor:
        losses = super().of_output(said, batch, counts)
        if not self.lam:
            return losses
        assert said.gaps is not None, "the head is checked before the run"
        squares = said.gaps.gather(-1, batch.labels.unsqueeze(-1)).squeeze(-1)  # [G, B]
        if self.over == "squares":
            return losses + self.lam * squares
        if self.over == "batch":
            unpadded = squares if batch.real is None else torch.where(batch.real > 0, squares, 0.0)
            squares = unpadded.sum(dim=1, keepdim=True)
        return losses + self.lam * squares.clamp(min=1e-12).sqrt()

    def for_fine_tuning(self) -> Objective:
        return CrossEntropy()

    def check(self, net: Network) -> None:
        if not isinstance(net.head, GpflHead):
            raise RequestError(
                f"method.objective = 'guided' draws features to class embeddings, and {type(net.head).__name__} has "
                "none. Accepted: method.head = 'gpfl'"
            )
