"""Helpers for stacked tensors."""

from __future__ import annotations

import torch

from torso.learn.stacked import copies_of, copy_all


def test_lists_of_mixed_dtypes_are_copied_each_to_its_place() -> None:
    given = [torch.tensor([[1.5, 2.5]]), torch.tensor([7]), torch.tensor([[[3.25]]]), torch.tensor([8])]
    there = [torch.zeros_like(tensor) for tensor in given]
    copy_all(there, given)
    for place, tensor in zip(there, given, strict=True):
        assert place.dtype == tensor.dtype
        assert torch.equal(place, tensor)


def test_copies_have_memory_of_their_own_and_what_all_share_has_one() -> None:
    tensors = {
        "weight": torch.tensor([[1.0], [2.0]]),
        "count": torch.tensor([3, 4]),
        "shared": torch.tensor([[5.0]]).expand(2, 1),
    }
    copies = copies_of(tensors)
    tensors["weight"][0] = 9.0
    tensors["count"][0] = 9
    assert copies["weight"].tolist() == [[1.0], [2.0]]
    assert copies["count"].tolist() == [3, 4]
    assert copies["count"].dtype == torch.int64
    assert copies["shared"].tolist() == [[5.0], [5.0]]
    assert copies["shared"].stride(0) == 0
