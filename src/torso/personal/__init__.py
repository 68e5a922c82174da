"""Personalisation: how a client gets its own model, and what clients keep between visits."""

from torso.personal.ala import LocalAggregation
from torso.personal.aligned import Aligned
from torso.personal.base import FineTune, OwnModelStart, Personal, VisitStart, personals
from torso.personal.fomo import Fomo
from torso.personal.gaussian import GaussianHead
from torso.personal.kept import Ditto, Kept
from torso.personal.realigned import Realigned
from torso.personal.scaled import ScaledHead

__all__ = [
    "Aligned",
    "Ditto",
    "FineTune",
    "Fomo",
    "GaussianHead",
    "Kept",
    "LocalAggregation",
    "OwnModelStart",
    "Personal",
    "Realigned",
    "ScaledHead",
    "VisitStart",
    "personals",
]
