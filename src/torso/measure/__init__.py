"""Measures and analyses of a trained federation."""

from torso.measure.base import Accuracy, Evaluation, Measurement, measures
from torso.measure.evaluate import evaluate, evaluate_in_parts

__all__ = ["Accuracy", "Evaluation", "Measurement", "evaluate", "evaluate_in_parts", "measures"]
