"""A web server for this machine's own browser: on 127.0.0.1 only, until Ctrl-C."""

from __future__ import annotations

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from torso.errors import RequestError

HERE = "127.0.0.1"
_OWN_NAMES = (HERE, "localhost")


class LocalHandler(BaseHTTPRequestHandler):
    """Answers this machine's own pages."""

    server_version, sys_version = "torso", ""
    timeout = 30  # seconds that a request may stand still

    def is_local(self) -> bool:
        """Whether the request is for this machine by its own name and of a page of this server; else it is refused.

        Another site's name may be made to point here, and another site's page may send a request here."""
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        origin = self.headers.get("Origin")
        if host in _OWN_NAMES and (origin is None or self._is_own(origin)):
            return True
        self.answer(HTTPStatus.FORBIDDEN, "text/plain", "only for this machine")
        return False

    def _is_own(self, origin: str) -> bool:
        try:
            found = urlsplit(origin)
            port = found.port
        except ValueError:
            return False
        assert isinstance(self.server, HTTPServer)
        return (found.scheme, port) == ("http", self.server.server_port) and found.hostname in _OWN_NAMES

    def answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """The terminal stays quiet."""


def listen(handler: type[LocalHandler], port: int) -> ThreadingHTTPServer:
    """A server that is ready to `serve_forever`; port 0: any free one."""
    try:
        return ThreadingHTTPServer((HERE, port), handler)
    except (OSError, OverflowError) as error:
        raise RequestError(
            f"--port {port} cannot be used: {str(error).rstrip('.')}. Give another, or 0 for any free one."
        ) from None
