"""What every kind of sample can be asked, and what the kinds share. The kinds: inputs.py."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torso.data.augment import Lens
from torso.errors import RequestError

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
        """The shape of one sample as a network takes it."""

    @property
    @abstractmethod
    def words(self) -> str:
        """`images of 32×32 with 3 channels`: for messages and for the page beside exported models."""

    @property
    def bytes(self) -> int:
        """Of one sample as it is stored, and as it travels where a method has samples travel."""
        return math.prod(self.shape) * self.stored.itemsize

    @property
    def identity(self) -> str:
        """What the samples of two runs must have in common to be the same."""
        return type(self).__name__

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


def as_array(samples: Any) -> Array:
    return np.asarray(samples)


def refuse_none(where: str, noun: str, samples: Array) -> None:
    if not len(samples):
        raise RequestError(f"{where}: there are no {noun}. Expected: at least one")


def plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def seeded_generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def check_constants(mean: Sequence[float], std: Sequence[float], count: int, of: str, each: str) -> None:
    """Refuse a mean and std that are not one finite number for each of `count` channels or features, std above 0."""
    whole = all(math.isfinite(value) for value in (*mean, *std))
    if len(mean) != count or len(std) != count or not whole or min(std) <= 0:
        raise RequestError(
            f"mean = {list(mean)}, std = {list(std)} for {of}. Expected: one of each per {each}, std above 0"
        )
