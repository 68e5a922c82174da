"""HTTP clients for Flower's APIs, with the header that `AccessControl` requires, and readable errors."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from flwr.supercore.constant import TASK_TOKEN_HEADER
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.runtime import RuntimeHttpClient

from torso.errors import RequestError
from torso.federation.flower.access_control import SECRET_HEADER, operator_token
from torso.federation.folder import ServerFolder

Call = Callable[[ProtobufRequestContext], httpx.Response]
_PATIENCE = 20.0  # seconds for which a request to the server is repeated before it fails
_OWN_PATIENCE = 2.0  # the same for this machine's SuperNode, which is restarted if it does not answer


class OperatorHeader:
    """An interceptor that adds the operator's header, which `AccessControl` requires."""

    def __init__(self, secret: str) -> None:
        self._token = operator_token(secret)

    def intercept(self, context: ProtobufRequestContext, call_next: Call) -> httpx.Response:
        context.request.headers[SECRET_HEADER] = self._token
        return call_next(context)


class TaskToken:
    """An interceptor that adds the token of the current task, so that one HTTP client serves many tasks."""

    def __init__(self) -> None:
        self.token = ""  # set by `tasks.claim`

    def intercept(self, context: ProtobufRequestContext, call_next: Call) -> httpx.Response:
        if self.token:
            context.request.headers[TASK_TOKEN_HEADER] = self.token
        return call_next(context)


def control_client(place: ServerFolder) -> ControlHttpClient:
    """A client for the Control API of the running server."""
    return ControlHttpClient.from_server_address(
        place.own_address,
        place.insecure,
        None if place.insecure else place.ca.read_bytes(),
        [OperatorHeader(place.secret), RuntimeVersionHttpInterceptor("torso")],
    )


def runtime_client(
    address: str, secret: bytes, task: TaskToken, place: ServerFolder | None = None
) -> RuntimeHttpClient:
    """A client for the Runtime API of the server's SuperLink; without `place`, for that of this machine's SuperNode.

    Flower's own retries are replaced: they interrupt the process after a refusal, and never end without a server."""
    again = RetryInvoker(
        lambda: exponential(base_delay=0.1, max_delay=1),
        recoverable_exceptions=httpx.TransportError,
        max_tries=None,
        max_time=_PATIENCE if place else _OWN_PATIENCE,
    )
    signed = SuperExecAuthHttpInterceptor(
        master_secret=secret, protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"})
    )
    interceptors: list[Any] = [RuntimeVersionHttpInterceptor("torso"), signed, task]
    if place is not None:
        interceptors.insert(0, OperatorHeader(place.secret))
    insecure = place is None or place.insecure
    ca = None if place is None or place.insecure else place.ca.read_bytes()
    return RuntimeHttpClient.from_server_address(address, insecure, ca, interceptors, retry_invoker=again)


def get_json(place: ServerFolder, path: str) -> Any:
    """The JSON of one of Torso's own pages on the running server, such as TRAFFIC."""
    scheme = "http" if place.insecure else "https"
    verify: ssl.SSLContext | bool = place.insecure or ssl.create_default_context(cafile=str(place.ca))
    headers = {SECRET_HEADER: operator_token(place.secret)}
    with readable_errors(place), httpx.Client(verify=verify, trust_env=False, timeout=10) as client:
        return client.get(f"{scheme}://{place.own_address}{path}", headers=headers).raise_for_status().json()


@contextmanager
def readable_errors(place: ServerFolder) -> Iterator[None]:
    """Turn errors of HTTP requests to the server into a RequestError with a hint."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        reason = flower_message(error)
        raise RequestError(f"the server at {place.own_address} refuses: {reason}") from None
    except httpx.TransportError as error:
        hint = f"Start it with `torso federation serve {place.path}`."
        if "certificate" in str(error).lower():
            hint = f"What runs there is not the server of this folder, or {str(place.certificate)!r} is not of its CA."
        raise RequestError(f"no server answers at {place.own_address} ({error}). {hint}") from None


def flower_message(error: httpx.HTTPStatusError) -> str:
    """Flower's message in an error response."""
    found = FlowerError.from_json(error.response.text)
    if found is None:
        return f"status {error.response.status_code}, {error.response.text[:200]}"
    return " ".join(filter(None, (found.message, found.public_details)))
