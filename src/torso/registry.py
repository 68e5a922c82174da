"""Registries: each maps names to choices. The command line, the config and the docs list what is registered here."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, ClassVar, Generic, TypeVar

from torso.errors import RequestError, did_you_mean

T = TypeVar("T")


class Registry(dict[str, T], Generic[T]):
    """A dict from names to choices. A decorator adds entries; looking up an unknown name raises a RequestError.

    `key` is the config key that takes these names (`data.source`, `method.drift`, …).
    """

    every: ClassVar[dict[str, Registry[Any]]] = {}  # all registries, by key

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key
        self.every[key] = self
        self.own: dict[str, T] | None = None  # Torso's own entries; None: the module of an entry shows where it is from

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
        """Like `self[name]`, for a name that the user has given under another config key."""
        if name in self:
            return self[name]
        hint = did_you_mean(name, self)
        raise RequestError(
            f"{key} = {name!r} is unknown{hint} Accepted: {self._accepted()}, or what a module registers that "
            "--plugin MODULE names"
        )

    def _accepted(self) -> str:
        return ", ".join(sorted(self))

    def name_of(self, choice: object) -> str:
        """The name under which the class of a choice is registered; if it is not registered, the name of the class."""
        return next((name for name, kind in self.items() if kind is type(choice)), type(choice).__name__)

    def _owner(self, name: str) -> str:
        if not self.is_from_plugin(name):
            return "Torso"
        module = getattr(self[name], "__module__", None)
        return f"the module {module!r}" if is_foreign(self[name]) and module else "a module outside Torso"

    def is_from_plugin(self, name: str) -> bool:
        """Whether a plugin has registered this name. A plugin's method may consist of Torso's parts alone, so `own` is
        compared first."""
        added = self.own is not None and self.own.get(name) is not self[name]
        return added or is_foreign(self[name])

    def __missing__(self, name: str) -> T:
        return self.look_up(name, self.key)


PluginEntries = dict[str, dict[str, Any]]
"""Entries that plugins have registered: registry key → name → entry."""


def plugin_entries() -> PluginEntries:
    """The entries that plugins have registered; processes on other machines must be sent them."""
    found: PluginEntries = {}
    for key, registry in Registry.every.items():
        entries = {name: thing for name, thing in registry.items() if registry.is_from_plugin(name)}
        if entries:
            found[key] = entries
    return found


def register_plugin_entries(things: PluginEntries) -> None:
    """Register the plugins' entries that another process has sent."""
    for key, named in things.items():
        Registry.every[key].update(named)


def chosen(key: str, value: object) -> str:
    """A choice as the user spells it in a config, for messages: `method.server = 'krum'`."""
    names = (name for name, kind in Registry.every[key].items() if type(value) is kind)
    return f"{key} = {next(names, value)!r}"


def is_foreign(thing: object) -> bool:
    """Whether a thing, or a field of it if it is a dataclass, comes from a module outside Torso."""
    parts = [thing]
    if is_dataclass(thing) and not isinstance(thing, type):
        parts += vars(thing).values()
    modules = (getattr(part, "__module__", None) or "builtins" for part in parts)
    return any(module.partition(".")[0] not in ("torso", "builtins") for module in modules)


def summary(thing: object) -> str:
    """The first paragraph of a thing's docstring, for the lists that the command line prints."""
    return plain((thing.__doc__ or "").strip().split("\n\n")[0])


def plain(text: str) -> str:
    """A docstring on one line, without its citations `(spec N.N)`, which are meant for readers of the code."""
    text = re.sub(r"\s*\(spec [^)]*\)", "", " ".join(text.split()))
    return re.sub(r"[,;:]? ?spec [^)]*\)", ")", text)


_NUMBER = r"\d+(?:\.\d+)?"
_CITATION = re.compile(rf"\bspec\s+({_NUMBER}(?:(?:,? and|,| to)\s+{_NUMBER})*)", re.IGNORECASE)


def cited(text: str) -> list[str]:
    """The sections of docs/definitions.md that a text cites: `spec 4.2, 9.4` gives 4.2 and 9.4."""
    return [number for citation in _CITATION.findall(text) for number in re.findall(_NUMBER, citation)]
