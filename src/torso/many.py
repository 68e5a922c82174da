"""What many clients have, by their number, in containers that nobody changes: a round makes another one.

To make it costs by what is new, not by what is held: entries lie in sheets of 32 numbers, and the sheets that do not
change are those of the container before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from typing import Any, Generic, TypeVar

V = TypeVar("V")
W = TypeVar("W")
_BITS = 5


class _Sheets:
    """Who is there, of entries in sheets."""

    __slots__ = ()
    _sheets: Mapping[int, Collection[int]]

    def __contains__(self, client: object) -> bool:
        return isinstance(client, int) and client in self._sheets.get(client >> _BITS, ())

    def __iter__(self) -> Iterator[int]:
        for place in sorted(self._sheets):
            yield from self._sheets[place]

    def __len__(self) -> int:
        return sum(map(len, self._sheets.values()))


class ClientMap(_Sheets, Mapping[int, V], Generic[V]):
    """A mapping by the number of a client."""

    __slots__ = ("_sheets",)

    def __init__(self, entries: Mapping[int, V] | None = None) -> None:
        """Takes time by the number of entries; a copy of another ClientMap takes none."""
        self._sheets: dict[int, dict[int, V]] = {}
        if isinstance(entries, ClientMap):
            self._sheets = entries._sheets
        else:
            for client, value in (entries or {}).items():
                self._sheets.setdefault(client >> _BITS, {})[client] = value

    def __or__(self, new: Mapping[int, V]) -> ClientMap[V]:
        """This map with some entries new or replaced."""
        made: ClientMap[V] = ClientMap()
        made._sheets = dict(self._sheets)
        copied: set[int] = set()
        for client, value in new.items():
            place = client >> _BITS
            if place not in copied:
                copied.add(place)
                made._sheets[place] = dict(made._sheets.get(place, ()))
            made._sheets[place][client] = value
        return made

    def __getitem__(self, client: int) -> V:
        return self._sheets[client >> _BITS][client]

    def get(self, client: int, default: Any = None) -> Any:
        sheet = self._sheets.get(client >> _BITS)
        return default if sheet is None else sheet.get(client, default)

    def __repr__(self) -> str:
        return f"ClientMap({dict(self)!r})"


class ClientSet(_Sheets, Set[int]):
    """A set of numbers of clients."""

    __slots__ = ("_sheets",)

    def __init__(self, clients: Iterable[int] = ()) -> None:
        """Takes time by the number of clients; a copy of another ClientSet takes none."""
        self._sheets: dict[int, frozenset[int]] = {}
        if isinstance(clients, ClientSet):
            self._sheets = clients._sheets
        else:
            self._put(clients)

    def _put(self, clients: Iterable[int]) -> None:
        new: dict[int, set[int]] = {}
        for client in clients:
            new.setdefault(client >> _BITS, set()).add(client)
        for place, some in new.items():
            self._sheets[place] = self._sheets.get(place, frozenset()) | some

    def union(self, clients: Iterable[int]) -> ClientSet:
        """This set with some more clients; itself where it has them all."""
        sheets, nobody = self._sheets, frozenset[int]()
        new = [client for client in clients if client not in sheets.get(client >> _BITS, nobody)]
        if not new:
            return self
        made = ClientSet()
        made._sheets = dict(self._sheets)
        made._put(new)
        return made

    def __hash__(self) -> int:
        return self._hash()

    def __repr__(self) -> str:
        return f"ClientSet({sorted(self)!r})"
