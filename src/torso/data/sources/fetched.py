"""The sources of data sets that `torso data get` converts into one .npz file, under the names of the data sets."""

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

_AUGMENT = {"cinic10": "crop-flip"}  # as for CIFAR-10, which it extends


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
    if _data.makes and _data.name not in sources:  # arrays.py has a special source for femnist, with writers
        sources.register(_data.name)(_source(_data))
