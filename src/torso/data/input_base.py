"""`Input`, the interface of every kind of sample, and helpers that the kinds share. inputs.py lists the kinds."""

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

    many: ClassVar[str]  # the plural of the kind, without sizes: "token sequences"
    noun: ClassVar[str] = "samples"  # the word for samples in messages
    stored: ClassVar[torch.dtype]  # of stored samples
    given: ClassVar[torch.dtype]  # of a network's input, in fp32

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample as a network takes it."""

    @property
    @abstractmethod
    def words(self) -> str:
        """The kind with its sizes, for messages and exported models' pages: `images of 32×32 with 3 channels`."""

    @property
    def bytes(self) -> int:
        """Bytes of one stored sample; a method that sends samples sends as many."""
        return math.prod(self.shape) * self.stored.itemsize

    @property
    def identity(self) -> str:
        """A text that is equal for two runs if their samples are of the same kind."""
        return type(self).__name__

    @property
    def argument(self) -> str:
        """The argument of `Network.prepare`: dtype and shape, for the page of an exported model."""
        return f"{str(self.stored).removeprefix('torch.')} {axes(self.shape)}"

    @property
    @abstractmethod
    def preparation(self) -> str:
        """How to make the network's input without Torso: a sentence for the page of an exported model."""

    @abstractmethod
    def lens(self, device: torch.device) -> Lens:
        """The lens that turns stored samples into network input on this device."""

    @abstractmethod
    def example(self, samples: int, device: torch.device = CPU) -> Tensor:
        """Input [samples, *shape] to try a network with: always the same; without content on the meta device."""

    @abstractmethod
    def accept(self, where: str, samples: Any) -> Array:
        """Samples of unknown origin, checked and converted to the stored format; `where` names them in messages."""

    def check_constants(self) -> None:  # noqa: B027
        """Refuse a mean and std that cannot be computed with. Called for kinds that were read from a file."""

    def fitted(self, clients: Iterable[Array]) -> Input:
        """The kind with the statistics that it needs and the source has not given, computed from the stored samples of
        each client."""
        return self


_MISSING = frozenset({"", "?", "na", "n/a", "nan", "null"})


def is_missing(cell: str) -> bool:
    """Whether the cell of a table stands for a missing value."""
    return cell.lower() in _MISSING


def axes(shape: Sequence[int]) -> str:
    """The shape of n samples for messages: `[n, 3, 32, 32]`."""
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
    finite = all(math.isfinite(value) for value in (*mean, *std))
    if len(mean) != count or len(std) != count or not finite or min(std) <= 0:
        raise RequestError(
            f"mean = {list(mean)}, std = {list(std)} for {of}. Expected: one of each per {each}, std above 0"
        )
