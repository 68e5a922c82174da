"""Recording which config keys are read, so that a key without effect can be reported.

A source or a partition gets the whole section `data`, and each reads only the keys that it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar, cast

from pydantic import BaseModel

M = TypeVar("M", bound=BaseModel)
_ALL = "*"


def recording_reads(options: M, read: set[str], prefix: str = "data.") -> M:
    """The same options, but the name of every key that is read is added to `read`."""
    return cast("M", _ReadRecorder(options, read, prefix))


def without_recording(options: M) -> M:
    """The options without recording: for code that repeats a key in a message but does not depend on it."""
    return cast("M", getattr(options, "_options", options))


def unread(options: BaseModel, read: set[str], prefix: str = "data.") -> list[str]:
    """The keys that differ from their defaults and were not read, with their values."""
    return [] if _ALL in read else [f"{key} = {value!r}" for key, value in changed(options, prefix) if key not in read]


def changed(options: BaseModel, prefix: str) -> Iterator[tuple[str, Any]]:
    """The keys that differ from their defaults, with their values. A key set to its default changes nothing."""
    for name, field in type(options).model_fields.items():
        value = getattr(options, name)
        if isinstance(value, BaseModel):
            yield from changed(value, f"{prefix}{name}.")
        elif value != field.get_default(call_default_factory=True):
            yield f"{prefix}{name}", value


class _ReadRecorder:
    """A proxy of options that records the keys that are read. Using anything but a key (`model_dump`, for example)
    counts as reading all keys."""

    def __init__(self, options: BaseModel, read: set[str], prefix: str) -> None:
        self._options, self._read, self._prefix = options, read, prefix

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the options, so that isinstance treats the proxy like them."""
        return type(self._options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._options, name)
        if isinstance(value, BaseModel):
            return _ReadRecorder(value, self._read, f"{self._prefix}{name}.")
        self._read.add(f"{self._prefix}{name}" if name in type(self._options).model_fields else _ALL)
        return value

    def __reduce__(self) -> Any:
        """Pickle the options alone. A user's source may read them in another process, where reads cannot be recorded,
        so all keys count as read."""
        self._read.add(_ALL)
        return _identity, (self._options,)


def _identity(options: BaseModel) -> BaseModel:
    return options
