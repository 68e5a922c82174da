"""The fingerprint of a run's data: sizes and checksums, client by client, so that changed data are noticed and named.

It costs about a second for a gigabyte. Of data above 512 MiB only every n-th sample of a client is looked at, and all
labels. Many clients share a checksum, block by block, so that there are at most 1,000 of a split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch

from torso.data.clients import checksum
from torso.data.federation import Federation, Split

_BYTES = 512 * 2**20  # of samples that are looked at
_BLOCKS = 1000
_FORMAT = 1
_TOLD = 3  # differences that an error names
_Part = tuple[int, str]  # number of samples, checksum
_WORDS: dict[Literal["train", "test"], str] = {"train": "training", "test": "test"}
T = TypeVar("T")
_known: WeakKeyDictionary[Federation, Fingerprint] = WeakKeyDictionary()


@dataclass(frozen=True)
class Fingerprint:
    """`train` and `test`: a part for each block of so many clients, then one for the samples that no client has."""

    classes: int
    kind: str  # of samples
    clients: int
    block: int  # clients of a part
    every: int  # 1: all samples are looked at; n: every n-th of a client
    train: tuple[_Part, ...]
    test: tuple[_Part, ...]

    @classmethod
    def of(cls, federation: Federation) -> Fingerprint:
        """The fingerprint of these clients; it is computed once."""
        found = _known.get(federation)
        if found is None:
            found = _known[federation] = cls._made(federation)
        return found

    @classmethod
    def _made(cls, federation: Federation) -> Fingerprint:
        train, test = federation.train, federation.test
        size = sum(split.samples.numel() * split.samples.element_size() for split in (train, test))
        every, block = -(-size // _BYTES) or 1, -(-federation.clients // _BLOCKS)
        kind = federation.input.identity
        parts = [tuple(_parts(split, federation.clients, block, every)) for split in (train, test)]
        return cls(federation.classes, kind, federation.clients, block, every, *parts)

    def as_json(self) -> dict[str, Any]:
        return {"format": _FORMAT, **vars(self)}

    @classmethod
    def from_json(cls, tree: Any) -> Self:
        """Raises ValueError, KeyError or TypeError where it is none."""
        if tree["format"] != _FORMAT:
            raise ValueError(f"format {repr(tree['format'])[:80]}, this version reads {_FORMAT}")
        numbers = {key: _as(int, tree[key]) for key in ("classes", "clients", "block", "every")}
        parts = {key: tuple((_as(int, n), _as(str, digest)) for n, digest in tree[key]) for key in ("train", "test")}
        return cls(kind=_as(str, tree["kind"]), **numbers, **parts)  # type: ignore[arg-type]

    def differences(self, now: Fingerprint, names: Sequence[str] = ()) -> str:
        """How the data of today differ from these, in words; nothing where they do not."""
        for key, word in (("clients", "clients"), ("classes", "classes")):
            was, is_ = getattr(self, key), getattr(now, key)
            if was != is_:
                return f"there were {was} {word}, and there are {is_}"
        if self.kind != now.kind:
            return f"samples were {self.kind}, and are {now.kind}"
        if (self.block, self.every) != (now.block, now.every):
            return "the samples have another size"
        found = list(self._by_part(now, names))
        more = f"; and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
        return "; ".join(found[:_TOLD]) + more

    def _by_part(self, now: Fingerprint, names: Sequence[str]) -> Iterator[str]:
        for split, word in _WORDS.items():
            for place, (was, is_) in enumerate(zip(getattr(self, split), getattr(now, split), strict=True)):
                if was != is_:
                    yield f"{self._whose(place, names)}: {_change(was, is_, word)}"

    def _whose(self, place: int, names: Sequence[str]) -> str:
        first = place * self.block
        last = min(first + self.block, self.clients) - 1
        if first >= self.clients:
            return "samples that no client has"
        if first < last:
            return f"one of the clients {first} to {last}"
        return f"client {first} ({names[first]})" if names else f"client {first}"


def _change(was: _Part, is_: _Part, word: str) -> str:
    if was[0] != is_[0]:
        return f"it had {was[0]} {word} samples, and has {is_[0]}"
    return f"its {word} samples or labels are others"


def _parts(split: Split, clients: int, block: int, every: int) -> Iterator[_Part]:
    for first in range(0, clients, block):
        bounds = split.offsets[first : first + block + 1]
        rows = split.order[bounds[0] : bounds[-1]]
        # sizes first: clients of a block may have exchanged samples
        yield len(rows), _checksum(split, rows, every, np.diff(bounds).tolist())
    owned = torch.zeros(len(split.labels), dtype=torch.bool, device=split.order.device)
    owned[split.order] = True
    others = torch.nonzero(~owned).reshape(-1)
    yield len(others), _checksum(split, others, every, [])


def _checksum(split: Split, rows: torch.Tensor, every: int, about: list[int]) -> str:
    made_from = split.samples if split.origins is None else split.origins  # features differ between machines
    looked_at = (made_from[rows[::every]], split.labels[rows])
    return checksum(about, (tensor.cpu().numpy() for tensor in looked_at))


def _as(kind: type[T], value: Any) -> T:
    """A value of a file that must be of a kind."""
    if not isinstance(value, kind):
        raise TypeError(f"{repr(value)[:80]} where {kind.__name__} belongs")
    return value
