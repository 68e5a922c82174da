"""What travels between the driver and its workers: a pickle in which tensors, and what both sides hold, are labels.

A tensor travels once. Whoever has it keeps it under its label until the driver's copy is gone or has been written to:
so a frozen head and a model that is measured after it was trained travel as a few bytes. What clients hold between
their visits lies in the object store; the driver has handles on it (`KeptOnRay`), hence a worker can be lost.
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

Label = tuple[int, int]  # who made it (0: the driver), and its number there
Held = Mapping[str, object]  # what both sides have under one name: the data, the network, the engine


@dataclass(frozen=True)
class Cargo:
    """Tensors in one piece of memory, those of wide elements first, so that each lies where its elements may."""

    labels: tuple[Label, ...]
    kinds: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
    data: NDArray[np.uint8]

    @classmethod
    def of(cls, tensors: Mapping[Label, Tensor]) -> Cargo:
        order = sorted(tensors, key=lambda label: -tensors[label].element_size())
        flat = [_as_bytes(tensors[label]) for label in order]
        data = torch.cat(flat).cpu().numpy() if flat else np.zeros(0, np.uint8)
        return cls(tuple(order), tuple((tensors[k].dtype, tuple(tensors[k].shape)) for k in order), data)

    def unload(self, device: torch.device, copy: bool = True) -> dict[Label, Tensor]:
        """`copy`: each has memory of its own and does not hold on to the others'."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the object store's memory cannot be written to, and nobody does
            whole = torch.from_numpy(self.data).to(device)
        tensors, start = {}, 0
        for label, (dtype, shape) in zip(self.labels, self.kinds, strict=True):
            stop = start + dtype.itemsize * math.prod(shape)
            tensor = whole[start:stop].view(dtype).view(shape)
            tensors[label] = tensor.clone() if copy else tensor
            start = stop
        return tensors


def _as_bytes(tensor: Tensor) -> Tensor:
    whole = tensor.detach().contiguous()
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)  # one of no or one element may have any strides


@dataclass(frozen=True)
class Parcel:
    """`gone`: labels that nobody will name again."""

    text: bytes
    cargo: Cargo
    gone: tuple[Label, ...] = ()

    @property
    def size(self) -> int:
        return len(self.text) + self.cargo.data.nbytes


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, names: Mapping[int, str], label: Callable[[Tensor], Label]) -> None:
        super().__init__(file)
        self.names, self.label = names, label

    def persistent_id(self, thing: object) -> Label | str | None:
        return self.label(thing) if isinstance(thing, Tensor) else self.names.get(id(thing))


class _Opener(pickle.Unpickler):
    def __init__(self, text: bytes, held: Held, tensors: Mapping[Label, Tensor]) -> None:
        super().__init__(io.BytesIO(text))
        self.held, self.tensors = held, tensors

    def persistent_load(self, name: Any) -> Any:
        return self.held[name] if isinstance(name, str) else self.tensors[name]


def write(thing: object, held: Held, label: Callable[[Tensor], Label]) -> tuple[bytes, dict[Label, Tensor]]:
    """The pickle, and the tensors that it names."""
    named: dict[Label, Tensor] = {}

    def note(tensor: Tensor) -> Label:
        found = label(tensor)
        named[found] = tensor
        return found

    file = io.BytesIO()
    _Packer(file, {id(value): name for name, value in held.items()}, note).dump(thing)
    return file.getvalue(), named


def read(text: bytes, held: Held, tensors: Mapping[Label, Tensor]) -> Any:
    return _Opener(text, held, tensors).load()


def whole(thing: object, held: Held | None = None) -> Parcel:
    """A parcel for somebody who has nothing yet, but for what both sides hold."""
    text, named = write(thing, held or {}, Numbered(0))
    return Parcel(text, Cargo.of(named))


@dataclass
class Numbered:
    """A new label for each tensor, one for the same."""

    maker: int
    numbers: Iterator[int] = field(default_factory=count)
    given: dict[int, Label] = field(default_factory=dict)

    def __call__(self, tensor: Tensor) -> Label:
        if id(tensor) not in self.given:
            self.given[id(tensor)] = (self.maker, next(self.numbers))
        return self.given[id(tensor)]


class Account:
    """What one worker holds, as the driver knows."""

    def __init__(self) -> None:
        self.holds: set[Label] = set()
        self.gone: list[Label] = []

    def drop(self, label: Label) -> None:
        if label in self.holds:
            self.holds.discard(label)
            self.gone.append(label)

    def settle(self) -> tuple[Label, ...]:
        """What the worker may throw away, once."""
        gone, self.gone = self.gone, []
        return tuple(gone)


class Ledger:
    """The labels of the driver's tensors. One that was written to since is another tensor (torch counts versions)."""

    def __init__(self) -> None:
        self.accounts: list[Account] = []
        self._known: dict[int, tuple[Label, int]] = {}
        self._numbers = count()

    def label(self, tensor: Tensor) -> Label:
        known = self._known.get(id(tensor))
        if known is not None and known[1] == tensor._version:
            return known[0]
        return self.enter(tensor, (0, next(self._numbers)))

    def enter(self, tensor: Tensor, label: Label) -> Label:
        self._known[id(tensor)] = (label, tensor._version)
        weakref.finalize(tensor, self._forget, id(tensor), label).atexit = False
        return label

    def _forget(self, place: int, label: Label) -> None:
        if self._known.get(place, (None,))[0] == label:
            del self._known[place]
        for account in self.accounts:
            account.drop(label)
