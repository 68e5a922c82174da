"""A task of Flower's: who claims it gets a token, and shows from time to time that he still works on it."""

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

_BEAT = 10.0  # seconds; a task without a sign of life for 30 s at first, then 60 s, is given up


def claim(client: RuntimeHttpClient, token: TaskToken, kind: str) -> Task | None:
    """The oldest task that waits, if there is one: from now on the client speaks for it."""
    token.token = ""
    found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
    if not found.HasField("task") or not found.token:
        return None
    token.token = found.token
    return found.task


def finish(client: RuntimeHttpClient, failure: str = "") -> None:
    """The task is done, or has failed for this reason; whether anybody hears it does not matter any more."""
    status = SubStatus.FAILED if failure else SubStatus.COMPLETED
    with suppress(httpx.HTTPError):
        client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=failure))


@contextmanager
def beating(client: RuntimeHttpClient) -> Iterator[threading.Event]:
    """Signs of life in the block; the event is set when nobody accepts them any more."""
    done, lost = threading.Event(), threading.Event()

    def beat() -> None:
        while not done.wait(_BEAT):
            try:
                if not client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success:
                    lost.set()
            except httpx.HTTPStatusError:
                lost.set()
            except httpx.TransportError:
                continue  # whoever needs the connection finds out by himself
            except RuntimeError:
                return  # the connection was closed in the meantime: nobody waits for a sign of life

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield lost
    finally:
        done.set()
