"""SIGTERM and Ctrl-C before a command has set up its own way to end. This module imports nothing heavy."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

AT_ONCE = "stopped at once, by Ctrl-C or SIGTERM"


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, which schedulers and service managers send, so that the process cleans up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    own_pid = os.getpid()

    def interrupt(number: int, *_: Any) -> None:
        if os.getpid() != own_pid:  # a forked child inherits this handler; its parent expects SIGTERM to end it
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
