"""Analyses of models beyond accuracy, such as norms and similarities (spec 13); named in `measure.analyses`."""

from torso.measure.analyses import models as _models  # noqa: F401  registers the analyses
from torso.measure.analyses import rounds as _rounds  # noqa: F401
from torso.measure.analyses import similarity as _similarity  # noqa: F401
from torso.measure.analyses.base import Analysis, RoundAnalysis, Scene, analyses, analysis
from torso.measure.analyses.walk import at_end, class_counts, of_rounds, over_rounds, watch

__all__ = [
    "Analysis",
    "RoundAnalysis",
    "Scene",
    "analyses",
    "analysis",
    "at_end",
    "class_counts",
    "of_rounds",
    "over_rounds",
    "watch",
]
