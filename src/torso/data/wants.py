"""What a body that was trained elsewhere expects of the samples that it meets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from torso.data.images import Dataset
    from torso.data.input_base import Input


class Tokenizer(Protocol):
    """Turns texts into token ids. It is frozen and hashable: the same text gives the same ids, always."""

    @property
    def vocabulary(self) -> int:
        """Ids are 0 to vocabulary − 1."""
        ...

    @property
    def pad(self) -> int:
        """The id of padding, which no token has."""
        ...

    @property
    def length(self) -> int:
        """The most tokens of a text that the body takes, special ones included."""
        ...

    @property
    def ending(self) -> tuple[int, ...]:
        """Special tokens at the end of every text, which stay when it is cut."""
        ...

    @property
    def identity(self) -> str:
        """A checksum of whatever decides which ids come out."""
        ...

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, special ones included, neither cut nor padded."""
        ...


class Encoding(Protocol):
    """A network that never learns, in front of the one that does. It is frozen and hashable."""

    def encoded(self, dataset: Dataset) -> Dataset:
        """The data set with the features of its samples in their place."""
        ...

    def encoder_of(self, kind: Input) -> Callable[[Tensor], Tensor]:
        """What makes features [n, d] of stored samples [n, *] of a kind."""
        ...


@dataclass(frozen=True)
class Wants:
    """Sizes, constants and the tokenizer of a body's weights. Zero, empty or None: whatever the data are will do."""

    by: str = ""  # whose wishes they are, for messages: "model.body = 'torchvision/resnet18'"
    size: int = 0  # height and width in pixels
    channels: int = 0
    mean: tuple[float, ...] = ()  # per channel, on the 0..1 scale
    std: tuple[float, ...] = ()
    tokenizer: Tokenizer | None = None
    encoding: Encoding | None = None
    usual: int = 0  # the size of images that the network was made for: taken where theirs are different
    lr: float = 0.0  # the local learning rate that fine-tunes the weights, unless somebody sets one


ANYTHING = Wants()
