"""The result of a run: what `result.json` holds and what `torso.run` returns."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torso.measure import Accuracy
from torso.nets import Network
from torso.runs.state import Cost, State


@dataclass(frozen=True)
class Result:
    """Accuracies are percentages over clients. `net` and `state` are there when the run took place in this process."""

    method: str
    dataset: str
    model: str
    seed: int
    rounds: int
    status: str
    accuracy: Mapping[str, Accuracy]
    cost: Cost
    seconds: Mapping[str, float]
    versions: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = field(default=None, compare=False)
    net: Network | None = field(default=None, compare=False, repr=False)
    state: State | None = field(default=None, compare=False, repr=False)

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    def as_json(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "dataset": self.dataset,
            "model": self.model,
            "seed": self.seed,
            "rounds": self.rounds,
            "status": self.status,
            "accuracy": {name: found.as_json() for name, found in self.accuracy.items()},
            "cost": asdict(self.cost),
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
            "versions": dict(self.versions),
        }

    @classmethod
    def read(cls, folder: Path) -> Result:
        """A finished run's result, from its folder."""
        tree = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        nan = float("nan")
        accuracy = {
            name: Accuracy(
                nan if found["mean"] is None else found["mean"],
                nan if found["std"] is None else found["std"],
                found["n"],
                tuple(found["clients"]),
            )
            for name, found in tree.pop("accuracy").items()
        }
        return cls(**{**tree, "cost": Cost(**tree["cost"])}, accuracy=accuracy, folder=folder)


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: _version(name) for name in ("torso", "torch", "numpy")}}


def _version(name: str) -> str:
    try:
        return version(name)
    except ModuleNotFoundError:  # PackageNotFoundError: run from a source tree that is not installed
        return "source"
