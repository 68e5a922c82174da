"""Containers of many clients: they say what dict and set say, and what was made before does not change."""

from __future__ import annotations

import numpy as np
import pytest

from torso.many import ClientMap, ClientSet

NUMBERS = [int(k) for k in np.random.default_rng(0).integers(-1, 3000, 400)]


def test_a_map_is_a_dict_that_nobody_changes() -> None:
    plain: dict[int, int] = {}
    found: ClientMap[int] = ClientMap()
    before = []
    for round, start in enumerate(range(0, len(NUMBERS), 20)):
        new = dict.fromkeys(NUMBERS[start : start + 20], round)
        before.append((found, dict(plain)))
        plain, found = {**plain, **new}, found | new
        assert found == plain
    for old, then in before:
        assert old == then
        assert len(old) == len(then)
    assert sorted(found) == sorted(plain)
    assert [found.get(k, "none") for k in range(-5, 100)] == [plain.get(k, "none") for k in range(-5, 100)]
    assert [k in found for k in range(-5, 100)] == [k in plain for k in range(-5, 100)]
    assert "name" not in found
    with pytest.raises(KeyError):
        found[5000]
    assert ClientMap(found) == ClientMap(plain) == plain


def test_sheets_that_do_not_change_are_shared() -> None:
    first = ClientMap(dict.fromkeys(range(128), "a"))
    second = first | {40: "b"}
    assert first[40] == "a"
    shared = [first._sheets[place] is second._sheets[place] for place in range(4)]
    assert shared == [True, False, True, True]


def test_a_set_is_a_frozenset() -> None:
    plain: frozenset[int] = frozenset()
    found, before = ClientSet(), []
    for start in range(0, len(NUMBERS), 20):
        before.append((found, plain))
        new = NUMBERS[start : start + 20]
        plain, found = plain.union(new), found.union(new)
        assert found == plain
        assert hash(found) == hash(ClientSet(plain))
    for old, then in before:
        assert old == then
    assert found.union(NUMBERS) is found
    assert len(found) == len(plain)
    assert set(range(100)) - found == set(range(100)) - plain
    assert dict.fromkeys(plain).keys() == found
    assert "name" not in found
