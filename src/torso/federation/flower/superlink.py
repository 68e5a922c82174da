"""`python -m torso.federation.flower.superlink …`: Flower's SuperLink with its flags, behind the `AccessControl`."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from torso.federation.flower.access_control import AccessControl, Headers, KeyStatus
from torso.federation.flower.children import die_with_parent
from torso.federation.keys import fingerprint

NODES = "TORSO_NODES"  # environment variable: the file of `nodes`


def key_status(headers: Headers, state: Callable[[], Any], authentication: bool) -> KeyStatus:
    """Check the signature of a client's request. `state` returns Flower's state; `authentication`: it is required."""
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

    if not authentication:
        return KeyStatus("open", "the request is refused, though this server asks for no key")
    try:
        public, clock = _signer(headers)
        key = fingerprint(public)
    except Exception:  # a stranger may have sent anything
        return KeyStatus("unsigned", "the request carries no signature, or a wrong one")
    if not -SYSTEM_TIME_TOLERANCE < clock < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
        words = f"the signature is {clock:.0f} s old: a wrong clock, or a request that was recorded and sent again"
        return KeyStatus("clock", words, clock=clock)
    return _known(public, key, clock, state())


def _signer(headers: Headers) -> tuple[bytes, float]:
    """The public key of a request, and the age of its signature in seconds by the server's clock."""
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.date import now
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

    public = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
    signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
    written = headers[TIMESTAMP_HEADER]
    if not verify_signature(bytes_to_public_key(public), written.encode("ascii"), signature):
        raise ValueError
    return public, (now() - datetime.fromisoformat(written)).total_seconds()


def _known(public: bytes, key: str, clock: float, state: Any) -> KeyStatus:
    """The state of a key with a valid signature; `key` is its fingerprint."""
    from flwr.supercore.constant import NodeStatus

    node = next((node for node in state.get_node_info() if node.public_key == public), None)
    if node is None:
        return KeyStatus("unknown", f"the key {key} is not admitted", clock=clock)
    found, words = {
        NodeStatus.UNREGISTERED: ("revoked", "is revoked"),
        NodeStatus.ONLINE: ("connected", "is in use: its owner is connected, or was until a moment ago"),
    }.get(node.status, ("admitted", "is admitted"))
    return KeyStatus(found, f"the key {key} of {node.name!r} {words}", node.name, clock)


def tell_failed_handshakes(say: Callable[[str], None]) -> bool:
    """Patch Python's event loop, which drops connections with a failed TLS handshake silently: print a line.

    Returns whether the patch was possible."""
    from asyncio import sslproto

    protocol: Any = sslproto.SSLProtocol
    before = getattr(protocol, "_on_handshake_complete", None)
    if before is None:
        return False

    def complete(self: Any, problem: BaseException | type[BaseException] | None) -> Any:
        dropped = isinstance(problem, ConnectionError) or problem is ConnectionResetError  # may be the class itself
        if problem is not None and not dropped:
            peer = getattr(self, "_transport", None) and self._transport.get_extra_info("peername")
            reason = getattr(problem, "reason", None) or str(problem) or type(problem).__name__
            say(f"refused: {peer[0] if peer else 'somebody'}: no TLS connection came about ({reason})")
        return before(self, problem)

    protocol._on_handshake_complete = complete
    return True


def sockets(host: str, port: int) -> list[socket.socket]:
    """The sockets of the server: on `host`, and always on 127.0.0.1, where the operator connects."""
    wanted = dict.fromkeys((host, "127.0.0.1") if host not in ("0.0.0.0", "::", "localhost") else (host,))
    found: list[socket.socket] = []
    try:
        for name in wanted:
            family, kind, number, _, address = socket.getaddrinfo(
                name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            one = socket.socket(family, kind, number)
            found.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            one.bind(address)
            one.listen(128)
    except OSError:
        for one in found:
            one.close()
        raise
    return found


def main() -> None:
    die_with_parent()
    output = os.fdopen(os.dup(1), "w", buffering=1)  # `serve` reads it
    os.dup2(2, 1)  # the output of Flower goes to its log

    def say(line: str) -> None:
        with suppress(OSError, ValueError):  # the reader is gone
            output.write(line + "\n")

    import uvicorn
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
    from flwr.superlink.main import create_app

    from torso.federation.flower.nodes import persist_nodes_in

    config = _parse_superlink_lifespan_config()
    if not config.superexec_auth_secret:
        sys.exit("--superexec-auth-secret-file is needed: who holds the secret commands the server")
    secret = config.superexec_auth_secret.decode("ascii").strip()
    persist_nodes_in(Path(os.environ[NODES]))
    tell_failed_handshakes(say)
    app = create_app(config, SuperLinkLifespan)
    factory = app.state.linkstate_factory
    gate = AccessControl(
        app, secret, lambda headers: key_status(headers, factory.state, config.enable_supernode_auth), say
    )
    server = uvicorn.Server(
        uvicorn.Config(
            gate,
            loop="asyncio",  # the loop that `tell_failed_handshakes` patches
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=2,
            ssl_keyfile=config.ssl_keyfile,
            ssl_certfile=config.ssl_certfile,
        )
    )
    asyncio.run(server.serve(sockets=sockets(config.host, config.port)))


if __name__ == "__main__":
    main()
