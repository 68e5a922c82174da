"""Tensors travel once and whole, whatever they look like; what was written to since is sent again."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from torso.engine.payloads import CacheRecord, PackedTensors, TensorLabels, complete_payload, read, write

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
    payload = complete_payload({"odd": ODD, "twice": [ODD["wide"], ODD["wide"]]})
    found = read(payload.text, {}, payload.packed.unload(torch.device("cpu"), copy))
    for name, tensor in ODD.items():
        assert found["odd"][name].dtype == tensor.dtype
        assert torch.equal(found["odd"][name], tensor)
    assert found["twice"][0] is found["twice"][1]
    assert payload.packed.data.nbytes == sum(t.numel() * t.element_size() for t in ODD.values())  # of a part, the part


def test_what_is_unloaded_does_not_hold_on_to_the_rest() -> None:
    payload = complete_payload([torch.zeros(1000), torch.ones(2)])
    small = payload.packed.unload(torch.device("cpu"))[payload.packed.labels[1]]
    assert small.untyped_storage().nbytes() == 8


def test_what_both_sides_hold_is_a_name() -> None:
    held = {"data": {"a": list(range(10_000))}}
    text, named = write(("work", held["data"]), held, TensorLabels().label)
    assert len(text) < 200
    assert not named
    assert read(text, {"data": "theirs"}, {}) == ("work", "theirs")


def sent(tensor_labels: TensorLabels, cache_record: CacheRecord, tensors: list[Tensor]) -> int:
    """How many of the tensors have to travel."""
    _, named = write(tensors, {}, tensor_labels.label)
    lacks = named.keys() - cache_record.holds
    cache_record.holds |= lacks
    return len(lacks)


def test_a_tensor_is_sent_again_only_when_it_was_written_to_and_forgotten_when_it_is_gone() -> None:
    tensor_labels, cache_record = TensorLabels(), CacheRecord()
    tensor_labels.cache_records.append(cache_record)
    tensors = [torch.zeros(2), torch.ones(3)]
    assert sent(tensor_labels, cache_record, tensors) == 2
    assert sent(tensor_labels, cache_record, tensors) == 0
    tensors[0] += 1  # in place: the same object, another tensor
    assert sent(tensor_labels, cache_record, tensors) == 1
    assert cache_record.take_dropped() == ()
    tensors.pop()
    gc.collect()
    assert cache_record.take_dropped() == ((0, 1),)
    tensors.clear()
    gc.collect()
    assert set(cache_record.take_dropped()) == {(0, 0), (0, 2)}  # both states of it
    assert cache_record.take_dropped() == ()
    assert not cache_record.holds
    assert PackedTensors.of({}).unload(torch.device("cpu")) == {}
