"""`python -m torso.federation.flower.supernode …`: Flower's SuperNode, with its own flags, which looks more often.

Flower's loop sleeps 3 s where no message has come and 0.5 s while its client works, and it counts as gone after 60 s
without a sign of life. None of this has a setting."""

from __future__ import annotations

import os
import time
from importlib import import_module
from typing import Any

from torso.federation.flower.children import die_with_parent

SHORTEST = 0.05  # seconds
SHARE = 0.1  # of the time that it has waited already
HEARTBEAT = 15  # seconds; Flower accepts 10 to 1800, and counts a node as gone after twice as many
RETRY = 4  # seconds at most between attempts to reach a server that does not answer
_UNPATCHED = "TORSO_FLOWER_NAPS"  # for bench/federation_floor.py: what Flower does on its own


class Naps:
    """Stands in for the module `time` in Flower's loop. It never sleeps longer than Flower would, and otherwise a tenth of
    the time that it has been waiting: quick rounds are seen at once, and who idles for minutes asks every 3 s."""

    def __init__(self) -> None:
        self._kind, self._since = 0.0, 0.0

    def sleep(self, seconds: float) -> None:
        now = time.monotonic()
        if seconds != self._kind:  # another of the two sleeps: something has happened in between
            self._kind, self._since = seconds, now
        time.sleep(min(max((now - self._since) * SHARE, SHORTEST), seconds))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def quicken() -> list[str]:
    """Give Flower's modules shorter waits; the names of those that it no longer has, and that are left alone."""
    values = {
        "flwr.supernode.start_client_internal.time": Naps(),
        "flwr.supernode.fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL": HEARTBEAT,
        "flwr.supercore.heartbeat.HEARTBEAT_DEFAULT_INTERVAL": HEARTBEAT,
        "flwr.supercore.retry.http_retry.MAX_RETRY_DELAY": RETRY,
    }
    absent = []
    for path, value in values.items():
        module, _, name = path.rpartition(".")
        try:
            found = import_module(module)
        except ImportError:
            absent.append(path)
            continue
        if hasattr(found, name):
            setattr(found, name, value)
        else:
            absent.append(path)
    return absent


def main() -> None:
    die_with_parent()
    if os.environ.get(_UNPATCHED) != "1":
        quicken()
    from flwr.supernode.cli.flower_supernode import flower_supernode

    flower_supernode()


if __name__ == "__main__":
    main()
