"""Imports the transformers library, when a body of it is asked for."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib.machinery import ModuleSpec
from typing import Any

from torso.nets.outside.base import import_library


@cache
def transformers_for(whose: str) -> Any:
    """The module `transformers`. `whose`: the setting that needs it.

    transformers imports torchvision if that is installed, which fails if torchvision was built for another torch. No
    network here needs torchvision, so in this case transformers is made to find that it is not installed."""
    with _hidden("torchvision") if _is_broken("torchvision") else nullcontext():
        found = import_library("transformers", whose, "text")
        for is_available in (found.utils.is_torchvision_available, found.utils.is_torchvision_v2_available):
            # transformers may have been imported before and remember another answer
            getattr(is_available, "cache_clear", lambda: None)()
            is_available()  # remembers the answer
    found.utils.logging.set_verbosity_error()
    return found


def _is_broken(name: str) -> bool:
    """Whether a package is installed but cannot be imported."""
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
    """A context in which `importlib.util.find_spec` does not find a package."""
    usual = importlib.util.find_spec

    def find(wanted: str, package: str | None = None) -> ModuleSpec | None:
        return None if wanted.partition(".")[0] == name else usual(wanted, package)

    importlib.util.find_spec = find  # type: ignore[assignment]
    try:
        yield
    finally:
        importlib.util.find_spec = usual
