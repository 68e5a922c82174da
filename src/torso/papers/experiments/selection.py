"""The option --only: select a part of a table or of the leaderboard, as in `shards=2,method=fedbabu|fedavg`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torso.errors import RequestError

T = TypeVar("T")


def select(only: str, items: Sequence[T], values: Callable[[T, str], tuple[Any, ...]], of: str, keys: str) -> list[int]:
    """The places of the items that meet every condition of `only`.

    `values`: the values of an item that a condition on a key may name. `of`, `keys`: words for error messages: what
    the items belong to, and which keys they have."""
    kept = list(range(len(items)))
    for condition in filter(None, (part.strip() for part in only.split(","))):
        key, equals, said = (word.strip() for word in condition.partition("="))
        there = {str(value): None for item in items for value in values(item, key)}
        if not equals:
            raise RequestError(f"--only {condition!r} is not KEY=VALUE. Keys of {of}: {keys}")
        if not there:
            raise RequestError(f"--only {condition!r}: {of} has no key {key!r}. Its keys: {keys}")
        asked = [value.strip() for value in said.split("|")]
        kept = [i for i in kept if any(_same(value, word) for value in values(items[i], key) for word in asked)]
        if not kept:
            raise RequestError(
                f"--only {only!r} matches nothing in {of}: no record is left at {condition!r}. "
                f"Values of {key} in {of}: {', '.join(there)}"
            )
    return kept


def _same(value: Any, word: str) -> bool:
    if str(value).lower() == word.lower():
        return True
    try:
        return float(value) == float(word)
    except (TypeError, ValueError):
        return False
