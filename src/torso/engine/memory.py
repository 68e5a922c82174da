"""Memory of the process: keep what is freed, run the garbage collector less often, report how much was in use.

Every training step allocates and frees the same activations. By default glibc returns blocks of some megabytes to the
kernel, which hands them out again page by page, zeroed. With conv4 that takes a tenth of the time on CPU.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

# from glibc's malloc.h
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8


@cache
def keep_freed_memory() -> bool:
    """Have glibc keep freed memory in the process. Without glibc it does nothing. Returns whether it was set."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # one heap for all threads: the others are limited to 64 MB each and are unmapped whenever they run empty
    settings = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, 1 << 30), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 64 << 20))
    return all(mallopt(ctypes.c_int(name), ctypes.c_int(value)) for name, value in settings)


class _Collector:
    """The state that all `patient_collector` blocks of the process share (runs may be side by side in threads)."""

    lock = threading.Lock()
    blocks = 0  # blocks that are open now
    thresholds = (0, 0, 0)  # Python's thresholds before the first of them


@contextmanager
def patient_collector(objects: int) -> Iterator[None]:
    """Have Python's garbage collector run only after `objects` new objects, if it would run earlier.

    A round of many clients leaves each of them a few objects that stay. By default the collector examines the youngest
    objects after every 700 new ones. With 1,000 clients that takes a quarter of the host's time."""
    with _Collector.lock:
        now = gc.get_threshold()
        if not _Collector.blocks:
            _Collector.thresholds = now
        _Collector.blocks += 1
        if 0 < now[0] < objects:  # 0: the collector is switched off
            gc.set_threshold(objects, *now[1:])
    try:
        yield
    finally:
        with _Collector.lock:
            _Collector.blocks -= 1
            if not _Collector.blocks:
                gc.set_threshold(*_Collector.thresholds)


def peak_memory_bytes(device: torch.device) -> int | None:
    """The peak of the accelerator's memory, or on CPU of the whole process. None if the platform cannot tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type != "cpu" or sys.platform == "win32":
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
