"""What other libraries log, so that a command prints its own lines only."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silent(logger: str) -> Iterator[None]:
    """A context in which a logger logs errors only."""
    log = logging.getLogger(logger)
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
