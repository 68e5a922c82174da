"""Which keys of a config are read: sources and partitions take the whole of `data`, and each reads what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar, cast

from pydantic import BaseModel

M = TypeVar("M", bound=BaseModel)
_ALL = "*"


def noting(options: M, read: set[str], prefix: str = "data.") -> M:
    """The same options, but every key that is read goes into `read`."""
    return cast("M", _Noting(options, read, prefix))


def plain(options: M) -> M:
    """Options whose readers nobody notes: for what says a key again without going by it."""
    return cast("M", getattr(options, "_options", options))


def unread(options: BaseModel, read: set[str], prefix: str = "data.") -> list[str]:
    """The keys that differ from their defaults and were not read, with their values."""
    return [] if _ALL in read else [f"{key} = {value!r}" for key, value in changed(options, prefix) if key not in read]


def changed(options: BaseModel, prefix: str) -> Iterator[tuple[str, Any]]:
    """The keys that differ from their defaults, and their values; one that is set to its default changes nothing."""
    for name, field in type(options).model_fields.items():
        value = getattr(options, name)
        if isinstance(value, BaseModel):
            yield from changed(value, f"{prefix}{name}.")
        elif value != field.get_default(call_default_factory=True):
            yield f"{prefix}{name}", value


class _Noting:
    """Stands in for options. Whoever asks for more than a key (`model_dump`, say) counts as a reader of all."""

    def __init__(self, options: BaseModel, read: set[str], prefix: str) -> None:
        self._options, self._read, self._prefix = options, read, prefix

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """isinstance tells no difference."""
        return type(self._options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._options, name)
        if isinstance(value, BaseModel):
            return _Noting(value, self._read, f"{self._prefix}{name}.")
        self._read.add(f"{self._prefix}{name}" if name in type(self._options).model_fields else _ALL)
        return value

    def __reduce__(self) -> Any:
        """A source of somebody's may use processes, from which nothing comes back: it reads all, then."""
        self._read.add(_ALL)
        return _same, (self._options,)


def _same(options: BaseModel) -> BaseModel:
    return options
