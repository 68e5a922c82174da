"""The columns of a table that features are made of, as plain data: two clients can put theirs together without a row.

n rows, F features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torso.data.input_base import Array
from torso.kinds import Many


@dataclass(frozen=True)
class Column:
    """A column of numbers is one feature; one of categories has a feature of 0 and 1 for each of them."""

    name: str
    categories: Many[str] = ()  # sorted; "" is that of empty cells. No categories: numbers

    @property
    def holds(self) -> str:
        return "categories" if self.categories else "numbers"

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={category}" for category in self.categories) or (self.name,)

    @property
    def keys(self) -> list[tuple[str, str | None]]:
        """What tells its features from those of other columns: a column of numbers may be called `city=Rome`, too."""
        return [(self.name, category) for category in self.categories or (None,)]


Columns = Sequence[Column]


def features_of(columns: Columns) -> tuple[str, ...]:
    return tuple(feature for column in columns for feature in column.features)


def kinds_of(columns: Columns) -> Mapping[str, str]:
    """What each column holds, by its name."""
    return {column.name: column.holds for column in columns}


def together(tables: Sequence[Columns]) -> tuple[Column, ...]:
    """The columns in the order of the first table, with the categories of all. All have the same columns."""
    known: dict[str, set[str]] = {column.name: set() for column in tables[0]}
    for column in (column for table in tables for column in table):
        known[column.name].update(column.categories)
    return tuple(Column(name, tuple(sorted(categories))) for name, categories in known.items())


def arranged(samples: Array, have: Columns, want: Columns) -> Array:
    """Samples [n, F] with the features of other columns, in their order: 0 where there was no such category."""
    if tuple(have) == tuple(want):
        return samples
    place = {key: number for number, key in enumerate(_keys(have))}
    found = np.zeros((len(samples), len(_keys(want))), samples.dtype)
    for number, key in enumerate(_keys(want)):
        if key in place:
            found[:, number] = samples[:, place[key]]
    return found


def met(samples: Array, columns: Columns) -> tuple[Column, ...]:
    """The columns with those categories that at least one of the samples [n, F] has."""
    keys = _keys(columns)
    there = {keys[place] for place in np.flatnonzero((samples != 0).any(axis=0))}
    return tuple(
        Column(column.name, tuple(one for one in column.categories if (column.name, one) in there))
        for column in columns
    )


def unknown(columns: Columns, among: Columns) -> tuple[str, ...]:
    """Features of columns that others do not have."""
    known = set(_keys(among))
    named = zip(_keys(columns), features_of(columns), strict=True)
    return tuple(feature for key, feature in named if key not in known)


def _keys(columns: Iterable[Column]) -> list[tuple[str, str | None]]:
    return [key for column in columns for key in column.keys]
