"""What a sample is: pixels, an array of numbers, or a sequence of tokens. Whatever depends on the kind is asked here.

n samples, G clients, B samples of a batch; images of H × W pixels with C channels, F features, L tokens.

| kind     | stored               | a network takes (per batch) |
|----------|----------------------|-----------------------------|
| `Pixels` | uint8 [n, H, W, C]   | float [G, B, C, H, W]       |
| `Floats` | float32 [n, F, …]    | float [G, B, F, …]          |
| `Tokens` | int32 [n, L]         | int64 [G, B, L]             |
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torso.data.augment import FloatLens, Lens, PixelLens
from torso.errors import RequestError
from torso.kinds import Count, CountOrZero

Array = NDArray[Any]
CPU = torch.device("cpu")


class Input(ABC):
    """A kind of sample with its sizes, the same for all clients: frozen, hashable, and plain data."""

    many: ClassVar[str]  # what samples of this kind are called where their sizes do not matter
    noun: ClassVar[str] = "samples"  # what a message calls them
    stored: ClassVar[torch.dtype]
    given: ClassVar[torch.dtype]  # to a network, in fp32

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Of one sample as a network takes it."""

    @property
    @abstractmethod
    def words(self) -> str:
        """`images of 32×32 with 3 channels`: for messages and for the page beside exported models."""

    @property
    def bytes(self) -> int:
        """Of one sample as it is stored, and as it travels where a method has samples travel."""
        return math.prod(self.shape) * self.stored.itemsize

    @property
    def argument(self) -> str:
        """What `Network.prepare` takes, for the page beside exported models."""
        return f"{str(self.stored).removeprefix('torch.')} {axes(self.shape)}"

    @property
    @abstractmethod
    def by_hand(self) -> str:
        """How to make the network's input without Torso, in a sentence for the same page."""

    @abstractmethod
    def lens(self, device: torch.device) -> Lens:
        """How a batch is looked at."""

    @abstractmethod
    def example(self, samples: int, device: torch.device = CPU) -> Tensor:
        """Input [samples, *shape] to try a network with; always the same, and on the meta device without content."""

    @abstractmethod
    def accept(self, where: str, samples: Any) -> Array:
        """Samples of unknown origin as they are stored, or why they do not fit; `where` is how a message calls them."""

    def check_constants(self) -> None:  # noqa: B027
        """Refuse constants that nobody can compute with: for what was read from a file."""

    def fitted(self, clients: Iterable[Array]) -> Input:
        """With the statistics that it needs and the source has not given, from each client's stored samples."""
        return self


_MISSING = frozenset({"", "?", "na", "n/a", "nan", "null"})


def is_missing(cell: str) -> bool:
    """Whether the cell of a table stands for a missing value."""
    return cell.lower() in _MISSING


def axes(shape: Sequence[int]) -> str:
    return f"[n, {', '.join(map(str, shape))}]"


def _as_array(samples: Any) -> Array:
    return np.asarray(samples)


def _refuse_none(where: str, noun: str, samples: Array) -> None:
    if not len(samples):
        raise RequestError(f"{where}: there are no {noun}. Expected: at least one")


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def check_constants(mean: Sequence[float], std: Sequence[float], count: int, of: str, each: str) -> None:
    """Refuse a mean and std that are not one finite number for each of `count` channels or features, std above 0."""
    whole = all(math.isfinite(value) for value in (*mean, *std))
    if len(mean) != count or len(std) != count or not whole or min(std) <= 0:
        raise RequestError(
            f"mean = {list(mean)}, std = {list(std)} for {of}. Expected: one of each per {each}, std above 0"
        )


@dataclass(frozen=True)
class Pixels(Input):
    """Images of one size. `mean` and `std` are per channel, on the 0..1 scale (spec 10.6); empty: 0 and 1."""

    channels: Count
    height: Count
    width: Count
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    kind: Literal["pixels"] = "pixels"

    many: ClassVar[str] = "images"
    noun: ClassVar[str] = "images"
    stored: ClassVar[torch.dtype] = torch.uint8
    given: ClassVar[torch.dtype] = torch.float32

    @staticmethod
    def array(where: str, images: Any) -> Array:
        """Images of unknown origin and any size as uint8 [n, H, W, C]."""
        images = _as_array(images)
        if images.dtype != np.uint8 or images.ndim not in {3, 4} or 0 in images.shape[1:]:
            raise RequestError(
                f"{where}: images are {images.dtype} {list(images.shape)}. "
                "Expected: uint8 (0 to 255), shape [n, height, width] or [n, height, width, channels]"
            )
        _refuse_none(where, "images", images)
        return np.ascontiguousarray(images if images.ndim == 4 else images[..., None])

    @classmethod
    def of(cls, images: Array) -> Pixels:
        """The kind of stored images, without its constants."""
        _, height, width, channels = images.shape
        return cls(channels, height, width)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, self.height, self.width

    @property
    def size(self) -> str:
        return f"{self.height}×{self.width} with {_plural(self.channels, 'channel')}"

    @property
    def words(self) -> str:
        return f"images of {self.size}"

    @property
    def argument(self) -> str:
        return f"uint8 {axes((self.height, self.width, self.channels))}"

    @property
    def by_hand(self) -> str:
        return (
            f"float32 {axes(self.shape)}, made from bytes as\n(x / 255 - mean) / std, per channel, "
            f"with mean {list(self.mean)} and std {list(self.std)}"
        )

    def lens(self, device: torch.device) -> PixelLens:
        return PixelLens.of(self.mean or (0.0,) * self.channels, self.std or (1.0,) * self.channels, device)

    def example(self, samples: int, device: torch.device = CPU) -> Tensor:
        if device.type == "meta":
            return torch.empty(samples, *self.shape, device=device)
        return torch.rand(samples, *self.shape, generator=_seeded()).to(device)

    def accept(self, where: str, samples: Any) -> Array:
        found = self.array(where, samples)
        wanted = (self.height, self.width, self.channels)
        if found.shape[1:] != wanted:
            raise RequestError(
                f"{where}: images are {list(found.shape)}. Expected: {axes(wanted)}, "
                "as those that the model was trained on"
            )
        return found

    def check_constants(self) -> None:
        check_constants(self.mean, self.std, self.channels, f"images of {self.channels} channels", "channel")


@dataclass(frozen=True)
class Floats(Input):
    """Arrays of numbers: rows of a table [F], signals [channels, time], or any other shape.

    `mean` and `std` are per feature, that is per entry of the first dimension of a sample: a column of a table, a
    channel of a signal. Empty: not settled yet. `names`: of the features, where the source knows them."""

    sizes: tuple[Count, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    names: tuple[str, ...] = ()
    kind: Literal["floats"] = "floats"

    many: ClassVar[str] = "arrays of numbers"
    stored: ClassVar[torch.dtype] = torch.float32
    given: ClassVar[torch.dtype] = torch.float32

    @staticmethod
    def array(where: str, samples: Any) -> Array:
        """Numbers of unknown origin and any shape as float32 [n, *]; [n] becomes [n, 1]."""
        samples = _as_array(samples)
        if samples.dtype.kind not in "fiub" or samples.ndim == 0 or 0 in samples.shape[1:]:
            raise RequestError(
                f"{where}: samples are {samples.dtype} {list(samples.shape)}. "
                "Expected: numbers, shape [n, features] or [n, channels, …]"
            )
        _refuse_none(where, "samples", samples)
        with np.errstate(over="ignore"):
            numbers = np.ascontiguousarray(samples if samples.ndim > 1 else samples[:, None], dtype=np.float32)
        wrong = np.flatnonzero(~np.isfinite(numbers).reshape(len(numbers), -1).all(axis=1))
        if len(wrong):
            raise RequestError(
                f"{where}: {_plural(len(wrong), 'sample')} hold{'s' if len(wrong) == 1 else ''} NaN or infinite "
                f"numbers, the first is sample {wrong[0]}. Expected: finite float32 numbers; fill what is missing"
            )
        return numbers

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sizes

    @property
    def words(self) -> str:
        if len(self.sizes) == 1:
            return f"rows of {_plural(self.sizes[0], 'number')}"
        return f"arrays of {'×'.join(map(str, self.sizes))} numbers"

    size = words

    @property
    def by_hand(self) -> str:
        named = f". The features are, in this order: {', '.join(self.names)}" if self.names else ""
        return (
            f"float32 {axes(self.sizes)}, made as\n(x - mean) / std, per feature, "
            f"with mean {list(self.mean)} and std {list(self.std)}{named}"
        )

    def lens(self, device: torch.device) -> Lens:
        if not self.mean:
            return Lens()
        return FloatLens.of(self.mean, self.std, len(self.sizes), device)

    def example(self, samples: int, device: torch.device = CPU) -> Tensor:
        if device.type == "meta":
            return torch.empty(samples, *self.sizes, device=device)
        return torch.randn(samples, *self.sizes, generator=_seeded()).to(device)

    def accept(self, where: str, samples: Any) -> Array:
        """Where features have names, rows may be mappings from the columns of their table to cells."""
        if self.names and isinstance(samples, Sequence) and samples and isinstance(samples[0], Mapping):
            samples = [
                [self._feature(f"{where} {place}", row, n) for n in range(len(self.names))]
                for place, row in enumerate(samples)
            ]
        found = self.array(where, samples)
        if found.shape[1:] != self.sizes:
            raise RequestError(
                f"{where}: samples are {list(found.shape)}. Expected: {axes(self.sizes)}, "
                "as those that the model was trained on"
            )
        return found

    def _feature(self, where: str, row: Mapping[str, Any], number: int) -> float:
        """One feature of a table's row: the number of a column, or whether a column has a category (`city=Rome`)."""
        name = self.names[number]
        column, _, category = (name, "", "") if name in row else name.partition("=")
        if column not in row:
            raise RequestError(
                f"{where} has no {column!r}. Expected: the columns of the table, for {', '.join(self.names)}"
            )
        cell = "" if row[column] is None else str(row[column]).strip()
        if column != name:
            return float(category == ("" if is_missing(cell) else cell))
        try:
            return self.mean[number] if is_missing(cell) and self.mean else float(cell)
        except ValueError:
            raise RequestError(f"{where}: {name} = {cell!r} is no number. Expected: one, or nothing") from None

    def check_constants(self) -> None:
        check_constants(self.mean, self.std, self.sizes[0], self.words, "feature")

    def fitted(self, clients: Iterable[Array]) -> Floats:
        """Mean and std of the clients' samples, unless the source has given them."""
        if self.mean:
            return self
        mean, std = Moments.over(clients).mean_and_std()
        return replace(self, mean=mean, std=std)


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, sum and sum of squares of every feature [F]: what a client tells of its samples, so that all clients can
    standardise alike. They add up, client by client in the order of the clients, to those of all samples."""

    count: int
    total: NDArray[np.float64]
    squares: NDArray[np.float64]

    @classmethod
    def of(cls, samples: Array) -> Moments:
        """Of one client's samples [n, F, …]."""
        wide = samples.astype(np.float64)
        others = (0, *range(2, wide.ndim))
        return cls(wide.size // wide.shape[1], wide.sum(axis=others), np.square(wide).sum(axis=others))

    @classmethod
    def over(cls, clients: Iterable[Array]) -> Moments:
        return reduce(cls.__add__, map(cls.of, clients))

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def mean_and_std(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """A feature that does not vary, as far as float32 can tell, has std 1."""
        mean = self.total / self.count
        std = np.sqrt((self.squares / self.count - np.square(mean)).clip(min=0))
        varies = std > np.finfo(np.float32).eps * np.abs(mean)
        return tuple(mean.tolist()), tuple(np.where(varies, std, 1.0).tolist())


@dataclass(frozen=True)
class Tokens(Input):
    """Sequences of token ids, 0 to `vocabulary` − 1, all padded to `length` with the id `pad`.

    One tensor carries ids and mask: a place that holds `pad` is no token, and no token has that id. So a body unpacks
    x [G, B, L] as `ids, mask = x, x != pad`."""

    length: Count
    vocabulary: Count
    pad: CountOrZero = 0
    kind: Literal["tokens"] = "tokens"

    many: ClassVar[str] = "token sequences"
    noun: ClassVar[str] = "sequences"
    stored: ClassVar[torch.dtype] = torch.int32
    given: ClassVar[torch.dtype] = torch.int64

    def __post_init__(self) -> None:
        if self.pad >= self.vocabulary:
            raise RequestError(
                f"pad = {self.pad} with a vocabulary of {self.vocabulary} ids. Expected: 0 to {self.vocabulary - 1}"
            )

    @staticmethod
    def array(where: str, ids: Any, mask: Any = None, pad: int | None = None) -> Array:
        """Sequences of unknown origin as int32 [n, L]; where the mask is 0, the id becomes `pad`."""
        ids = _as_array(ids)
        if ids.dtype.kind not in "iu" or ids.ndim != 2 or 0 in ids.shape[1:]:
            raise RequestError(
                f"{where}: sequences are {ids.dtype} {list(ids.shape)}. "
                "Expected: integers (token ids), shape [n, length]"
            )
        _refuse_none(where, "sequences", ids)
        if mask is not None:
            mask = _as_array(mask)
            if mask.shape != ids.shape or not np.isin(mask, (0, 1)).all():
                raise RequestError(
                    f"{where}: the mask is {mask.dtype} {list(mask.shape)}. "
                    f"Expected: 1 for a token and 0 for padding, shape {list(ids.shape)}"
                )
            taken = np.argwhere((ids == pad) & (mask == 1))
            if len(taken):
                raise RequestError(
                    f"{where}: the mask takes place {taken[0][1]} of sequence {taken[0][0]} for a token, and its id is "
                    f"that of padding, {pad}. Expected: an id for padding that no token has"
                )
            ids = np.where(mask == 1, ids, pad)
        if ids.min() < 0 or ids.max() > np.iinfo(np.int32).max:
            raise RequestError(f"{where}: ids are {ids.min()} to {ids.max()}. Expected: 0 or more, below 2³¹")
        return np.ascontiguousarray(ids, dtype=np.int32)

    @property
    def shape(self) -> tuple[int]:
        return (self.length,)

    @property
    def words(self) -> str:
        return f"sequences of at most {_plural(self.length, 'token')}"

    size = words

    @property
    def argument(self) -> str:
        return f"integers {axes(self.shape)}, padded with {self.pad}"

    @property
    def by_hand(self) -> str:
        return (
            f"int64 {axes(self.shape)}: token ids from 0 to {self.vocabulary - 1}, with {self.pad} in every "
            "place\nthat holds no token"
        )

    def lens(self, device: torch.device) -> Lens:
        return Lens()

    def example(self, samples: int, device: torch.device = CPU) -> Tensor:
        if device.type == "meta":
            return torch.empty(samples, self.length, dtype=self.given, device=device)
        return torch.randint(self.vocabulary, (samples, self.length), generator=_seeded()).to(device)

    def accept(self, where: str, samples: Any) -> Array:
        """Shorter sequences than `length` are padded."""
        found = self.array(where, samples)
        if found.shape[1] > self.length:
            raise RequestError(
                f"{where}: sequences are {list(found.shape)}. Expected: at most {self.length} tokens, as those that "
                "the model was trained on"
            )
        if found.max() >= self.vocabulary:
            raise RequestError(
                f"{where}: id {found.max()} is not in the vocabulary. Expected: 0 to {self.vocabulary - 1}"
            )
        return np.pad(found, ((0, 0), (0, self.length - found.shape[1])), constant_values=self.pad)


Known = Pixels | Floats | Tokens
"""The kinds that exist, as a file names them by `kind`."""


def known(found: Input) -> Known:
    """A kind of input that a file can name; others come from nowhere in Torso."""
    assert isinstance(found, Known)
    return found


def as_input(found: Input | tuple[int, int, int]) -> Input:
    """A kind of input as it is; (channels, height, width) stands for images whose constants do not matter."""
    return found if isinstance(found, Input) else Pixels(*found)
