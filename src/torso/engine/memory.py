"""Memory: keep what is freed in the process, look for garbage less often, and tell how much was in use.

Every training step allocates and frees the same activations. By default glibc hands blocks of some megabytes back to
the kernel, which gives them out again page by page, zeroed: with conv4 that is a tenth of the time on CPU.
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
    """Once per process, where the C library is glibc; elsewhere nothing happens."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # one heap for all threads: the others are limited to 64 MB each and are unmapped whenever they run empty
    settings = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, 1 << 30), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 64 << 20))
    return all(mallopt(ctypes.c_int(name), ctypes.c_int(value)) for name, value in settings)


class _Patience:
    """How many of those are at work who want Python's collector to wait, and what it did before them."""

    lock = threading.Lock()
    count = 0
    usual = (0, 0, 0)


@contextmanager
def patient_collector(objects: int) -> Iterator[None]:
    """Have Python look for garbage after so many new objects, where it would do so earlier.

    A round of many clients leaves each of them a few objects that stay. Python takes them for possible garbage, and by
    default it looks through the youngest of them after every 700: a quarter of the host's time with 1,000 clients."""
    with _Patience.lock:
        now = gc.get_threshold()
        if not _Patience.count:
            _Patience.usual = now
        _Patience.count += 1
        if 0 < now[0] < objects:  # 0: somebody has switched it off
            gc.set_threshold(objects, *now[1:])
    try:
        yield
    finally:
        with _Patience.lock:
            _Patience.count -= 1
            if not _Patience.count:
                gc.set_threshold(*_Patience.usual)


def peak_memory_bytes(device: torch.device) -> int | None:
    """The most that was in use: of the accelerator's memory, of the whole process on CPU; None where nobody knows."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type != "cpu" or sys.platform == "win32":
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
