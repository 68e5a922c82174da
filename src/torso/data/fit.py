"""Fitting a data set to what the body wants, once, when it is read. The data set's remarks say what was changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torso.data.fit_images import fitted_images, sized
from torso.data.image_files import SeveralSizes
from torso.data.images import Dataset
from torso.data.inputs import Pixels
from torso.data.keys import recording_reads
from torso.data.sources import load
from torso.data.texts import Texts
from torso.data.tokenise import tokenised
from torso.data.wants import Wants

if TYPE_CHECKING:
    from torso.config import DataConfig


def fitted(dataset: Dataset, options: DataConfig, wants: Wants) -> Dataset:
    """The data set with samples as the body (or its encoder) wants them."""
    dataset = _of_kind(dataset, options, wants)
    return wants.encoding.encoded(dataset) if wants.encoding else dataset


def _of_kind(dataset: Dataset, options: DataConfig, wants: Wants) -> Dataset:
    """The data set with texts tokenised, or images fitted to the body."""
    if isinstance(dataset.kind, Texts):
        return tokenised(dataset, options, wants)
    if isinstance(dataset.kind, Pixels) and (wants.size or wants.channels or wants.mean or wants.usual):
        return fitted_images(dataset, options, wants)
    return dataset


def read_for(options: DataConfig, seed: int, keys: set[str], wants: Wants) -> tuple[Dataset, Wants]:
    """The data set as its source returns it, and what the body wants of it. If image files have several sizes, they are
    read at the size that the body was made for. The config keys that are read are added to `keys`."""
    try:
        return load(recording_reads(sized(options, wants), keys), seed), wants
    except SeveralSizes:
        if not wants.usual:
            raise
    wants = replace(wants, size=wants.usual)
    return load(recording_reads(sized(options, wants), keys), seed), wants
