"""The client's side of the transport: Flower's SuperNode as a child process, whose tasks this process answers."""

from __future__ import annotations

import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.supercore.constant import TaskType
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message

from torso.errors import RequestError, RunFailed
from torso.federation.flower import children
from torso.federation.flower.access_control import KeyStatus
from torso.federation.flower.admission import AdmissionClient, ServerUnreachable
from torso.federation.flower.calls import TaskToken, runtime_client
from torso.federation.flower.patches import HEARTBEAT, SHORTEST, poll_interval, quicken_parts
from torso.federation.flower.payload import NotOurs, pack, unpack
from torso.federation.flower.tasks import claim, finish, heartbeats
from torso.federation.folder import ClientFolder, write_private
from torso.federation.keys import check_name, own_key
from torso.federation.reasons import reason_of
from torso.federation.transport import Answer

Say = Callable[[str], None]
_START = 120.0  # seconds for the SuperNode to start and connect
_GONE = 2.0 * HEARTBEAT + 5  # seconds until the server has noticed that another process with this key is gone
_LOOK = 5.0  # seconds between two checks of the server while no message comes
_ATTEMPTS = 3  # to start the SuperNode: another program may take the free port in the meantime
_MOMENT = 3.0  # seconds until the SuperNode has stored the message of a task that it has offered
_AGAIN = 2.0  # seconds between two attempts to connect


class FlowerClientLink:
    """A `ClientLink` over Flower. `say` prints a line when the server goes and when it comes back."""

    def __init__(self, place: ClientFolder, name: str, say: Say | None = None) -> None:
        self.place = place
        self.name = check_name(name)
        self.sent = 0  # bytes of messages, without Flower's overhead
        self.received = 0  # the same
        self._say = say or (lambda line: None)
        self._open = ExitStack()
        self._token = TaskToken()
        self._child: subprocess.Popen[str] | None = None
        self._server = ""  # id of the server process that the SuperNode has connected to; a restart changes it
        self._unseen = 0  # consecutive checks in which the server did not count this client as connected

    def __enter__(self) -> Self:
        quicken_parts()
        with ExitStack() as opened:
            key = None if self.place.insecure else own_key(self.place, self.name)
            self._key = key
            self._greeter = AdmissionClient(self.place, key)
            opened.callback(self._greeter.close)
            self._home = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="torso-")))
            self._secret = secrets.token_hex(32)
            write_private(self._home / "secret", self._secret.encode())
            opened.callback(self._stop)
            try:
                self._ask_to_join()
                self._start()
            except ServerUnreachable as error:
                raise RequestError(str(error)) from None
            self._open = opened.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def serve(self, answer: Answer) -> None:
        since = looked = time.monotonic()
        while True:
            self._keep_connected()
            try:
                task = claim(self._client, self._token, TaskType.CLIENT_APP)
                if task is not None:
                    self._do(answer)
                    since = looked = time.monotonic()
                    continue
            except (httpx.HTTPError, _UnansweredMessage):
                self._stop()  # `_keep_connected` starts another
                continue
            now = time.monotonic()
            if now - looked > _LOOK:
                self._look()
                looked = time.monotonic()
            time.sleep(poll_interval(now - since, 0.5))

    def _do(self, answer: Answer) -> None:
        """Answer one message. The SuperNode gets a reply in any case: it would wait for it for ever."""
        with heartbeats(self._client):
            try:
                message, context, _, _ = pull_task_input(RetryingRuntime(self._client))  # type: ignore[arg-type]
            except Exception as error:
                finish(self._client, "the message could not be read")
                raise _UnansweredMessage from error
            failure = ""
            try:
                data = unpack(message)
                self.received += len(data)
                result = answer(data)
                reply = Message(pack(result), reply_to=message)
                self.sent += len(result)
            except Exception as error:
                failure = error_for_server(error)
                reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, failure), reply_to=message)
            try:
                push_message(self._client, reply, context)
            except Exception as error:
                raise _UnansweredMessage from error
            finish(self._client, failure)

    def _keep_connected(self) -> None:
        """Restart the SuperNode if it has ended; wait until the server is there. RequestError if it refuses."""
        if self._child is not None and self._child.poll() is None:
            return
        self._stop()
        told = False
        while True:
            try:
                self._ask_to_join()
                self._start()
            except ServerUnreachable:
                if not told:
                    self._say("the server does not answer; waiting until it does")
                told = True
                time.sleep(_AGAIN)
            else:
                if told:
                    self._say("the server is there again")
                return

    def _look(self) -> None:
        """Check the server, and stop the SuperNode if it must be restarted.

        If the server is gone, the SuperNode reconnects by itself but prints nothing; this method tells the user."""
        told = False
        while self._child is not None and self._child.poll() is None:
            try:
                found = self._greeter.ask(join=False)
            except ServerUnreachable:
                if not told:
                    self._say("the server does not answer; waiting until it does")
                told = True
                time.sleep(_AGAIN)
                continue
            if told:
                self._say("the server is there again")
            self._unseen = self._unseen + 1 if found.state == "admitted" else 0
            if found.state not in ("connected", "admitted", "open") or self._unseen > 2:
                self._stop()  # the server does not admit it any more, or does not get its heartbeats
            elif found.server != self._server:
                self._stop()  # for half a minute it would send old replies to a server that does not know the requests
            return

    def _ask_to_join(self) -> None:
        """Wait until this client may connect; RequestError if the server refuses it."""
        until = time.monotonic() + _GONE
        while True:
            found = self._greeter.ask(join=True)
            if found.state in ("admitted", "open"):
                return
            if found.state != "connected" or time.monotonic() > until:
                raise RequestError(f"the server at {self.place.settings.server} refuses: {self._advice(found)}")
            time.sleep(_AGAIN)

    def _advice(self, found: KeyStatus) -> str:
        """The reason of a refusal, and what the user can do."""
        public = f"{self.place.key(self.name)}.pub"
        advice = {
            "unknown": f"Send {public} to the server's operator, who lets it in with `torso federation admit`.",
            "revoked": "Ask the server's operator; a revoked key stays revoked.",
            "connected": "Expected: one process for each key.",
            "clock": f"Expected: a clock that is right; this machine's differs by {abs(found.clock):.0f} s.",
        }
        return f"{found.words}. {advice.get(found.state, '')}".strip()

    def _start(self) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                self._start_once()
                return
            except RunFailed:
                self._stop()
                if attempt == _ATTEMPTS - 1:
                    raise
            except BaseException:
                self._stop()
                raise

    def _start_once(self) -> None:
        port = _free_port()
        server = ["--superlink", self.place.settings.server]
        if self.place.insecure:
            server.append("--insecure")
        else:
            server += ["--root-certificates", str(self.place.ca), "--auth-supernode-private-key", str(self._key)]
        log = self.place.log(self.name)
        self._child = children.start(
            "torso.federation.flower.supernode",
            [
                *server,
                *("--isolation", "process", "--host", "127.0.0.1", "--port", str(port)),
                *("--superexec-auth-secret-file", str(self._home / "secret")),
            ],
            log,
            self._home,
            {},
        )
        self._client = runtime_client(f"127.0.0.1:{port}", self._secret.encode(), self._token)
        self._wait_until_connected(log)

    def _wait_until_connected(self, log: Path) -> None:
        until = time.monotonic() + _START
        while True:
            assert self._child is not None
            if self._child.poll() is not None or time.monotonic() > until:
                raise RunFailed(f"Flower's SuperNode did not start. Its last words:\n{children.tail(log)}")
            if self._answers():
                found = self._greeter.ask(join=False)
                if found.state in ("connected", "open"):
                    self._server = found.server
                    return
            time.sleep(0.1)

    def _answers(self) -> bool:
        address = httpx.URL(self._client._base_url)
        try:
            socket.create_connection((address.host, address.port or 0), timeout=1).close()
        except OSError:
            return False
        return True

    def _stop(self) -> None:
        if self._child is not None:
            children.stop(self._child)
            self._client.close()
        self._child = None


class RetryingRuntime:
    """A Runtime API client that repeats `PullMessages` until the message is there.

    The SuperNode offers a task a moment before it has stored the task's message."""

    def __init__(self, client: Any, seconds: float = _MOMENT) -> None:
        self._client, self._seconds = client, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def PullMessages(self, request: Any) -> Any:  # overrides Flower's method
        until = time.monotonic() + self._seconds
        while True:
            found = self._client.PullMessages(request)
            if found.messages_list or time.monotonic() > until:
                return found
            time.sleep(SHORTEST)


class _UnansweredMessage(Exception):
    """The SuperNode waits for a reply that it will not get, so it must be restarted."""


def error_for_server(error: Exception) -> str:
    """The description of an error for the server."""
    if isinstance(error, NotOurs):
        return f"it was sent something else than a message of Torso's: {error}"
    return reason_of(error)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
