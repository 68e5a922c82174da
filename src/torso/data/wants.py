"""`Wants`: what a body expects of its samples because its weights were trained elsewhere; its tokenizer and encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from torso.data.images import Dataset
    from torso.data.input_base import Input


class Tokenizer(Protocol):
    """Turns texts into token ids. It is frozen and hashable; the same text always gives the same ids."""

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
        """A checksum of everything that determines the ids."""
        ...

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, special ones included, neither cut nor padded."""
        ...


class Encoding(Protocol):
    """A frozen encoder: a network that never learns, in front of the network that does. It is frozen and hashable."""

    def encoded(self, dataset: Dataset) -> Dataset:
        """The data set with each sample replaced by its features."""
        ...

    def encoder_of(self, kind: Input) -> Callable[[Tensor], Tensor]:
        """The function that computes features [n, d] of stored samples [n, *] of a kind."""
        ...


@dataclass(frozen=True)
class Wants:
    """The sizes, constants and tokenizer that a body's weights need. Zero, empty or None: no requirement."""

    by: str = ""  # the key that has these requirements, for messages: "model.body = 'torchvision/resnet18'"
    size: int = 0  # height and width in pixels
    channels: int = 0
    mean: tuple[float, ...] = ()  # per channel, on the 0..1 scale
    std: tuple[float, ...] = ()
    tokenizer: Tokenizer | None = None
    encoding: Encoding | None = None
    usual: int = 0  # size of images that the network was made for, in pixels; used if images have several sizes
    lr: float = 0.0  # local learning rate that suits the weights, unless the user sets one


ANYTHING = Wants()
