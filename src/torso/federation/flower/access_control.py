"""Access control in front of Flower's SuperLink, as ASGI middleware.

Flower serves its Fleet, Control and Runtime APIs on one port. The Fleet API (for clients) can check signatures; the
other two have no authentication. `AccessControl` forwards requests to these two only if they come from this machine and
carry the operator's secret. It also prints the reason of every refusal."""

from __future__ import annotations

import hmac
import ipaddress
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Mapping[str, str]

FLEET = "/v1/fleet/"
HELLO = "/torso/hello"
JOIN = "join"
TRAFFIC = "/torso/traffic"
SECRET_HEADER = "torso-operator"
LARGEST = 16 * 2**20  # bytes of one request; Flower splits larger objects into chunks of at most 5 MiB
_AGAIN = 30.0  # seconds until the same line is printed again


def operator_token(secret: str) -> str:
    """The token that requests of the operator carry; the secret itself is never sent."""
    return hmac.new(secret.encode(), b"torso operator", sha256).hexdigest()


@dataclass(frozen=True)
class KeyStatus:
    """What the server knows about the key that a request is signed with. It is sent to clients as JSON.

    The states: "open" (the server asks for no key), "unsigned" (no valid signature), "clock" (the sender's clock is
    wrong), "unknown", "revoked", "connected" (the key is in use), "admitted" (the client may connect)."""

    state: str
    words: str  # the state as a sentence
    name: str = ""  # under which the key was admitted
    clock: float = 0.0  # seconds by which the sender's clock is behind
    server: str = ""  # id of the server process; a restart changes it


@dataclass
class Traffic:
    """The traffic of one path: bodies and headers, without the overhead of TLS."""

    requests: int = 0
    received: int = 0  # bytes
    sent: int = 0  # bytes


class AccessControl:
    """The outermost ASGI middleware. `standing`: checks the signature of a request. `say`: prints a line."""

    def __init__(self, app: App, secret: str, standing: Callable[[Headers], KeyStatus], say: Callable[[str], None]):
        self._app, self._token, self._standing, self._say = app, operator_token(secret), standing, say
        self._process_id = secrets.token_hex(8)
        self._traffic: dict[str, Traffic] = {}
        self._told: dict[tuple[str, str, str], float] = {}  # (sender, path, reason) → when it was printed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":
            return  # websockets are not used
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if scope["path"] == HELLO:
            await self._hello(scope, headers, send)
        elif scope["path"].startswith(FLEET):
            await self._fleet(scope, headers, receive, send)
        else:
            await self._command(scope, headers, receive, send)

    async def _command(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        if not from_this_machine(scope):
            await self._refuse(scope, send, "only the server's own machine may command it")
        elif not hmac.compare_digest(headers.get(SECRET_HEADER, "").encode("latin-1"), self._token.encode()):
            await self._refuse(scope, send, "the request does not carry the operator's secret")
        elif scope["path"] == TRAFFIC:
            await _answer(send, 200, {path: asdict(found) for path, found in self._traffic.items()})
        else:
            await self._app(scope, receive, send)

    async def _refuse(self, scope: Scope, send: Send, reason: str) -> None:
        self._tell(scope, reason)
        await _answer(send, 403, {"refused": reason})

    async def _hello(self, scope: Scope, headers: Headers, send: Send) -> None:
        """Answer a client that asks for the state of its key, before it connects or while it is connected."""
        from starlette.concurrency import run_in_threadpool

        found = await run_in_threadpool(self._standing, headers)
        joins = scope.get("query_string") == JOIN.encode()  # otherwise the client is connected and only checks
        if found.state not in ("admitted", "open") and (joins or found.state != "connected"):
            self._tell(scope, found.words)
        await _answer(send, 200, asdict(replace(found, server=self._process_id)))

    async def _fleet(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        """Forward a request of a client, count its bytes, and refuse it if it is too large."""
        from starlette.concurrency import run_in_threadpool

        counted = self._traffic.setdefault(scope["path"] if len(self._traffic) < 100 else FLEET, Traffic())
        counted.requests += 1
        counted.received += _head_size(scope["headers"]) + len(scope["path"]) + 15  # POST … HTTP/1.1
        body = 0
        status = 200

        async def received() -> Event:
            nonlocal body
            event = await receive()
            body += len(event.get("body", b""))
            counted.received += len(event.get("body", b""))
            return {"type": "http.disconnect"} if body > LARGEST else event

        async def sent(event: Event) -> None:
            nonlocal status
            if event["type"] == "http.response.start":
                status = event["status"]
                counted.sent += _head_size(event.get("headers", ())) + 17  # HTTP/1.1 200 OK
            counted.sent += len(event.get("body", b""))
            await send(event)

        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 20 or int(length) > LARGEST:
            self._tell(scope, f"a request of {length[:20]} bytes, more than the {LARGEST} that are accepted")
            await _answer(send, 413, {"refused": "too large"})
            return
        await self._app(scope, received, sent)
        if status >= 400:
            found = await run_in_threadpool(self._standing, headers)
            self._tell(scope, f"{found.words} (status {status})")

    def _tell(self, scope: Scope, reason: str) -> None:
        """Print why a request was refused; the same line only every _AGAIN seconds, against flooding."""
        peer = scope["client"][0] if scope.get("client") else "somebody"
        path = scope["path"] if scope["path"].isprintable() else ascii(scope["path"])
        line = peer, path[:100], reason
        now = time.monotonic()
        if len(self._told) > 1000:
            self._told.clear()
        if now - self._told.get(line, -_AGAIN) >= _AGAIN:
            self._told[line] = now
            self._say(f"refused: {peer}, {path[:100]}: {reason}")


def from_this_machine(scope: Scope) -> bool:
    """Whether the connection comes from this machine. Headers such as X-Forwarded-For are ignored."""
    try:
        address = ipaddress.ip_address(scope["client"][0])
    except (KeyError, TypeError, ValueError):
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _head_size(headers: Any) -> int:
    return sum(len(name) + len(value) + 4 for name, value in headers) + 2


async def _answer(send: Send, status: int, tree: Any) -> None:
    body = json.dumps(tree).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
