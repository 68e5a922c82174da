"""Heads that are made of class means and a covariance instead of learned (pFedFDA, spec 19.16)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torso.kinds import Positive
from torso.nets import Tensors
from torso.personal.base import OwnModelStart, Personal, VisitStart, personals
from torso.server.gaussians import COVARIANCE, MEANS, Gaussians, head_of


@personals.register("gaussian-head")
@dataclass(frozen=True)
class GaussianHead(Personal):
    """A visit begins with the head that the told Gaussians and the client's class shares make, and that head stays. A
    client's own model is the held one with the head of its own Gaussians, estimated under the body that it holds, and
    mixed with the told ones (pFedFDA, spec 19.16)."""

    ridge: Positive = 1e-4
    hears: ClassVar[tuple[str, ...]] = (MEANS, COVARIANCE)

    def before(self, at: VisitStart) -> tuple[Tensors, Tensors]:
        counts = at.task.deck.class_counts(at.task.context.classes)
        return {**at.received, **head_of(_of(at.told), counts, self.ridge)}, at.notes

    def begin(self, at: OwnModelStart) -> Tensors:
        return {**at.held, **head_of(_of(at.says()), at.counts(), self.ridge)}


def _of(said: Tensors) -> Gaussians:
    return Gaussians(said[MEANS], said[COVARIANCE])
