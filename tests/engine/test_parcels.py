"""Tensors travel once and whole, whatever they look like; what was written to since is sent again."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from torso.engine.parcels import Account, Cargo, Ledger, read, whole, write

ODD = {
    "number": torch.tensor(3.5),
    "half": torch.arange(7).to(torch.bfloat16),
    "true": torch.tensor([True, False, True]),
    "wide": torch.arange(5),
    "turned": torch.arange(12.0).view(3, 4).T,
    "part": torch.arange(1000.0)[3:5],
    "spread": torch.ones(1).expand(4, 3),
    "alone": torch.tensor(5).expand(1),
    "empty": torch.zeros(0, 3, dtype=torch.int64),
    "still": torch.zeros((), dtype=torch.int64).expand(0),
}


@pytest.mark.parametrize("copy", [True, False])
def test_every_kind_of_tensor_arrives_as_it_was(copy: bool) -> None:
    parcel = whole({"odd": ODD, "twice": [ODD["wide"], ODD["wide"]]})
    found = read(parcel.text, {}, parcel.cargo.unload(torch.device("cpu"), copy))
    for name, tensor in ODD.items():
        assert found["odd"][name].dtype == tensor.dtype
        assert torch.equal(found["odd"][name], tensor)
    assert found["twice"][0] is found["twice"][1]
    assert parcel.cargo.data.nbytes == sum(t.numel() * t.element_size() for t in ODD.values())  # of a part, the part


def test_what_is_unloaded_does_not_hold_on_to_the_rest() -> None:
    parcel = whole([torch.zeros(1000), torch.ones(2)])
    small = parcel.cargo.unload(torch.device("cpu"))[parcel.cargo.labels[1]]
    assert small.untyped_storage().nbytes() == 8


def test_what_both_sides_hold_is_a_name() -> None:
    held = {"data": {"a": list(range(10_000))}}
    text, named = write(("work", held["data"]), held, Ledger().label)
    assert len(text) < 200
    assert not named
    assert read(text, {"data": "theirs"}, {}) == ("work", "theirs")


def sent(ledger: Ledger, account: Account, tensors: list[Tensor]) -> int:
    """How many of the tensors have to travel."""
    _, named = write(tensors, {}, ledger.label)
    lacks = named.keys() - account.holds
    account.holds |= lacks
    return len(lacks)


def test_a_tensor_is_sent_again_only_when_it_was_written_to_and_forgotten_when_it_is_gone() -> None:
    ledger, account = Ledger(), Account()
    ledger.accounts.append(account)
    tensors = [torch.zeros(2), torch.ones(3)]
    assert sent(ledger, account, tensors) == 2
    assert sent(ledger, account, tensors) == 0
    tensors[0] += 1  # in place: the same object, another tensor
    assert sent(ledger, account, tensors) == 1
    assert account.settle() == ()
    tensors.pop()
    gc.collect()
    assert account.settle() == ((0, 1),)
    tensors.clear()
    gc.collect()
    assert set(account.settle()) == {(0, 0), (0, 2)}  # both states of it
    assert account.settle() == ()
    assert not account.holds
    assert Cargo.of({}).unload(torch.device("cpu")) == {}
