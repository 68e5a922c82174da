"""Methods as choices on a few axes, and the catalogue of published methods."""

from torso.methods.catalogue import methods
from torso.methods.method import AXES, Method, Share
from torso.methods.parse import method_from_config, method_to_config
from torso.methods.starts import ClassMeans, Exchange, Finished, Fresh, Start, starts

__all__ = [
    "AXES",
    "ClassMeans",
    "Exchange",
    "Finished",
    "Fresh",
    "Method",
    "Share",
    "Start",
    "method_from_config",
    "method_to_config",
    "methods",
    "starts",
]
