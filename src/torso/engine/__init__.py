"""Where clients run. An engine maps a piece of work over clients; it knows nothing of methods or measures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torso.data import Federation
from torso.engine.base import (
    SERVER,
    ComeAndGo,
    Engine,
    EngineFactory,
    MayEndUs,
    Narrows,
    Repairs,
    Weighs,
    Work,
    Workspace,
    add_up,
    comes_and_goes,
    engines,
    looks_ahead,
    repairs,
)
from torso.engine.batched import Batched
from torso.engine.threads import OneByOne
from torso.errors import RequestError
from torso.nets import Network

if TYPE_CHECKING:
    from torso.config import RunConfig


def auto(net: Network, federation: Federation, run: RunConfig) -> Engine:
    """Batched on an accelerator, one by one in threads on CPU."""
    on_cpu = federation.device.type == "cpu"
    return engines["one-by-one" if on_cpu else "batched"](net, federation, run)


def ray(net: Network, federation: Federation, run: RunConfig) -> Engine:
    """Processes on one machine or many; the package is looked for when somebody asks for it."""
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
    """Clients on machines of their own (`federation/remote.py`): they are met, not made from data that are here."""
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
    "ComeAndGo",
    "Engine",
    "EngineFactory",
    "MayEndUs",
    "Narrows",
    "OneByOne",
    "Repairs",
    "Weighs",
    "Work",
    "Workspace",
    "add_up",
    "comes_and_goes",
    "engines",
    "looks_ahead",
    "repairs",
]
