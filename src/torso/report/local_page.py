"""A local web server on 127.0.0.1, for pages that only a browser on this machine may open."""

from __future__ import annotations

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from torso.errors import RequestError

HERE = "127.0.0.1"
_OWN_NAMES = (HERE, "localhost")


class LocalHandler(BaseHTTPRequestHandler):
    """Answers requests from this machine and refuses all others."""

    server_version, sys_version = "torso", ""
    timeout = 30  # seconds without data after which a request is dropped

    def is_local(self) -> bool:
        """Whether the request names this machine as its host and comes from a page of this server. If not, refuse it.

        This guards against other sites: their name may resolve to this machine, and their pages may send requests here.
        """
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
        """Print nothing for a request."""


def listen(handler: type[LocalHandler], port: int) -> ThreadingHTTPServer:
    """A server that is ready to `serve_forever`; port 0: any free one."""
    try:
        return ThreadingHTTPServer((HERE, port), handler)
    except (OSError, OverflowError) as error:
        raise RequestError(
            f"--port {port} cannot be used: {str(error).rstrip('.')}. Give another, or 0 for any free one."
        ) from None
