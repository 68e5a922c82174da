"""Torso: federated learning that shares the body of a network and treats the head as personal.

`torso.run(torso.Config(method="fedbabu"))` runs an experiment. Names are imported when first used, so that
`import torso` and `torso --help` stay quick (torch is not loaded until something needs it).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torso.config import Config
    from torso.data.clients import Clients
    from torso.errors import RequestError, RunFailed, TorsoError
    from torso.methods.method import Method
    from torso.nets.calibrate import calibrated
    from torso.nets.joined import joined as joined
    from torso.nets.split import split as split
    from torso.parallel.compare import compare
    from torso.report.plots import plot
    from torso.results.model_file import load_model, save_model
    from torso.results.result import Result
    from torso.runs.events import Listener
    from torso.runs.load import load
    from torso.runs.personalize import personalize
    from torso.runs.predict import predict
    from torso.runs.run import run

__version__ = "0.1.0"

_MODULES = {
    "Clients": "torso.data.clients",
    "Config": "torso.config",
    "Listener": "torso.runs.events",
    "Method": "torso.methods",
    "RequestError": "torso.errors",
    "Result": "torso.results.result",
    "RunFailed": "torso.errors",
    "TorsoError": "torso.errors",
    "calibrated": "torso.nets.calibrate",
    "compare": "torso.parallel.compare",
    "joined": "torso.nets.joined",
    "load": "torso.runs.load",
    "load_model": "torso.results.model_file",
    "personalize": "torso.runs.personalize",
    "plot": "torso.report.plots",
    "predict": "torso.runs.predict",
    "run": "torso.runs.run",
    "save_model": "torso.results.model_file",
    "split": "torso.nets",
}
__all__ = [
    "Clients",
    "Config",
    "Listener",
    "Method",
    "RequestError",
    "Result",
    "RunFailed",
    "TorsoError",
    "calibrated",
    "compare",
    "joined",
    "load",
    "load_model",
    "personalize",
    "plot",
    "predict",
    "run",
    "save_model",
    "split",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'torso' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
