"""The server's side of the transport: a Flower run whose ServerApp is this process."""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Self

import httpx
from flwr.app import Message, Metadata
from flwr.app.message import make_message
from flwr.common.constant import Status
from flwr.common.serde import run_from_proto
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, StopRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import GetNodesRequest, PullAppMessagesRequest, PullTaskInputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.superlink.grid.http_grid import HttpGrid

import torso
from torso.errors import InUse, NoWorkerLeft, RequestError, RunFailed
from torso.federation.flower.calls import TaskToken, control_client, flower_message, readable_errors, runtime_client
from torso.federation.flower.patches import poll_interval
from torso.federation.flower.payload import KIND, NotOurs, pack, unpack
from torso.federation.flower.tasks import claim, finish, heartbeats
from torso.federation.folder import ServerFolder
from torso.federation.transport import MissingAnswer
from torso.locks import lock

_SERVER = Node(node_id=1)  # Flower's number for the server itself
_AT_ONCE = 64 * 2**20  # bytes of messages that are pushed together
_LOOK = 1.0  # seconds between two checks of the connections while waiting for answers
_PATIENCE = 30.0  # seconds until the started run can be claimed
_SLACK = 5.0  # seconds that a message is valid after its deadline, since clocks differ


@dataclass
class _Reply:
    """An answer that is on its way."""

    tree: ObjectTree  # all its parts
    missing: list[str]  # ids of the parts that have not arrived
    parts: dict[str, bytes] = field(default_factory=dict)  # id → content


class FlowerServerLink:
    """A `ServerLink` over Flower. `poll`: the shortest time in seconds between two polls for answers."""

    def __init__(self, place: ServerFolder, poll: float = 0.05) -> None:
        self.place = place
        self.poll = poll
        self.sent = 0  # bytes of messages, without Flower's overhead
        self.received = 0  # the same
        self._open = ExitStack()
        self._token = TaskToken()

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            opened.enter_context(_alone(self.place))
            with readable_errors(self.place):
                self._client = opened.enter_context(
                    runtime_client(self.place.own_address, self.place.secret.encode(), self._token, self.place)
                )
                server = opened.enter_context(control_client(self.place))
                _stop_what_is_left(server)
                fab = Fab(content=_bundle())
                self._run = server.StartRun(StartRunRequest(fab=fab)).run_id
                self._claim()
                opened.callback(self._finish)
                task = self._client.PullTaskInput(PullTaskInputRequest())
            self._lost = opened.enter_context(heartbeats(self._client))
            self._grid = HttpGrid(self.place.own_address, token=self._token.token)
            self._grid._client = self._client  # it has the operator's secret, and other retries
            self._grid.set_run(run_from_proto(task.run))
            self._failure = "the run was interrupted"
            self._open = opened.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        kind = exc[0] if exc else None
        self._failure = f"the run ended with {kind.__name__}" if isinstance(kind, type) else ""
        self._open.close()

    def there(self) -> dict[int, str]:
        with self._running():
            return {node.node_id: node.name for node in self._client.GetNodes(GetNodesRequest()).nodes}

    def exchange(self, messages: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes | MissingAnswer]]:
        began = time.monotonic()
        connections = self._connections()
        waiting: dict[str, int] = {}  # id of the message → connection
        for batch in _batches(messages):
            for node, number in zip(batch, self._push(batch, messages, seconds), strict=True):
                if number:
                    waiting[number] = node
                    self.sent += len(messages[node])
                else:
                    yield node, MissingAnswer("it is not admitted, or not any more")
        replies: dict[str, _Reply] = {}
        looked = time.monotonic()
        while waiting:
            self._pull(waiting, replies)
            for number in [number for number, reply in replies.items() if not reply.missing]:
                answer = self._answer(replies.pop(number))
                if isinstance(answer, MissingAnswer):
                    self._withdraw(number)
                yield waiting.pop(number), answer
            now = time.monotonic()
            if now - looked > _LOOK:
                looked = now
                for number, node in self._restarted(waiting, connections).items():
                    replies.pop(number, None)
                    del waiting[number]
                    self._withdraw(number)
                    yield node, MissingAnswer("it was started anew while it had the message")
            if waiting and time.monotonic() - began >= seconds:
                for number, node in waiting.items():
                    self._withdraw(number)
                    yield node, MissingAnswer(f"it has not answered within {seconds:g} s")
                return
            if waiting:
                left = began + seconds - time.monotonic()
                time.sleep(max(min(max(self.poll, poll_interval(now - began, 1.0)), left), 0.0))

    def _push(self, batch: list[int], messages: Mapping[int, bytes], seconds: float) -> list[str]:
        """Send messages to some connections. Returns their ids, "" for a connection that is not admitted."""
        records = {id(messages[node]): pack(messages[node]) for node in batch}  # equal bytes are packed once
        wrapped = [make_message(self._metadata(node, seconds), records[id(messages[node])]) for node in batch]
        with self._running():
            return list(self._grid.push_messages(wrapped))

    def _metadata(self, node: int, seconds: float) -> Metadata:
        return Metadata(
            run_id=self._run,
            message_id="",
            src_node_id=_SERVER.node_id,
            dst_node_id=node,
            reply_to_message_id="",
            group_id="",
            created_at=time.time(),
            ttl=seconds + _SLACK,  # seconds; then it is not delivered any more
            message_type=KIND,
        )

    def _pull(self, waiting: Mapping[str, int], replies: dict[str, _Reply]) -> None:
        """Fetch the answers and parts that have arrived since the last poll.

        Flower's own function would block until all parts of every answer are there."""
        with self._running():
            asked = [number for number in waiting if number not in replies]
            if asked:
                found = self._client.PullMessages(PullAppMessagesRequest(message_ids=asked))
                for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                    if message.metadata.reply_to_message_id in asked:
                        part_ids = [part.object_id for part in iterate_object_tree(tree)]
                        replies[message.metadata.reply_to_message_id] = _Reply(tree, list(dict.fromkeys(part_ids)))
            for reply in replies.values():
                self._pull_parts(reply)

    def _pull_parts(self, reply: _Reply) -> None:
        while reply.missing:
            wanted = PullObjectRequest(node=_SERVER, run_id=self._run, object_id=reply.missing[0])
            found = self._client.PullObject(wanted)
            if not found.object_found:
                reply.parts.clear()
                reply.missing.clear()  # the client has given up sending it
            elif found.object_available:
                reply.parts[reply.missing.pop(0)] = found.object_content
            else:
                return
        if reply.parts:
            self._client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=_SERVER, run_id=self._run, message_object_id=reply.tree.object_id)
            )

    def _withdraw(self, number: str) -> None:
        """Cancel a message that has not been delivered completely: the server drops its bytes."""
        with self._running():
            self._client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=_SERVER, run_id=self._run, message_object_id=number)
            )

    def _answer(self, reply: _Reply) -> bytes | MissingAnswer:
        """The bytes of an answer that has arrived completely."""
        if not reply.parts:
            return MissingAnswer("it stopped in the middle of its answer")
        try:
            message = inflate_object_from_contents(reply.tree.object_id, reply.parts)
            if not isinstance(message, Message):
                raise NotOurs(f"it is {type(message).__name__}, no message")
            if message.has_error():
                return MissingAnswer(_in_words(message.error.code, message.error.reason))
            data = unpack(message)
        except Exception as error:  # a client may have sent anything
            return MissingAnswer(f"its answer cannot be read: {error}")
        self.received += len(data)
        return data

    def _connections(self) -> dict[int, str]:
        """Connection → the time when it was established."""
        with self._running():
            return {n.node_id: n.last_activated_at for n in self._client.GetNodes(GetNodesRequest()).nodes}

    def _restarted(self, waiting: Mapping[str, int], before: dict[int, str]) -> dict[str, int]:
        """The messages whose client has reconnected since the last check, and so has lost them."""
        now = self._connections()
        return {
            number: node
            for number, node in waiting.items()
            if node in now and now[node] != before.setdefault(node, now[node])
        }

    def _claim(self) -> None:
        """Claim the task of the run that was just started."""
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            task = claim(self._client, self._token, TaskType.SERVER_APP)
            if task is None:
                time.sleep(0.05)
            elif task.run_id == self._run:
                return
            else:
                finish(self._client, "left over by a process that is gone")
        raise RunFailed(f"the run could not be started on the server within {_PATIENCE:.0f} s. See {self.place.log}")

    def _finish(self) -> None:
        self._client._retry_invoker = None  # no retries if the server is gone
        finish(self._client, self._failure)

    def _running(self) -> _Running:
        return _Running(self)


class _Running:
    """A context for requests of a run: if the server is gone or has ended the run, NoWorkerLeft is raised."""

    def __init__(self, link: FlowerServerLink) -> None:
        self._link = link

    def __enter__(self) -> None:
        if self._link._lost.is_set():
            raise NoWorkerLeft("the server has given the run up: this process was silent for too long")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        place = self._link.place
        if isinstance(error, httpx.TransportError):
            raise NoWorkerLeft(
                f"the server at {place.own_address} is gone ({error}). Start it again with `torso federation serve "
                f"{place.path}`"
            ) from None
        if isinstance(error, httpx.HTTPStatusError):
            raise NoWorkerLeft(f"the server refuses to go on with the run: {flower_message(error)}") from None


def _in_words(code: int, reason: str | None) -> str:
    """An error message of Flower as a reason for a missing answer."""
    from flwr.common.constant import ErrorCode

    known = {
        ErrorCode.NODE_UNAVAILABLE: "its connection is gone",
        ErrorCode.MESSAGE_UNAVAILABLE: "the message was withdrawn",
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "its answer came too late",
        ErrorCode.CLIENT_APP_CRASHED: "its process ended before it had answered",
    }
    return known.get(code) or " ".join((reason or "").split())[:1000] or f"an error of Flower's, {code}"


def _batches(messages: Mapping[int, bytes]) -> Iterator[list[int]]:
    """Groups of connections whose messages together have at most _AT_ONCE bytes; equal objects count once."""
    batch: list[int] = []
    held: dict[int, int] = {}  # id of the bytes → their length
    for node, data in messages.items():
        held[id(data)] = len(data)
        if batch and sum(held.values()) > _AT_ONCE:
            yield batch
            batch, held = [], {id(data): len(data)}
        batch.append(node)
    if batch:
        yield batch


def _bundle() -> bytes:
    """The app bundle that Flower requires: an empty app. Nothing of it is installed or run."""
    text = f"""\
[project]
name = "torso"
version = "{torso.__version__}"
description = "Nothing: Torso's own processes answer"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "torso"

[tool.flwr.app.components]
serverapp = "torso:none"
clientapp = "torso:none"

[tool.flwr.app.config]
"""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as bundle:
        bundle.writestr(zipfile.ZipInfo("pyproject.toml"), text)
    return file.getvalue()


def _stop_what_is_left(server: ControlHttpClient) -> None:
    """Stop the runs of processes that are gone. `_alone` ensures that no other process has a run."""
    for number, run in server.ListRuns(ListRunsRequest()).run_dict.items():
        if run.status.status != Status.FINISHED:
            try:
                server.StopRun(StopRunRequest(run_id=number))
            except httpx.HTTPStatusError:
                continue  # it has finished in the meantime


@contextmanager
def _alone(place: ServerFolder) -> Iterator[None]:
    """Hold a lock in the block: one run at a time."""
    try:
        file = (place.private / "run.lock").open("a")
    except OSError as error:
        raise RequestError(f"{str(place.private)!r} cannot be written: {error}") from None
    with file:
        if lock(file) is False:
            raise InUse(
                f"{str(place.path)!r}: another process trains with the clients of this federation. Wait until it "
                "ends, or stop it."
            )
        yield
