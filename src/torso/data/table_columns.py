"""`Column`: how a column of a table becomes features. It is plain data, so clients can agree on columns without sending
a row.

n rows, F features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torso.data.input_base import Array
from torso.kinds import FailFastTuple


@dataclass(frozen=True)
class Column:
    """A column of a table. A column of numbers is one feature; a column of categories has one feature, 0 or 1, for each
    category."""

    name: str
    categories: FailFastTuple[str] = ()  # sorted; "" is the category of empty cells; none: a column of numbers

    @property
    def holds(self) -> str:
        return "categories" if self.categories else "numbers"

    @property
    def features(self) -> tuple[str, ...]:
        """The names of its features."""
        return tuple(f"{self.name}={category}" for category in self.categories) or (self.name,)

    @property
    def keys(self) -> list[tuple[str, str | None]]:
        """(column, category or None) of each feature. Names would not do: a column of numbers may be called
        `city=Rome`."""
        return [(self.name, category) for category in self.categories or (None,)]


Columns = Sequence[Column]


def features_of(columns: Columns) -> tuple[str, ...]:
    return tuple(feature for column in columns for feature in column.features)


def kinds_of(columns: Columns) -> Mapping[str, str]:
    """Name of each column → whether it holds numbers or categories."""
    return {column.name: column.holds for column in columns}


def merged_columns(tables: Sequence[Columns]) -> tuple[Column, ...]:
    """The columns in the order of the first table, with the categories of all tables. All have the same columns."""
    categories: dict[str, set[str]] = {column.name: set() for column in tables[0]}
    for table in tables:
        for column in table:
            categories[column.name].update(column.categories)
    return tuple(Column(name, tuple(sorted(found))) for name, found in categories.items())


def rearranged_features(samples: Array, have: Columns, want: Columns) -> Array:
    """Samples [n, F] rearranged from the features of columns `have` to those of `want`; a new feature is 0."""
    if tuple(have) == tuple(want):
        return samples
    old_place = {key: place for place, key in enumerate(_keys(have))}
    new_keys = _keys(want)
    rearranged = np.zeros((len(samples), len(new_keys)), samples.dtype)
    for place, key in enumerate(new_keys):
        if key in old_place:
            rearranged[:, place] = samples[:, old_place[key]]
    return rearranged


def used_columns(samples: Array, columns: Columns) -> tuple[Column, ...]:
    """The columns with only those categories that at least one of the samples [n, F] has."""
    keys = _keys(columns)
    present = {keys[place] for place in np.flatnonzero((samples != 0).any(axis=0))}
    return tuple(
        Column(column.name, tuple(one for one in column.categories if (column.name, one) in present))
        for column in columns
    )


def unknown_features(columns: Columns, among: Columns) -> tuple[str, ...]:
    """The features of `columns` that the columns `among` do not have."""
    known = set(_keys(among))
    named = zip(_keys(columns), features_of(columns), strict=True)
    return tuple(feature for key, feature in named if key not in known)


def _keys(columns: Iterable[Column]) -> list[tuple[str, str | None]]:
    return [key for column in columns for key in column.keys]
