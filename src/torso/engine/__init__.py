"""Where clients run. An engine maps a piece of work over clients; it knows nothing of methods or measures."""

from torso.data import Federation
from torso.engine.base import SERVER, Desk, Engine, Work, engines
from torso.engine.batched import Batched
from torso.engine.threads import OneByOne
from torso.nets import Network


def auto(net: Network, federation: Federation, workers: int, at_once: int) -> Engine:
    """Batched on an accelerator, one by one in threads on CPU."""
    on_cpu = federation.train.images.device.type == "cpu"
    return (OneByOne if on_cpu else Batched)(net, federation, workers, at_once)


engines["auto"] = auto

__all__ = ["SERVER", "Batched", "Desk", "Engine", "OneByOne", "Work", "engines"]
