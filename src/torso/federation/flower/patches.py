"""Patches of Flower's private code; all of them are in this file.

Waits that have no setting are made shorter. Flower's SuperNode sleeps 3 s if no message has come, and 0.5 s while its
client works; it counts as gone after 60 s without a heartbeat; it waits at least 1 s for a part of a message that is
still on its way.

A message that a SuperNode cannot receive any more is given up."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

SHORTEST = 0.03  # seconds between two polls on this machine
SHORTEST_AWAY = 0.08  # seconds between two polls of the server, which has other clients too
SHARE = 0.05  # of the time waited so far: the wait until the next poll
HEARTBEAT = 15  # seconds; Flower accepts 10 to 1800, and counts a node as gone after twice this time
RETRY = 4  # longest wait in seconds between attempts to reach a server that does not answer


def poll_interval(waited: float, longest: float, shortest: float = SHORTEST) -> float:
    """Seconds until the next poll: a twentieth of the time waited so far, between two limits.

    So an answer that comes soon is seen soon, and an idle process polls rarely."""
    return min(max(waited * SHARE, shortest), longest)


class ShorterSleeps:
    """A replacement for the module `time` in the SuperNode's loop, with shorter sleeps; never longer than Flower's."""

    def __init__(self) -> None:
        self._since: float | None = None  # when the current wait for the server began

    def sleep(self, seconds: float) -> None:
        if seconds < 1:  # it waits for its own client: polls on this machine are cheap
            self._since = None
            return time.sleep(min(seconds, SHORTEST))
        now = time.monotonic()
        self._since = self._since or now
        return time.sleep(poll_interval(now - self._since, seconds, SHORTEST_AWAY))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def quicken() -> list[str]:
    """Shorten the waits of a SuperNode. Returns the names that this version of Flower does not have."""
    return [path for path, value in _values().items() if not _replaced(path, value)] + quicken_parts()


def quicken_parts() -> list[str]:
    """Shorten the waits for parts of a message, in a SuperNode or a client. Returns the names that Flower lacks."""
    absent = []
    for name in ("pull_objects", "pull_and_inflate_object_from_tree"):
        path = f"flwr.supercore.inflatable.inflatable_utils.{name}"
        defaults = getattr(_find(path), "__kwdefaults__", None) or {}
        if not {"initial_backoff", "backoff_cap"} <= set(defaults):
            absent.append(path)
            continue
        defaults.update(initial_backoff=SHORTEST, backoff_cap=1.0)
    return absent


class MessageGivenUp(Exception):
    """Raised for a message whose run has ended before all its parts arrived."""


def give_up_what_has_ended() -> bool:
    """Patch a SuperNode: if a run ends while one of its messages is on its way, give up the message.

    Returns whether the patch was possible. Flower gives up a message after every other failure, but its exception for
    an ended run is not an `Exception`, so the message and its task remain. The client then asks for the parts for
    minutes; or it replies, and from then on each of its replies is sent one message too late."""
    path = "flwr.supernode.start_client_internal._pull_and_store_message"
    pull, ended = _find(path), _find("flwr.supercore.run.RunNotRunningException")
    if pull is None or ended is None:
        return False

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            try:
                return call(*args)
            except ended as error:
                raise MessageGivenUp("the run has ended") from error

        return called

    def pull_or_give_up(
        *, state: Any, pull_object: Callable[..., Any], confirm_message_received: Callable[..., Any], **others: Any
    ) -> Any:
        found = pull(
            state=state,
            pull_object=failing(pull_object),
            confirm_message_received=failing(confirm_message_received),
            **others,
        )
        if found is None:  # there is no message, so stored ones are replies to a message that was given up
            state.delete_messages()
        return found

    return _replaced(path, pull_or_give_up)


def _values() -> dict[str, Any]:
    return {
        "flwr.supernode.start_client_internal.time": ShorterSleeps(),
        "flwr.supernode.fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL": HEARTBEAT,
        "flwr.supercore.heartbeat.HEARTBEAT_DEFAULT_INTERVAL": HEARTBEAT,
        "flwr.supercore.retry.http_retry.MAX_RETRY_DELAY": RETRY,
    }


def _replaced(path: str, value: Any) -> bool:
    if _find(path) is None:
        return False
    module, _, name = path.rpartition(".")
    setattr(import_module(module), name, value)
    return True


def _find(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name, None)
    except ImportError:
        return None
