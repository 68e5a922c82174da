"""The result of a run: what `result.json` holds and what `torso.run` returns."""

from __future__ import annotations

import copy
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torso.data import Federation
from torso.errors import RequestError
from torso.measure import Accuracy
from torso.nets import Network, Tensors
from torso.runs.state import Cost, State

ANALYSES = "analyses.json"


@dataclass(frozen=True)
class Result:
    """Accuracies are percentages over clients.

    When the run took place in this process, `network()` gives the trained models; `initial`, `generic` and `state` are
    what they are made of."""

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
    peak_memory_bytes: int | None = field(default=None, compare=False)  # of the device; on CPU of the whole process
    malicious: tuple[int, ...] = ()  # clients that attacked (spec 9.6)
    analyses: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)  # what analyses.json holds
    folder: Path | None = field(default=None, compare=False)
    initial: Network | None = field(default=None, compare=False, repr=False)  # with the weights it started from
    generic: Tensors = field(default_factory=dict, compare=False, repr=False)
    state: State | None = field(default=None, compare=False, repr=False)
    federation: Federation | None = field(default=None, compare=False, repr=False)

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    def network(self, client: int | None = None) -> Network:
        """The generic model, or a client's before fine-tuning, as an ordinary nn.Module that gives logits.

        A client's is the model of its own that its visits left it (Ditto, pFedMe), or the one that it holds: the
        server's, with the parts that it keeps. A client that has never taken part has one too."""
        if self.initial is None or self.state is None or self.federation is None:
            raise RequestError("this result was read from a folder; only a run in this process holds its models.")
        net = copy.deepcopy(self.initial)
        if client is None:
            net.load_state_dict(self.generic)
            return net
        if not 0 <= client < self.federation.clients:
            raise RequestError(f"client = {client} does not exist. Accepted: 0 to {self.federation.clients - 1}")
        state = self.state.reported
        own = {name: tensor[0] for name, tensor in state.own_models([client]).items()}
        net.load_state_dict({**state.model, **state.private.get(client, {}), **own})
        net.speak_for(self.federation.class_counts[client])
        return net

    def as_json(self) -> dict[str, Any]:
        known = {"peak_memory_bytes": self.peak_memory_bytes, "malicious": list(self.malicious)}
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
            **{key: value for key, value in known.items() if value},
        }

    @classmethod
    def read(cls, folder: Path) -> Result:
        """A finished run's result, from its folder."""
        path = folder / "result.json"
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            analysed = folder / ANALYSES
            found = {
                **{key: value for key, value in tree.items() if key in _IN_JSON},
                "accuracy": {name: Accuracy.from_json(found) for name, found in tree["accuracy"].items()},
                "cost": Cost(**tree["cost"]),
                "malicious": tuple(tree.get("malicious", ())),
                "analyses": json.loads(analysed.read_text(encoding="utf-8")) if analysed.exists() else {},
            }
            return cls(**found, folder=folder)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RequestError(f"{str(path)!r} is not the result of a run: {error}. Give another folder.") from None


_IN_JSON = {f.name for f in fields(Result)} - {"folder", "initial", "generic", "state", "federation"}


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: _version(name) for name in ("torso", "torch", "numpy")}}


def _version(name: str) -> str:
    try:
        return version(name)
    except ModuleNotFoundError:  # PackageNotFoundError: run from a source tree that is not installed
        return "source"
