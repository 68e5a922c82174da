"""Names to things: what exists is registered once, and the command line, the config and the docs read it from here."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, ClassVar, Generic, TypeVar

from torso.errors import RequestError, did_you_mean

T = TypeVar("T")


class Registry(dict[str, T], Generic[T]):
    """A dict whose entries arrive by decorator and whose misses explain themselves.

    `key` is how the user spells the choice in a config (`data.source`, `method.drift`, …).
    """

    every: ClassVar[dict[str, Registry[Any]]] = {}  # by key

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key
        self.every[key] = self
        self.own: dict[str, T] | None = None  # Torso's, where things do not tell by themselves whose they are

    def register(self, name: str) -> Callable[[T], T]:
        def keep(thing: T) -> T:
            if name in self:
                raise RequestError(
                    f"{self.key} = {name!r} is registered already, by {self._owner(name)}. Choose another name."
                )
            self[name] = thing
            return thing

        return keep

    def look_up(self, name: str, key: str) -> T:
        """As `self[name]`, for a name that the user has given under another key."""
        if name in self:
            return self[name]
        hint = did_you_mean(name, self)
        raise RequestError(
            f"{key} = {name!r} is unknown{hint} Accepted: {', '.join(sorted(self))}, or what a module registers that "
            "--plugin MODULE names"
        )

    def name_of(self, choice: object) -> str:
        """The name that the class of a choice is registered under; the class's own where it is not."""
        return next((name for name, kind in self.items() if kind is type(choice)), type(choice).__name__)

    def _owner(self, name: str) -> str:
        if not self.is_guest(name):
            return "Torso"
        module = getattr(self[name], "__module__", None)
        return f"the module {module!r}" if is_foreign(self[name]) and module else "a module outside Torso"

    def is_guest(self, name: str) -> bool:
        """Whether others than Torso have registered it; a method of theirs may be made of Torso's parts alone."""
        changed = self.own is not None and self.own.get(name) is not self[name]
        return changed or is_foreign(self[name])

    def __missing__(self, name: str) -> T:
        return self.look_up(name, self.key)


Guests = dict[str, dict[str, Any]]


def guests() -> Guests:
    """What others than Torso have registered, by key and name: a process elsewhere has to be told of it."""
    found = {
        key: {n: thing for n, thing in known.items() if known.is_guest(n)} for key, known in Registry.every.items()
    }
    return {key: things for key, things in found.items() if things}


def welcome(things: Guests) -> None:
    for key, named in things.items():
        Registry.every[key].update(named)


def chosen(key: str, value: object) -> str:
    """A choice as a user spells it, for messages: `method.server = 'krum'`."""
    names = (name for name, kind in Registry.every[key].items() if type(value) is kind)
    return f"{key} = {next(names, value)!r}"


def is_foreign(thing: object) -> bool:
    """Whether it, or what it is made of, comes from a module outside."""
    parts = (thing, *(vars(thing).values() if is_dataclass(thing) and not isinstance(thing, type) else ()))
    modules = (getattr(part, "__module__", None) or "builtins" for part in parts)
    return any(module.partition(".")[0] not in ("torso", "builtins") for module in modules)


def summary(thing: object) -> str:
    """The first paragraph of a thing's docstring, for the lists that the command line prints."""
    return plain((thing.__doc__ or "").strip().split("\n\n")[0])


def plain(text: str) -> str:
    """On one line and without the section numbers that are meant for readers of the code."""
    text = re.sub(r"\s*\(spec [^)]*\)", "", " ".join(text.split()))
    return re.sub(r"[,;:]? ?spec [^)]*\)", ")", text)


_NUMBER = r"\d+(?:\.\d+)?"
_CITATION = re.compile(rf"\bspec\s+({_NUMBER}(?:(?:,? and|,| to)\s+{_NUMBER})*)", re.IGNORECASE)


def cited(text: str) -> list[str]:
    """The sections of docs/definitions.md that a text cites: `spec 4.2, 9.4` gives 4.2 and 9.4."""
    return [number for citation in _CITATION.findall(text) for number in re.findall(_NUMBER, citation)]
