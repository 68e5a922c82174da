"""The way to a Ray cluster: one that runs already, or one of this machine's cores that ends with the run."""

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


_PATIENCE = 10.0  # seconds for a connection


def connect(run: RunConfig) -> Session | None:
    """The connection that was made; None where this process has one."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is sent anywhere
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
        cpus = max(os.cpu_count() or 1, run.ray.workers * threads(run))  # whoever asks for more processes gets them
        here = {"num_cpus": cpus}
    try:
        _probe(run.ray.address)
        # what workers print stays in Ray's logs: it would run through the progress display
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
    session.last_words("Checkpoints are kept: the same command, with --resume where it has it, continues")
    return session


def _probe(address: str) -> None:
    """Whether somebody listens there at all: Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()


@contextmanager
def connected(run: RunConfig) -> Iterator[None]:
    """A connection while the block lasts; one that was there before stays."""
    session = connect(run)
    if session is None:
        yield
        return
    with session:
        yield


def threads(run: RunConfig) -> int:
    """Of a worker on CPU."""
    return run.workers or 1


def needs(run: RunConfig) -> dict[str, float]:
    """What a worker takes of the cluster."""
    return {"num_cpus": threads(run), "num_gpus": run.ray.gpus_per_worker}


def room(run: RunConfig) -> int:
    """How many workers there are to be: as asked, or as many as the cluster has room for."""
    import ray

    there = ray.cluster_resources()
    fits = int(there.get("CPU", 0) // threads(run))
    if run.ray.gpus_per_worker:
        fits = min(fits, int(there.get("GPU", 0) / run.ray.gpus_per_worker + 1e-9))
    if fits < 1:
        raise RequestError(
            f"run.ray.gpus_per_worker = {run.ray.gpus_per_worker} and run.workers = {run.workers}: the cluster at "
            f"{run.ray.address!r} has {there.get('CPU', 0):g} cores and {there.get('GPU', 0):g} accelerators, which is "
            "no room for one worker. Ask for less"
        )
    return run.ray.workers or fits


def late(run: RunConfig) -> str:
    """Why nobody comes, as far as can be told."""
    import ray

    there = ray.cluster_resources()
    return (
        f"has not started within run.ray.wait = {run.ray.wait:g} s; the cluster has {there.get('CPU', 0):g} cores and "
        f"{there.get('GPU', 0):g} accelerators. Ask for less, or wait longer"
    )
