"""Give objects of the user's program (clients, a model, a callback) to a run, whose config can only name things."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torso.config import Config
from torso.data.clients import SOURCE, Clients
from torso.errors import RequestError
from torso.measure import Accuracy
from torso.nets.given import forget_model, register_model
from torso.runs.events import ForwardingListener, Listener
from torso.runs.rounds import Round


@dataclass(frozen=True)
class ConfigWithObjects:
    """A config in which objects have names. The names are registered as long as this object exists."""

    config: Config
    clients: Clients | None = None


def register_objects(config: Config, clients: Any = None, model: Any = None) -> ConfigWithObjects:
    """Register objects under names, and put these names into a copy of the config.

    `clients` replaces `data.source`, `model` replaces `model.body`."""
    given = None if clients is None else Clients.of(clients)
    updates: dict[str, Any] = {}
    if given is not None:
        _check_dealing(config)
        data = {"source": SOURCE, "root": given.hand_over(), "partition": "by-client", "clients": 0}
        updates["data"] = config.data.model_copy(update=data)
    name = ""
    if model is not None:
        name = register_model(model)
        init = name if config.model.head_init == "default" else config.model.head_init
        updates["model"] = config.model.model_copy(update={"body": name, "head_init": init})
    handed = ConfigWithObjects(config.model_copy(update=updates) if updates else config, given)
    if name:
        weakref.finalize(handed, forget_model, name).atexit = False
    return handed


def _check_dealing(config: Config) -> None:
    """Refuse a config that sets a data source or a partition, if clients are handed over."""
    if config.data.source == SOURCE:  # the config of a run that is resumed
        return
    usual = Config().data
    for key in ("source", "root", "partition"):
        found = getattr(config.data, key)
        if found != getattr(usual, key):
            raise RequestError(
                f"data.{key} = {found!r} says where clients come from, and clients were handed over. "
                "Leave one of them out"
            )


OnRoundCall = Callable[[Round, Mapping[str, Accuracy]], object]
"""(what happened in a round, the accuracies measured after it or an empty mapping) → any value, which is not used."""


class OnRound(ForwardingListener):
    """A listener that calls a function after every round, and passes everything on to another listener."""

    def __init__(self, listener: Listener, call: OnRoundCall) -> None:
        super().__init__(listener)
        if not callable(call):
            raise RequestError(f"on_round is {type(call).__name__}. Expected: a function of (round, accuracy)")
        self.call = call

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        super().round(round, seconds, accuracy)
        self.call(round, accuracy)

    def beside(self) -> Listener:
        return OnRound(self.listener.beside(), self.call)
