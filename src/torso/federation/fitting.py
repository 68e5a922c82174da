"""What the model's body wants of everybody's images. The server settles it, and each client does it to its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torso.data.fit_images import as_kind, brings_constants, channels_can_become, fitted_kind, sentence
from torso.data.inputs import Array, Known, Pixels
from torso.data.wants import ANYTHING, Wants
from torso.errors import RequestError

if TYPE_CHECKING:
    from torso.config import DataConfig


@dataclass(frozen=True)
class Fitting:
    """The options of the run and what its body wants."""

    options: DataConfig
    wants: Wants = ANYTHING

    @property
    def changes_images(self) -> bool:
        """Whether images may differ in size and colour, since all of them are fitted."""
        return bool(self.options.size or self.wants.size or self.wants.channels or self.wants.mean)

    @property
    def brings_constants(self) -> bool:
        """Whether mean and std are those that the body's weights expect."""
        return brings_constants(self.options, self.wants)

    def of(self, input: Known) -> Known:
        """What samples of a kind become; raises RequestError where they cannot."""
        wants = self.wants if self.wants.by else replace(self.wants, by="the model")
        return fitted_kind(input, self.options, wants) if isinstance(input, Pixels) and self.changes_images else input

    def misfit(self, input: Known) -> str:
        """Why samples of a kind cannot be fitted; "": they can."""
        try:
            self.of(input)
        except RequestError as error:
            return str(error)
        return ""

    def channels(self, input: Known) -> int:
        """Of images whose sums are added by channel, for mean and std; otherwise 0."""
        return input.channels if isinstance(input, Pixels) and not self.brings_constants else 0

    def sentence(self, before: Known, after: Known) -> str:
        """What is done to the images; "": nothing."""
        if not isinstance(before, Pixels) or not isinstance(after, Pixels):
            return ""
        wants = self.wants if self.wants.by else replace(self.wants, by=f"data.size = {self.options.size}")
        return sentence(before, after, wants)


def can_become(input: Known, agreed: Known) -> bool:
    """Whether a client can make images of the agreed kind from its own."""
    return (
        isinstance(input, Pixels)
        and isinstance(agreed, Pixels)
        and channels_can_become(input.channels, agreed.channels)
    )


def as_agreed(samples: Array, agreed: Known) -> Array:
    """A client's images with the size and channels that were agreed on; other samples as they are."""
    if not isinstance(agreed, Pixels) or samples.shape[1:] == (agreed.height, agreed.width, agreed.channels):
        return samples
    return as_kind(samples, agreed)
