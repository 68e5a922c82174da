"""Data as a body wants them, made once, when they are read: whatever was changed is said in the data's remarks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torso.data.fit_images import fitted_images, sized
from torso.data.image_files import SeveralSizes
from torso.data.images import Dataset
from torso.data.inputs import Pixels
from torso.data.keys import noting
from torso.data.sources import load
from torso.data.texts import Texts
from torso.data.tokenise import tokenised
from torso.data.wants import Wants

if TYPE_CHECKING:
    from torso.config import DataConfig


def fitted(dataset: Dataset, options: DataConfig, wants: Wants) -> Dataset:
    """The data set as a body wants it."""
    found = _of_kind(dataset, options, wants)
    return wants.encoding.encoded(found) if wants.encoding else found


def _of_kind(dataset: Dataset, options: DataConfig, wants: Wants) -> Dataset:
    if isinstance(dataset.kind, Texts):
        return tokenised(dataset, options, wants)
    if isinstance(dataset.kind, Pixels) and (wants.size or wants.channels or wants.mean or wants.usual):
        return fitted_images(dataset, options, wants)
    return dataset


def read_for(options: DataConfig, seed: int, keys: set[str], wants: Wants) -> tuple[Dataset, Wants]:
    """A data set as it is, and what the body wants of it: images of several sizes become those that it was made for.
    `keys` is given what the data come from."""
    try:
        return load(noting(sized(options, wants), keys), seed), wants
    except SeveralSizes:
        if not wants.usual:
            raise
    wants = replace(wants, size=wants.usual)
    return load(noting(sized(options, wants), keys), seed), wants
