"""Weighted sums by hand, and in the order of the clients however they are stacked."""

from __future__ import annotations

import pytest
import torch

from torso.server import sums
from torso.server.sums import add, add_stacked, add_weighted


def weighted(stacked: dict[str, torch.Tensor], weights: torch.Tensor, *edges: int) -> dict[str, torch.Tensor]:
    """The sum of clients that come in groups, of which each ends at an edge."""
    total: dict[str, torch.Tensor] = {}
    for start, stop in zip((0, *edges), (*edges, len(weights)), strict=True):
        add_weighted(total, {n: t[start:stop] for n, t in stacked.items()}, weights[start:stop])
    return total


def test_weighted_sum_over_clients_and_largest_counter() -> None:
    stacked = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "steps": torch.tensor([7, 5])}
    total = weighted(stacked, torch.tensor([0.25, 0.75]))
    assert total["w"].tolist() == [2.5, 3.5]
    assert total["steps"].item() == 7


def test_groups_add_up() -> None:
    stacked = {"w": torch.tensor([[1.0], [2.0], [4.0]]), "steps": torch.tensor([1, 9, 3])}
    total = weighted(stacked, torch.tensor([0.5, 0.25, 0.25]), 1)
    assert total["w"].item() == 2.0
    assert total["steps"].item() == 9


def test_one_client_with_weight_one_comes_back_bit_for_bit() -> None:
    tensor = torch.randn(1, 5)
    assert torch.equal(weighted({"w": tensor}, torch.ones(1))["w"], tensor[0])


@pytest.mark.parametrize("size", [1, 2, 3, 8, 10, 64, 1000])
def test_the_sum_is_taken_client_by_client_whatever_the_groups(size: int) -> None:
    """Bit for bit what a loop over the clients gives: float32 sums depend on their order, and these are many."""
    generator = torch.Generator().manual_seed(size)
    tensor = torch.randn(61, size, generator=generator) * 10.0 ** torch.randint(-3, 4, (61, 1), generator=generator)
    weights = torch.rand(61, generator=generator)
    expected, plain = tensor[0] * weights[0], tensor[0].clone()
    for one, weight in zip(tensor[1:], weights[1:], strict=True):
        expected = expected + one * weight
        plain = plain + one
    for edges in ((), (1,), (2, 30), tuple(range(1, 61)), (60,)):
        assert torch.equal(weighted({"w": tensor}, weights, *edges)["w"], expected)
    total: dict[str, torch.Tensor] = {}
    for part in tensor.split(7):
        add_stacked(total, {"w": part})
    assert torch.equal(total["w"], plain)
    backwards = weighted({"w": tensor.flip(0)}, weights.flip(0))
    assert size < 64 or not torch.equal(backwards["w"], expected)  # another order is another sum: the test can fail


def test_a_parameter_of_one_number_has_no_dimension_of_its_own() -> None:
    assert weighted({"w": torch.tensor([1.0, 2.0, 5.0])}, torch.tensor([0.5, 0.25, 0.25]))["w"].item() == 2.25


def test_a_total_is_not_the_memory_of_a_part() -> None:
    part, total = {"w": torch.ones(2)}, dict[str, torch.Tensor]()
    add(total, part)
    add(total, part)
    assert part["w"].tolist() == [1.0, 1.0]
    assert total["w"].tolist() == [2.0, 2.0]


def test_on_a_device_all_clients_are_summed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers, small tensors together; who does not count may have sent anything."""
    monkeypatch.setattr(sums, "is_on_host", lambda tensor: False)
    draw = torch.Generator().manual_seed(0)
    shapes = {"w": (3, 4), "b": (), "large": (1 << 18,), "v": (2,)}
    stacked = {n: torch.randn(5, *shape, generator=draw) for n, shape in shapes.items()}
    stacked["steps"] = torch.tensor([1, 9, 3, 4, 5])
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])
    rows = torch.tensor([True, False, True, True, True])
    total, plain = {"w": torch.ones(3, 4)}, dict[str, torch.Tensor]()
    broken = {n: t.clone() for n, t in stacked.items()}
    for name in shapes:
        broken[name][1] = torch.nan
    add_weighted(total, broken, weights, rows)
    add_stacked(plain, {n: broken[n] for n in shapes}, rows)
    for name, tensor in stacked.items():
        some = tensor[rows]
        if name == "steps":
            assert total[name].item() == 5
            continue
        expected = torch.einsum("g...,g->...", some, weights[rows]) + (1.0 if name == "w" else 0.0)
        torch.testing.assert_close(total[name], expected)
        torch.testing.assert_close(plain[name], some.sum(dim=0))
