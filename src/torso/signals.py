"""SIGTERM and Ctrl-C, where nobody has said yet how to end. Imports nothing heavy."""

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
    """SIGTERM ends this process in order, too: schedulers and service managers send it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = os.getpid()

    def interrupt(number: int, *_: Any) -> None:
        if os.getpid() != ours:  # a fork, which whoever forked it ends like this
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
