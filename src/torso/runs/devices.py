"""Where the tensors of a run are."""

from __future__ import annotations

import torch

from torso.config import RunConfig
from torso.errors import RequestError


def device_of(run: RunConfig) -> torch.device:
    """Where the run's tensors are. The driver of a cluster, and the server of a federation, only add up: the
    accelerators are the workers'."""
    return device_named("cpu" if run.engine in ("ray", "flower") and run.device == "auto" else run.device)


def device_named(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("it holds no data")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason, there = str(error).splitlines()[0].rstrip("."), torch.cuda.device_count()
        usable = ["auto", "cpu", *(["cuda"] if there else []), *(f"cuda:{number}" for number in range(there))]
        raise RequestError(
            f"run.device = {name!r} cannot be used here: {reason}. Accepted: {', '.join(usable)}"
        ) from None
    return device
