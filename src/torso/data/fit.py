"""Data as a body wants them, made once, when they are read: whatever was changed is said in the data's remarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torso.data.fit_images import fitted_images
from torso.data.images import Dataset
from torso.data.inputs import Pixels
from torso.data.texts import Texts
from torso.data.tokenise import tokenised
from torso.data.wants import Wants

if TYPE_CHECKING:
    from torso.config import DataConfig


def fitted(dataset: Dataset, options: DataConfig, wants: Wants) -> Dataset:
    """The data set as a body wants it."""
    if isinstance(dataset.kind, Texts):
        return tokenised(dataset, options, wants)
    if isinstance(dataset.kind, Pixels) and (wants.size or wants.channels or wants.mean):
        return fitted_images(dataset, options, wants)
    return dataset
