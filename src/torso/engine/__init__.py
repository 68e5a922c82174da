"""Engines: they run work for clients in threads, in stacks or on a cluster, and know nothing of methods or measures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torso.data import Federation
from torso.engine.base import (
    SERVER,
    Engine,
    EngineFactory,
    HasAvailability,
    HasCosts,
    SupportsExitMessage,
    SupportsForClients,
    SupportsRepair,
    Work,
    Workspace,
    add_up,
    can_look_ahead,
    engines,
    has_availability,
    supports_repair,
)
from torso.engine.batched import Batched
from torso.engine.threads import OneByOne
from torso.errors import RequestError
from torso.nets import Network

if TYPE_CHECKING:
    from torso.config import RunConfig


def auto(net: Network, federation: Federation, run: RunConfig) -> Engine:
    """The engine for `run.engine = "auto"`: "batched" on an accelerator, "one-by-one" (threads) on CPU."""
    on_cpu = federation.device.type == "cpu"
    return engines["one-by-one" if on_cpu else "batched"](net, federation, run)


def ray(net: Network, federation: Federation, run: RunConfig) -> Engine:
    """The engine for `run.engine = "ray"`: worker processes on one machine or many. Ray is imported only here."""
    from torso.engine.connect import connect

    session = connect(run)
    from torso.engine.cluster import Cluster

    try:
        return Cluster(net, federation, run, session)
    except BaseException:
        if session:
            session.end()
        raise


def flower(net: Network, federation: Federation, run: RunConfig) -> Engine:
    """Refuse `run.engine = "flower"`: its clients hold their data on other machines (`federation/remote_engine.py`),
    so they cannot be simulated from data in this process."""
    raise RequestError(
        "run.engine = 'flower' is for clients that hold their own data: torso federation run CONFIG. "
        "Accepted here: auto, batched, one-by-one, ray"
    )


engines["auto"] = auto
engines["flower"] = flower
engines["ray"] = ray

__all__ = [
    "SERVER",
    "Batched",
    "Engine",
    "EngineFactory",
    "HasAvailability",
    "HasCosts",
    "OneByOne",
    "SupportsExitMessage",
    "SupportsForClients",
    "SupportsRepair",
    "Work",
    "Workspace",
    "add_up",
    "can_look_ahead",
    "engines",
    "has_availability",
    "supports_repair",
]
