"""The fingerprint of a run's data: sizes and checksums per client, by which a resumed run notices and names changes.

It takes about a second per gigabyte. If the data exceed 512 MiB, only every n-th row of a client is read. With more
than 1,000 clients, a block of clients shares a checksum, so that a split has at most 1,000 of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch

from torso.data.clients import checksum
from torso.data.federation import Federation, Split

_BYTES = 512 * 2**20  # most bytes of samples that are read
_BLOCKS = 1000  # most blocks of clients
_FORMAT = 1
_MOST_NAMED = 3  # differences that an error names
_Part = tuple[int, str]  # number of samples, checksum
_WORDS: dict[Literal["train", "test"], str] = {"train": "training", "test": "test"}
T = TypeVar("T")
_known: WeakKeyDictionary[Federation, Fingerprint] = WeakKeyDictionary()


@dataclass(frozen=True)
class Fingerprint:
    """Sizes and checksums of a federation's data.

    `train` and `test` have one part for each block of clients, then one for the samples that belong to no client."""

    classes: int
    kind: str  # of samples: `Input.identity`
    clients: int
    block: int  # number of clients per part
    every: int  # 1: all rows are read; n: every n-th row
    train: tuple[_Part, ...]
    test: tuple[_Part, ...]

    @classmethod
    def of(cls, federation: Federation) -> Fingerprint:
        """The fingerprint of a federation, computed once."""
        fingerprint = _known.get(federation)
        if fingerprint is None:
            fingerprint = cls._made(federation)
            _known[federation] = fingerprint
        return fingerprint

    @classmethod
    def _made(cls, federation: Federation) -> Fingerprint:
        splits = (federation.train, federation.test)
        size = sum(split.samples.numel() * split.samples.element_size() for split in splits)
        every = max(1, -(-size // _BYTES))
        block = -(-federation.clients // _BLOCKS)
        train, test = (tuple(_parts(split, federation.clients, block, every)) for split in splits)
        kind = federation.input.identity
        return cls(federation.classes, kind, federation.clients, block, every, train, test)

    def as_json(self) -> dict[str, Any]:
        return {"format": _FORMAT, **vars(self)}

    @classmethod
    def from_json(cls, tree: Any) -> Self:
        """The fingerprint that `as_json` has written. Raises ValueError, KeyError or TypeError for anything else."""
        if tree["format"] != _FORMAT:
            raise ValueError(f"format {repr(tree['format'])[:80]}, this version reads {_FORMAT}")
        numbers = {key: _as(int, tree[key]) for key in ("classes", "clients", "block", "every")}
        parts = {key: tuple((_as(int, n), _as(str, digest)) for n, digest in tree[key]) for key in ("train", "test")}
        return cls(kind=_as(str, tree["kind"]), **numbers, **parts)  # type: ignore[arg-type]

    def differences(self, now: Fingerprint, names: Sequence[str] = ()) -> str:
        """The differences between these data and the data of today in words; empty if there are none."""
        for key in ("clients", "classes"):
            before, after = getattr(self, key), getattr(now, key)
            if before != after:
                return f"there were {before} {key}, and there are {after}"
        if self.kind != now.kind:
            return f"samples were {self.kind}, and are {now.kind}"
        if (self.block, self.every) != (now.block, now.every):
            return "the samples have another size"
        changes = list(self._by_part(now, names))
        more = f"; and {len(changes) - _MOST_NAMED} more" if len(changes) > _MOST_NAMED else ""
        return "; ".join(changes[:_MOST_NAMED]) + more

    def _by_part(self, now: Fingerprint, names: Sequence[str]) -> Iterator[str]:
        for split, word in _WORDS.items():
            for place, (before, after) in enumerate(zip(getattr(self, split), getattr(now, split), strict=True)):
                if before != after:
                    yield f"{self._whose(place, names)}: {_change(before, after, word)}"

    def _whose(self, place: int, names: Sequence[str]) -> str:
        first = place * self.block
        last = min(first + self.block, self.clients) - 1
        if first >= self.clients:
            return "samples that no client has"
        if first < last:
            return f"one of the clients {first} to {last}"
        return f"client {first} ({names[first]})" if names else f"client {first}"


def _change(before: _Part, after: _Part, word: str) -> str:
    if before[0] != after[0]:
        return f"it had {before[0]} {word} samples, and has {after[0]}"
    return f"its {word} samples or labels are others"


def _parts(split: Split, clients: int, block: int, every: int) -> Iterator[_Part]:
    for first in range(0, clients, block):
        bounds = split.offsets[first : first + block + 1]
        rows = split.order[bounds[0] : bounds[-1]]
        # the sizes are part of the checksum: clients of a block may have exchanged samples
        yield len(rows), _checksum(split, rows, every, np.diff(bounds).tolist())
    owned = torch.zeros(len(split.labels), dtype=torch.bool, device=split.order.device)
    owned[split.order] = True
    others = torch.nonzero(~owned).reshape(-1)
    yield len(others), _checksum(split, others, every, [])


def _checksum(split: Split, rows: torch.Tensor, every: int, about: list[int]) -> str:
    samples = split.samples if split.origins is None else split.origins  # features differ between machines
    compared = (samples[rows[::every]], split.labels[rows])
    return checksum(about, (tensor.cpu().numpy() for tensor in compared))


def _as(kind: type[T], value: Any) -> T:
    """The value, if it is of this type; otherwise a TypeError."""
    if not isinstance(value, kind):
        raise TypeError(f"{repr(value)[:80]} where {kind.__name__} belongs")
    return value
