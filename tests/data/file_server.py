"""A file server on loopback that drops connections, answers with errors or ignores ranges if a test asks for it."""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class Files:
    """The state of the server. `script`: one entry per request, used from the front; without one it sends the file.

    An entry is a status (500), `drop N` (the connection ends after N bytes of the body), `whole` (ranges are ignored),
    `wrong range`, `endless` and `short` (no length; twice the file, or 20 bytes of it) or `to URL` (a redirect)."""

    content: dict[str, bytes] = field(default_factory=dict)
    script: list[int | str] = field(default_factory=list)
    etag: str = '"one"'
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # path, Range, If-Range
    url: str = ""


@contextmanager
def serving(certificate: Path | None = None, key: Path | None = None) -> Iterator[Files]:
    files = Files()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            _answer(self, files)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *args: None  # type: ignore[method-assign]  # a client that does not trust it goes away
    server.daemon_threads = True
    files.url = f"http{'s' if certificate else ''}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield files
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(request: BaseHTTPRequestHandler, files: Files) -> None:
    asked, condition = request.headers.get("Range", ""), request.headers.get("If-Range", "")
    files.asked.append((request.path, asked, condition))
    act = files.script.pop(0) if files.script else ""
    content = files.content.get(request.path)
    request.close_connection = True
    if isinstance(act, int) or content is None:
        request.send_error(act if isinstance(act, int) else 404)
        return
    if act.startswith("to "):
        request.send_response(302)
        request.send_header("Location", act.removeprefix("to "))
        request.send_header("Content-Length", "0")
        request.end_headers()
        return
    if act in ("endless", "short"):
        request.send_response(200)
        request.end_headers()
        request.wfile.write(content * 2 if act == "endless" else content[:20])
        return
    start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
    if act == "whole" or condition not in ("", files.etag):
        start = 0
    if start >= len(content) > 0:
        request.send_error(416)
        return
    body = content[start:]
    request.send_response(206 if start else 200)
    request.send_header("ETag", files.etag)
    request.send_header("Content-Length", str(len(body)))
    if start:
        first = start + (act == "wrong range")
        request.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
    request.end_headers()
    dropped = re.fullmatch(r"drop (\d+)", act)
    request.wfile.write(body[: int(dropped[1])] if dropped else body)
