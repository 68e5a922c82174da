"""Payloads between the driver and its Ray workers: a pickle with labels in place of tensors, and these tensors.

A tensor is sent once. Both sides keep it under its label until the driver's copy is deleted or modified. So a frozen
head, or a model that is evaluated after it was trained, is sent as a few bytes. What both sides hold anyway (the data,
the network, the engine) is replaced by a name. What clients hold between their visits stays in Ray's object store, and
the driver has handles on it (`RayStateHandle`), so a worker may be lost.
"""

from __future__ import annotations

import io
import math
import pickle
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ray import cloudpickle
from torch import Tensor

Label = tuple[int, int]
"""The process that made a tensor (0: the driver; else a worker's number), and a number per process."""
SharedObjects = Mapping[str, object]  # name -> object that both sides have: the data, the network, the engine


@dataclass(frozen=True)
class PackedTensors:
    """Tensors packed into one array of bytes. Those with the widest elements come first, so that all are aligned."""

    labels: tuple[Label, ...]
    kinds: tuple[tuple[torch.dtype, tuple[int, ...]], ...]  # dtype and shape of each
    data: NDArray[np.uint8]

    @classmethod
    def of(cls, tensors: Mapping[Label, Tensor]) -> PackedTensors:
        order = sorted(tensors, key=lambda label: -tensors[label].element_size())
        flat = [_as_bytes(tensors[label]) for label in order]
        data = torch.cat(flat).cpu().numpy() if flat else np.zeros(0, np.uint8)
        return cls(tuple(order), tuple((tensors[k].dtype, tuple(tensors[k].shape)) for k in order), data)

    def unload(self, device: torch.device, copy: bool = True) -> dict[Label, Tensor]:
        """The tensors by label, on a device.

        `copy`: each tensor gets separate memory, so that it does not keep the memory of the others alive."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that the object store's memory is read-only; we only read it
            whole = torch.from_numpy(self.data).to(device)
        tensors = {}
        start = 0
        for label, (dtype, shape) in zip(self.labels, self.kinds, strict=True):
            stop = start + dtype.itemsize * math.prod(shape)
            tensor = whole[start:stop].view(dtype).view(shape)
            tensors[label] = tensor.clone() if copy else tensor
            start = stop
        return tensors


def _as_bytes(tensor: Tensor) -> Tensor:
    dense = tensor.detach().contiguous()
    # strides are set by hand: a contiguous tensor of zero or one elements may have any, and `view` would refuse it
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


@dataclass(frozen=True)
class Payload:
    """An object on its way between the driver and a worker."""

    text: bytes  # the pickle, with labels and names in place of tensors and shared objects
    packed: PackedTensors  # the tensors that the receiver does not have yet
    gone: tuple[Label, ...] = ()  # labels that will not be used again, so the worker may drop their tensors

    @property
    def size(self) -> int:
        return len(self.text) + self.packed.data.nbytes


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """`names`: id() of the objects that both sides hold -> their name."""

    def __init__(self, file: io.BytesIO, names: Mapping[int, str], label: Callable[[Tensor], Label]) -> None:
        super().__init__(file)
        self.names = names
        self.label = label

    def persistent_id(self, thing: object) -> Label | str | None:
        return self.label(thing) if isinstance(thing, Tensor) else self.names.get(id(thing))


class _Unpickler(pickle.Unpickler):
    def __init__(self, text: bytes, held: SharedObjects, tensors: Mapping[Label, Tensor]) -> None:
        super().__init__(io.BytesIO(text))
        self.held = held
        self.tensors = tensors

    def persistent_load(self, name: Any) -> Any:
        return self.held[name] if isinstance(name, str) else self.tensors[name]


def write(thing: object, held: SharedObjects, label: Callable[[Tensor], Label]) -> tuple[bytes, dict[Label, Tensor]]:
    """Pickle an object. Returns the pickle and the tensors that its labels stand for."""
    named: dict[Label, Tensor] = {}

    def note(tensor: Tensor) -> Label:
        found = label(tensor)
        named[found] = tensor
        return found

    file = io.BytesIO()
    _Pickler(file, {id(value): name for name, value in held.items()}, note).dump(thing)
    return file.getvalue(), named


def read(text: bytes, held: SharedObjects, tensors: Mapping[Label, Tensor]) -> Any:
    """The object that `write` pickled."""
    return _Unpickler(text, held, tensors).load()


def complete_payload(thing: object, held: SharedObjects | None = None) -> Payload:
    """A payload with all tensors of an object, for a receiver that has none of them (but has what is `held`)."""
    text, named = write(thing, held or {}, LabelCounter(0))
    return Payload(text, PackedTensors.of(named))


@dataclass
class LabelCounter:
    """A function that labels tensors by counting: every tensor gets a new label, the same tensor the same label."""

    maker: int  # the first part of each label
    numbers: Iterator[int] = field(default_factory=count)
    given: dict[int, Label] = field(default_factory=dict)  # id() of a tensor -> its label

    def __call__(self, tensor: Tensor) -> Label:
        if id(tensor) not in self.given:
            self.given[id(tensor)] = (self.maker, next(self.numbers))
        return self.given[id(tensor)]


class CacheRecord:
    """The driver's record of the tensors that one worker holds."""

    def __init__(self) -> None:
        self.holds: set[Label] = set()
        self.gone: list[Label] = []  # labels that the worker may drop and has not been told of

    def drop(self, label: Label) -> None:
        if label in self.holds:
            self.holds.discard(label)
            self.gone.append(label)

    def take_dropped(self) -> tuple[Label, ...]:
        """The labels that the worker may drop. Each label is returned once."""
        gone, self.gone = self.gone, []
        return tuple(gone)


class TensorLabels:
    """The labels of the driver's tensors.

    A tensor that was modified in place gets a new label (torch counts its versions). When a tensor is deleted, all
    workers are told to drop their copies."""

    def __init__(self) -> None:
        self.cache_records: list[CacheRecord] = []  # of all workers
        self._known: dict[int, tuple[Label, int]] = {}  # id() of a tensor -> its label, and its version then
        self._numbers = count()

    def label(self, tensor: Tensor) -> Label:
        """The label of a tensor; a new one if the tensor is new or was modified."""
        known = self._known.get(id(tensor))
        if known is not None and known[1] == tensor._version:
            return known[0]
        return self.enter(tensor, (0, next(self._numbers)))

    def enter(self, tensor: Tensor, label: Label) -> Label:
        """Note a tensor under a label (its own or a worker's), until the tensor is deleted."""
        self._known[id(tensor)] = (label, tensor._version)
        weakref.finalize(tensor, self._forget, id(tensor), label).atexit = False
        return label

    def _forget(self, tensor_id: int, label: Label) -> None:
        if self._known.get(tensor_id, (None,))[0] == label:
            del self._known[tensor_id]
        for cache_record in self.cache_records:
            cache_record.drop(label)
