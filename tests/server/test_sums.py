"""Weighted sums by hand."""

from __future__ import annotations

import torch

from torso.server.sums import add, weighted_sum


def test_weighted_sum_over_clients_and_largest_counter() -> None:
    stacked = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "steps": torch.tensor([7, 5])}
    total = weighted_sum(stacked, torch.tensor([0.25, 0.75]))
    assert total["w"].tolist() == [2.5, 3.5]
    assert total["steps"].item() == 7


def test_partial_sums_add_up_whatever_the_groups() -> None:
    stacked = {"w": torch.tensor([[1.0], [2.0], [4.0]]), "steps": torch.tensor([1, 9, 3])}
    weights = torch.tensor([0.5, 0.25, 0.25])

    def part(rows: slice) -> dict[str, torch.Tensor]:
        return weighted_sum({n: t[rows] for n, t in stacked.items()}, weights[rows])

    total: dict[str, torch.Tensor] = {}
    for rows in (slice(0, 1), slice(1, 3)):
        add(total, part(rows))
    assert total["w"].item() == 2.0
    assert total["steps"].item() == 9


def test_one_client_with_weight_one_comes_back_bit_for_bit() -> None:
    tensor = torch.randn(1, 5)
    total: dict[str, torch.Tensor] = {}
    add(total, weighted_sum({"w": tensor}, torch.ones(1)))
    assert torch.equal(total["w"], tensor[0])
