"""Find the device of a run's tensors, and refuse one that cannot be used."""

from __future__ import annotations

import torch

from torso.config import RunConfig
from torso.errors import RequestError


def device_of(run: RunConfig) -> torch.device:
    """The device of a run's tensors in this process.

    For `run.device = "auto"` the driver of a cluster and the server of a federation use the CPU: they only add up, and
    the accelerators belong to the workers."""
    only_adds_up = run.engine in ("ray", "flower")
    return device_named("cpu" if only_adds_up and run.device == "auto" else run.device)


def device_named(name: str) -> torch.device:
    """The device of a name as in `run.device`. Raises RequestError if it cannot be used on this machine."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("it holds no data")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        if reason.startswith("Expected one of"):  # PyTorch's list of every kind of device there is
            reason = "PyTorch knows no such device"
        count = torch.cuda.device_count()
        usable = ["auto", "cpu", *(["cuda"] if count else []), *(f"cuda:{number}" for number in range(count))]
        raise RequestError(
            f"run.device = {name!r} cannot be used here: {reason}. Accepted: {', '.join(usable)}"
        ) from None
    return device
