"""Analyses of models beyond accuracy, such as norms and similarities (spec 13); named in `measure.analyses`."""

from torso.measure.analyses import models as _models  # noqa: F401  registers the analyses
from torso.measure.analyses import rounds as _rounds  # noqa: F401
from torso.measure.analyses import similarity as _similarity  # noqa: F401
from torso.measure.analyses.base import Analysis, RoundAnalysis, Snapshot, analyses, analysis
from torso.measure.analyses.taking import analyse_end, analyse_round, class_counts, joined_entries, round_analyses

__all__ = [
    "Analysis",
    "RoundAnalysis",
    "Snapshot",
    "analyse_end",
    "analyse_round",
    "analyses",
    "analysis",
    "class_counts",
    "joined_entries",
    "round_analyses",
]
