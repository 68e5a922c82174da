"""The transformers library, imported only when a body of it is asked for."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec
from typing import Any

from torso.nets.outside.base import import_library


@cache
def transformers_for(whose: str) -> Any:
    """transformers. It imports torchvision where that is installed, which fails if it was built for another torch; no
    network here needs it, so then transformers is told that it is absent. `whose`: the key that asks for it."""
    with _hidden("torchvision") if _is_broken("torchvision") else _as_it_is():
        found = import_library("transformers", whose, "text")
        for ask in (found.utils.is_torchvision_available, found.utils.is_torchvision_v2_available):
            getattr(ask, "cache_clear", lambda: None)()  # it may have been imported, and have asked, before
            ask()  # and remembers the answer
    found.utils.logging.set_verbosity_error()
    return found


def _is_broken(name: str) -> bool:
    """Whether a package is installed and cannot be imported."""
    if importlib.util.find_spec(name) is None:
        return False
    try:
        importlib.import_module(name)
    except (RuntimeError, ImportError, OSError):
        for part in [part for part in sys.modules if part.partition(".")[0] == name]:
            del sys.modules[part]
        return True
    return False


@contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Whoever asks inside whether a package is installed is told that it is not."""
    usual = importlib.util.find_spec

    def find(wanted: str, package: str | None = None) -> ModuleSpec | None:
        return None if wanted.partition(".")[0] == name else usual(wanted, package)

    importlib.util.find_spec = find  # type: ignore[assignment]
    try:
        yield
    finally:
        importlib.util.find_spec = usual


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield
