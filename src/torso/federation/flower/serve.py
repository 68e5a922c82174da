"""`torso federation serve`: runs Flower's SuperLink as a child process."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import httpx

from torso.errors import RequestError, RunFailed
from torso.federation.flower import children
from torso.federation.flower.access_control import TRAFFIC
from torso.federation.flower.calls import get_json
from torso.federation.flower.nodes import read
from torso.federation.flower.superlink import NODES, sockets
from torso.federation.folder import ServerFolder
from torso.signals import terminated_as_interrupted

Say = Callable[[str], None]
_PATIENCE = 120.0  # seconds until it answers; the import of Flower alone takes two


def serve(place: ServerFolder, say: Say | None = None) -> None:
    """Run the server until this process is interrupted or terminated. `say` prints a line, such as a refusal."""
    say = say or _print
    with terminated_as_interrupted(), serving(place, say) as child, suppress(KeyboardInterrupt):
        child.wait()
        raise RunFailed(f"the server has ended by itself. Its last words:\n{children.tail(place.log)}")


@contextmanager
def serving(place: ServerFolder, say: Say) -> Iterator[subprocess.Popen[str]]:
    """Run the server in the block; it answers when the block begins."""
    place.check_certificates()
    read(place.nodes)
    _check_port(place)
    child = children.start(
        "torso.federation.flower.superlink",
        _arguments(place),
        place.log,
        place.private / "flower",
        {NODES: str(place.nodes)},
        stdout=subprocess.PIPE,
    )
    relay = threading.Thread(target=_relay, args=(child, say), daemon=True)
    relay.start()
    try:
        _wait_until_it_answers(place, child)
        say(greeting(place))
        yield child
    finally:
        children.stop(child)
        relay.join(2)


def greeting(place: ServerFolder) -> str:
    """One line about the address and the protection of the server, in rich's markup."""
    where = f"serving {place.path.name} at {place.clients.server} (listening on {place.settings.listen})"
    if place.insecure:
        return f"{where}. [bold red]INSECURE: no TLS, no authentication. Anybody who reaches this port may join.[/]"
    return f"{where}. TLS and authentication of clients are on. Ctrl-C ends it."


def _arguments(place: ServerFolder) -> list[str]:
    if place.insecure:
        protection = ["--insecure"]
    else:
        protection = [
            *("--ssl-certfile", str(place.certificate), "--ssl-keyfile", str(place.key)),
            *("--ssl-ca-certfile", str(place.ca), "--enable-supernode-auth"),
        ]
    return [
        *protection,
        *("--host", place.settings.listen, "--port", str(place.settings.port)),
        *("--isolation", "process", "--disable-runtime-dependency-installation"),
        *("--superexec-auth-secret-file", str(place.secret_file)),
    ]


def _check_port(place: ServerFolder) -> None:
    try:
        for one in sockets(place.settings.listen, place.settings.port):
            one.close()
    except OSError as error:
        raise RequestError(
            f"listen = {place.settings.listen!r}, port = {place.settings.port} in "
            f"{str(place.private / 'server.toml')!r} cannot be listened on: {error.strerror or error}. Is the server "
            "running already? Otherwise give another port there and in client/federation.toml."
        ) from None


def _wait_until_it_answers(place: ServerFolder, child: subprocess.Popen[str]) -> None:
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            get_json(place, TRAFFIC)
        except (RequestError, httpx.HTTPError):
            if child.poll() is not None or time.monotonic() > until:
                raise RunFailed(f"the server did not start. Its last words:\n{children.tail(place.log)}") from None
            time.sleep(0.1)
        else:
            return


def _relay(child: subprocess.Popen[str], say: Say) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        say(_plain(line.rstrip("\n")))


def _plain(line: str) -> str:
    """The text, escaped for rich's markup."""
    from rich.markup import escape

    return escape(line)


def _print(line: str) -> None:
    from rich.console import Console

    Console(soft_wrap=True, highlight=False).print(line)
    sys.stdout.flush()
