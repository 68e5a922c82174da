"""Personal heads that are computed from class means and a covariance instead of trained (pFedFDA, spec 19.16)."""

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
    """A head from Gaussian classes: a visit begins with the head of the server's Gaussians and the client's class
    shares, and this head does not train. A client's own model has the head of its own Gaussians, which are estimated
    with the body that it holds and mixed with the server's (pFedFDA, spec 19.16)."""

    ridge: Positive = 1e-4
    hears: ClassVar[tuple[str, ...]] = (MEANS, COVARIANCE)

    def before(self, at: VisitStart) -> tuple[Tensors, Tensors]:
        counts = at.task.deck.class_counts(at.task.context.classes)
        return {**at.received, **head_of(_of(at.told), counts, self.ridge)}, at.notes

    def begin(self, at: OwnModelStart) -> Tensors:
        return {**at.held, **head_of(_of(at.says()), at.counts(), self.ridge)}


def _of(statistics: Tensors) -> Gaussians:
    return Gaussians(statistics[MEANS], statistics[COVARIANCE])
