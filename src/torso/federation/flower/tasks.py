"""Flower's tasks: claim one, which gives a token; send heartbeats while it is worked on; finish it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PushTaskOutputRequest, SendTaskHeartbeatRequest
from flwr.proto.task_pb2 import Task
from flwr.supercore.runtime import RuntimeHttpClient

from torso.federation.flower.calls import TaskToken

_BEAT = 10.0  # seconds; Flower gives up a task without a heartbeat after 30 s at first, then after 60 s


def claim(client: RuntimeHttpClient, token: TaskToken, kind: str) -> Task | None:
    """Claim the oldest waiting task, if there is one. The client's requests then carry the token of this task."""
    token.token = ""
    found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
    if not found.HasField("task") or not found.token:
        return None
    token.token = found.token
    return found.task


def finish(client: RuntimeHttpClient, failure: str = "") -> None:
    """Report that the task is done, or has failed for this reason. Connection errors are ignored."""
    status = SubStatus.FAILED if failure else SubStatus.COMPLETED
    with suppress(httpx.HTTPError):
        client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=failure))


@contextmanager
def heartbeats(client: RuntimeHttpClient) -> Iterator[threading.Event]:
    """Send heartbeats in the block. Yields an event that is set when the server does not accept them any more."""
    done, lost = threading.Event(), threading.Event()

    def beat() -> None:
        while not done.wait(_BEAT):
            try:
                if not client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success:
                    lost.set()
            except httpx.HTTPStatusError:
                lost.set()
            except httpx.TransportError:
                continue  # other requests will report the lost connection
            except RuntimeError:
                return  # the connection was closed in the meantime: no heartbeat is needed any more

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield lost
    finally:
        done.set()
