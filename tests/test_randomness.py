"""Random bits against splitmix64 in plain Python integers."""

from __future__ import annotations

import torch

from torso.randomness import client_keys, key, numpy_generator, random_bits, torch_generator

MASK = (1 << 64) - 1


def splitmix64(start: int, count: int) -> list[int]:
    """The published algorithm (Steele, Lea, Flood 2014), in unsigned arithmetic; we keep the upper 63 bits."""
    numbers = []
    state = start & MASK
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        numbers.append((z ^ (z >> 31)) >> 1)
    return numbers


def test_bits_are_those_of_splitmix64() -> None:
    keys = [0, 1, 12345678901234567, (1 << 63) - 1]
    assert random_bits(torch.tensor(keys), 5).tolist() == [splitmix64(k, 5) for k in keys]


def test_published_first_value_of_seed_zero() -> None:
    assert random_bits(torch.tensor([0]), 1).item() == 0xE220A8397B1DCDAF >> 1


def test_keys_depend_on_every_part_of_the_purpose_and_on_nothing_else() -> None:
    assert key(0, "a", 1) == key(0, "a", 1)
    different = [key(0, "a", 1), key(1, "a", 1), key(0, "b", 1), key(0, "a", 2), key(0, "a"), key(0, "a", "1")]
    assert len(set(different)) == len(different)
    assert all(0 <= k < 1 << 63 for k in different)
    assert key(0, "participants", 1) == 6076361606541844460  # the same on every machine, so that runs repeat


def test_generators_repeat() -> None:
    assert numpy_generator(3, "x").integers(1 << 30) == numpy_generator(3, "x").integers(1 << 30)
    assert torch.equal(
        torch.rand(3, generator=torch_generator(3, "x")), torch.rand(3, generator=torch_generator(3, "x"))
    )


def test_keys_of_many_clients_are_those_of_each() -> None:
    for before, after in (((3, "train", "shuffle", 7), (0,)), ((0, "it's"), (1, 2)), ((1, "a", "b"), ())):
        expected = [key(*before, client, *after) for client in (0, 5, 10**6, -1)]
        assert client_keys(before, (0, 5, 10**6, -1), *after).tolist() == expected
    assert client_keys((0, "nobody"), ()).tolist() == []
