"""Heads that are made of class means and a covariance instead of learned (pFedFDA, spec 19.16)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torso.kinds import Positive
from torso.learn.course import Learned
from torso.learn.phases import moved_by
from torso.nets import Tensors
from torso.personal.base import OwnModelStart, Personal, VisitStart, personals
from torso.server.gaussians import COVARIANCE, MEANS, Gaussians, head_of


@personals.register("gaussian-head")
@dataclass(frozen=True)
class GaussianHead(Personal):
    """A visit begins with the head that the told Gaussians and the client's class shares make, and that head stays; the
    client's own model has the head of its own Gaussians, as its last visit left it (pFedFDA, spec 19.16)."""

    ridge: Positive = 1e-4
    hears: ClassVar[tuple[str, ...]] = (MEANS, COVARIANCE)

    @property
    def keeps(self) -> bool:
        return True

    def before(self, at: VisitStart) -> tuple[Tensors, Tensors]:
        return {**at.received, **self._head(at, at.told)}, at.notes

    def after(self, at: VisitStart, learned: Learned) -> Tensors:
        return {**{n: learned.tensors[n] for n in moved_by(at.course.plan)}, **self._head(at, at.said)}

    def begin(self, at: OwnModelStart) -> Tensors:
        return at.own

    def _head(self, at: VisitStart, found: Tensors) -> Tensors:
        counts = at.course.deck.class_counts(at.course.room.classes)
        return head_of(Gaussians(found[MEANS], found[COVARIANCE]), counts, self.ridge)
