"""Charts: functions from a comparison to a plot, and the plot as SVG for the page or as a matplotlib figure."""

from torso.report.charts import analyses, clients, matrices, rounds
from torso.report.charts.base import KINDS, Chart
from torso.report.charts.svg import to_svg

__all__ = ["KINDS", "Chart", "analyses", "clients", "matrices", "rounds", "to_svg"]
