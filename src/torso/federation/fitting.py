"""Converts images to the kind that the body expects: the server chooses the kind, each client converts its own."""

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
    """Decides what clients' samples are converted to."""

    options: DataConfig
    wants: Wants = ANYTHING  # what the body expects of samples

    @property
    def changes_images(self) -> bool:
        """Whether images are converted, so that clients' images may differ in size and colour."""
        return bool(self.options.size or self.wants.size or self.wants.channels or self.wants.mean)

    @property
    def brings_constants(self) -> bool:
        """Whether mean and std are given by the body's pretrained weights."""
        return brings_constants(self.options, self.wants)

    def of(self, input: Known) -> Known:
        """The kind of input after conversion; RequestError if it cannot be converted."""
        if not isinstance(input, Pixels) or not self.changes_images:
            return input
        wants = self.wants if self.wants.by else replace(self.wants, by="the model")
        return fitted_kind(input, self.options, wants)

    def misfit(self, input: Known) -> str:
        """Why samples of this kind cannot be converted; "" if they can."""
        try:
            self.of(input)
        except RequestError as error:
            return str(error)
        return ""

    def channels(self, input: Known) -> int:
        """The number of channels that clients' images must have in common; 0 if it does not matter.

        It matters if mean and std are computed from sums of all clients, by channel."""
        return input.channels if isinstance(input, Pixels) and not self.brings_constants else 0

    def sentence(self, before: Known, after: Known) -> str:
        """A sentence about what is done to the images; "" if nothing is."""
        if not isinstance(before, Pixels) or not isinstance(after, Pixels):
            return ""
        wants = self.wants if self.wants.by else replace(self.wants, by=f"data.size = {self.options.size}")
        return sentence(before, after, wants)


def can_become(input: Known, agreed: Known) -> bool:
    """Whether a client can convert its images to the agreed kind."""
    return (
        isinstance(input, Pixels)
        and isinstance(agreed, Pixels)
        and channels_can_become(input.channels, agreed.channels)
    )


def as_agreed(samples: Array, agreed: Known) -> Array:
    """A client's images, converted to the agreed size and channels; other samples unchanged."""
    if not isinstance(agreed, Pixels) or samples.shape[1:] == (agreed.height, agreed.width, agreed.channels):
        return samples
    return as_kind(samples, agreed)
