"""What Torso changes inside Flower: waits that have no setting are made shorter, and a message that a SuperNode cannot
get any more is given up. Every private detail of Flower that is changed is changed here.

Flower's SuperNode sleeps 3 s where no message has come and 0.5 s while its client works; it counts as gone after 60 s
without a sign of life; who asks for a part of a message that is still on its way waits at least 1 s."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

SHORTEST = 0.03  # seconds between two looks on this machine
SHORTEST_AWAY = 0.08  # seconds between two looks at the server, which has other clients, too
SHARE = 0.05  # of the time that somebody has waited already
HEARTBEAT = 15  # seconds; Flower accepts 10 to 1800, and counts a node as gone after twice as many
RETRY = 4  # seconds at most between attempts to reach a server that does not answer


def nap(waited: float, longest: float, shortest: float = SHORTEST) -> float:
    """Seconds until the next look: a twentieth of the time that one has waited. What comes quickly is seen quickly, and
    who idles for minutes asks rarely."""
    return min(max(waited * SHARE, shortest), longest)


class Naps:
    """Stands in for the module `time` in the SuperNode's loop; it never sleeps longer than Flower would."""

    def __init__(self) -> None:
        self._since: float | None = None  # it waits for the server

    def sleep(self, seconds: float) -> None:
        if seconds < 1:  # for its own client, which costs nobody anything
            self._since = None
            return time.sleep(min(seconds, SHORTEST))
        now = time.monotonic()
        self._since = self._since or now
        return time.sleep(nap(now - self._since, seconds, SHORTEST_AWAY))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def quicken() -> list[str]:
    """Shorten a SuperNode's waits; the names of those that this Flower does not have, and that are left alone."""
    return [path for path, value in _values().items() if not _replaced(path, value)] + quicken_parts()


def quicken_parts() -> list[str]:
    """The same for who waits for parts of a message: a SuperNode, and a client, which loads nothing of its loop."""
    absent = []
    for name in ("pull_objects", "pull_and_inflate_object_from_tree"):
        path = f"flwr.supercore.inflatable.inflatable_utils.{name}"
        defaults = getattr(_find(path), "__kwdefaults__", None) or {}
        if not {"initial_backoff", "backoff_cap"} <= set(defaults):
            absent.append(path)
            continue
        defaults.update(initial_backoff=SHORTEST, backoff_cap=1.0)
    return absent


class GivenUp(Exception):
    """A message of a run that has ended before all of it was there."""


def give_up_what_has_ended() -> bool:
    """In a SuperNode: where a run ends while a message of it is on its way, the message is given up, and whoever waits
    for it is told so. Whether it could be changed.

    Flower has this way for every failure but this one, which is no `Exception` there: the message stays, and its task.
    The client then asks for its parts for minutes; or it answers, and from then on every answer of this client is sent
    one message too late."""
    path = "flwr.supernode.start_client_internal._pull_and_store_message"
    pull, ended = _find(path), _find("flwr.supercore.run.RunNotRunningException")
    if pull is None or ended is None:
        return False

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            try:
                return call(*args)
            except ended as error:
                raise GivenUp("the run has ended") from error

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
        if found is None:  # it has no message: what is there answers one that was given up
            state.delete_messages()
        return found

    return _replaced(path, pull_or_give_up)


def _values() -> dict[str, Any]:
    return {
        "flwr.supernode.start_client_internal.time": Naps(),
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
