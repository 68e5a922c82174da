"""The catalogue of data sets that `torso data get` can download, and the folders that it puts them into."""

from __future__ import annotations

import os
from pathlib import Path

from torso.data.fetch_sets import KNOWN, DataSet, ManualDataSet
from torso.errors import RequestError, did_you_mean

USUAL = "data"  # the folder of data sets if TORSO_DATA is not set
DATASETS = {data.name: data for data in KNOWN}
ALIASES = {"emnist": "emnist-balanced"}
BY_HAND = {
    data.name: data
    for data in (
        ManualDataSet(
            "imagenet",
            "ImageNet (ILSVRC 2012): 1,281,167 / 50,000 colour images in 1,000 classes",
            "an agreement with ImageNet: non-commercial research and education",
            "https://image-net.org/download-images.php",
            "put its images into ROOT/train/CLASS/ and ROOT/test/CLASS/, and set data.source=folder, data.root=ROOT "
            "and data.size=64",
        ),
    )
}


def data_home(given: Path | None = None) -> Path:
    """The folder of all data sets: the given one, otherwise $TORSO_DATA, otherwise ./data."""
    return given if given is not None else Path(os.environ.get("TORSO_DATA") or USUAL)


def data_set(name: str) -> DataSet:
    """The data set of this name. For one that needs an agreement, a RequestError says where to get it."""
    if name in BY_HAND:
        hand = BY_HAND[name]
        raise RequestError(
            f"{name} cannot be downloaded for you: it needs {hand.terms}. Get it from {hand.page}, {hand.then}."
        )
    found = DATASETS.get(ALIASES.get(name, name))
    if found is None:
        known = [*DATASETS, *ALIASES, *BY_HAND]
        raise RequestError(f"data set {name!r} is unknown{did_you_mean(name, known)} Accepted: {', '.join(known)}")
    return found


def downloaded(source: str) -> Path | None:
    """The folder into which `torso data get` has downloaded the files of a source; None: it has not."""
    known = DATASETS.get(source)
    return known.place(data_home()) if known is not None and known.is_in(data_home()) else None


def hint(source: str) -> str:
    """The end of an error for missing files: the command that downloads them; empty if no command does."""
    return f"; or download it: torso data get {source}" if source in DATASETS else ""
