"""Data sets that `torso data get` makes into one .npz file: each is a source with the name of the data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from torso.data.fetch_catalogue import DATASETS, hint
from torso.data.fetch_sets import DataSet
from torso.data.images import Dataset
from torso.data.sources.arrays import dataset_of, read_npz
from torso.data.sources.base import root_of, sources

if TYPE_CHECKING:
    from torso.config import DataConfig

_AUGMENT = {"cinic10": "crop-flip"}  # as CIFAR-10, which it extends


def _source(data: DataSet) -> Callable[[DataConfig, int], Dataset]:
    expected = f"{data.makes}, or a folder with it{hint(data.name)}"

    def read(options: DataConfig, seed: int) -> Dataset:
        root = root_of(options, expected)
        path = root / data.makes if root.is_dir() else root
        dataset = dataset_of(path, read_npz(path, expected), options)
        return replace(dataset, name=data.name, augment=_AUGMENT.get(data.name, "none"))

    read.__doc__ = f"{data.about}; `torso data get {data.name}`."
    return read


for _data in DATASETS.values():
    if _data.makes and _data.name not in sources:  # femnist has a source of its own, with writers
        sources.register(_data.name)(_source(_data))
