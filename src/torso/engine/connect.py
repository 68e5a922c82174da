"""Connect to a Ray cluster: one that runs already, or one on this machine that ends with the run."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torso.engine.ray_session import Session, starting_apart
from torso.errors import RequestError

if TYPE_CHECKING:
    from torso.config import RunConfig


_PATIENCE = 10.0  # seconds until an attempt to connect fails


def connect(run: RunConfig) -> Session | None:
    """Connect to Ray. Returns None if this process is connected already: that connection is not ours to end."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray must not send usage statistics anywhere
    try:
        import ray
    except ImportError:
        raise RequestError(
            'run.engine = "ray" needs the ray package, which is not installed. '
            'Install it with: pip install "torso[ray]"'
        ) from None
    if ray.is_initialized():
        return None
    here: dict[str, Any] = {}
    if run.ray.address == "local":
        # at least what the user asks for, which may be more than the machine's cores
        cpus = max(os.cpu_count() or 1, run.ray.workers * threads(run))
        here = {"num_cpus": cpus}
    try:
        _probe(run.ray.address)
        # what workers print stays in Ray's logs (log_to_driver=False): it would disturb the progress display
        with starting_apart():
            made = ray.init(address=run.ray.address, log_to_driver=False, logging_level=logging.ERROR, **here)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError, OSError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise RequestError(
            f"run.ray.address = {run.ray.address!r} cannot be reached: {reason}. Accepted: local, auto (the cluster "
            "that this machine belongs to), or HOST:PORT of `ray start --head`"
        ) from None
    folder = made.address_info.get("session_dir") if here else None
    session = Session(Path(folder) if folder else None)
    session.set_exit_message("Checkpoints are kept: the same command, with --resume where it has it, continues")
    return session


def _probe(address: str) -> None:
    """Raise an OSError if no server listens at HOST:PORT. Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()


@contextmanager
def connected(run: RunConfig) -> Iterator[None]:
    """Connect to Ray for the block. A connection that exists already is used, and stays."""
    session = connect(run)
    if session is None:
        yield
        return
    with session:
        yield


def threads(run: RunConfig) -> int:
    """The number of threads of one worker on CPU."""
    return run.workers or 1


def worker_resources(run: RunConfig) -> dict[str, float]:
    """The resources of the cluster that one worker takes, as options of `ray.remote`."""
    return {"num_cpus": threads(run), "num_gpus": run.ray.gpus_per_worker}


def worker_count(run: RunConfig) -> int:
    """The number of workers to start: `run.ray.workers`, or as many as the cluster's cores and accelerators allow."""
    import ray

    there = ray.cluster_resources()
    fits = int(there.get("CPU", 0) // threads(run))
    if run.ray.gpus_per_worker:
        fits = min(fits, int(there.get("GPU", 0) / run.ray.gpus_per_worker + 1e-9))
    if fits < 1:
        raise RequestError(
            f"run.ray.gpus_per_worker = {run.ray.gpus_per_worker} and run.workers = {run.workers}: the cluster at "
            f"{run.ray.address!r} has {there.get('CPU', 0):g} cores and {there.get('GPU', 0):g} accelerators, which is "
            "not enough for one worker. Ask for less"
        )
    return run.ray.workers or fits


def why_worker_is_late(run: RunConfig) -> str:
    """Why a worker has not started in time, as far as the cluster's resources tell (the end of a sentence)."""
    import ray

    there = ray.cluster_resources()
    return (
        f"has not started within run.ray.wait = {run.ray.wait:g} s; the cluster has {there.get('CPU', 0):g} cores and "
        f"{there.get('GPU', 0):g} accelerators. Ask for less, or wait longer"
    )
