"""Immutable containers keyed by client number: `ClientMap` and `ClientSet`. Each round makes a new one.

Entries lie in sheets of 32 consecutive client numbers. A new container shares the sheets that do not change with the
previous one, so making it takes time by the number of new entries, not of all entries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from typing import Any, Generic, TypeVar

V = TypeVar("V")
W = TypeVar("W")
_BITS = 5  # a sheet holds 2**5 client numbers


class _Sheets:
    """The part that both containers share: membership, iteration and length."""

    __slots__ = ()
    _sheets: Mapping[int, Collection[int]]  # client >> _BITS → the clients of that sheet

    def __contains__(self, client: object) -> bool:
        return isinstance(client, int) and client in self._sheets.get(client >> _BITS, ())

    def __iter__(self) -> Iterator[int]:
        for sheet in sorted(self._sheets):
            yield from self._sheets[sheet]

    def __len__(self) -> int:
        return sum(map(len, self._sheets.values()))


class ClientMap(_Sheets, Mapping[int, V], Generic[V]):
    """An immutable mapping from client numbers to values."""

    __slots__ = ("_sheets",)

    def __init__(self, entries: Mapping[int, V] | None = None) -> None:
        """Takes time proportional to the number of entries; copying another ClientMap is free."""
        self._sheets: dict[int, dict[int, V]] = {}
        if isinstance(entries, ClientMap):
            self._sheets = entries._sheets
        else:
            for client, value in (entries or {}).items():
                self._sheets.setdefault(client >> _BITS, {})[client] = value

    def __or__(self, new: Mapping[int, V]) -> ClientMap[V]:
        """A map with the entries of `new` added or replaced."""
        made: ClientMap[V] = ClientMap()
        made._sheets = dict(self._sheets)
        copied: set[int] = set()  # sheets that are no longer shared with this map
        for client, value in new.items():
            sheet = client >> _BITS
            if sheet not in copied:
                copied.add(sheet)
                made._sheets[sheet] = dict(made._sheets.get(sheet, ()))
            made._sheets[sheet][client] = value
        return made

    def __getitem__(self, client: int) -> V:
        return self._sheets[client >> _BITS][client]

    def get(self, client: int, default: Any = None) -> Any:
        sheet = self._sheets.get(client >> _BITS)
        return default if sheet is None else sheet.get(client, default)

    def __repr__(self) -> str:
        return f"ClientMap({dict(self)!r})"


class ClientSet(_Sheets, Set[int]):
    """An immutable set of client numbers."""

    __slots__ = ("_sheets",)

    def __init__(self, clients: Iterable[int] = ()) -> None:
        """Takes time proportional to the number of clients; copying another ClientSet is free."""
        self._sheets: dict[int, frozenset[int]] = {}
        if isinstance(clients, ClientSet):
            self._sheets = clients._sheets
        else:
            self._put(clients)

    def _put(self, clients: Iterable[int]) -> None:
        new: dict[int, set[int]] = {}
        for client in clients:
            new.setdefault(client >> _BITS, set()).add(client)
        for sheet, added in new.items():
            self._sheets[sheet] = self._sheets.get(sheet, frozenset()) | added

    def union(self, clients: Iterable[int]) -> ClientSet:
        """The set with these clients added; the same object if it already contains all of them."""
        no_clients = frozenset[int]()
        new = [client for client in clients if client not in self._sheets.get(client >> _BITS, no_clients)]
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
