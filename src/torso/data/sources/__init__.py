"""Where samples come from: each source is a function of (options, seed), listed by `torso datasets`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torso.data.fetch_catalogue import DATASETS
from torso.data.images import Dataset, checked, statistics
from torso.data.inputs import Floats, Pixels
from torso.data.sources import arrays, cifar, fetched, folder, given, idx, made, table  # registers every source
from torso.data.sources.base import Source, sources
from torso.errors import RequestError, from_outside

if TYPE_CHECKING:
    from torso.config import DataConfig

__all__ = [
    "SEEDLESS",
    "Source",
    "arrays",
    "cifar",
    "fetched",
    "folder",
    "given",
    "idx",
    "load",
    "made",
    "sources",
    "table",
]


SEEDLESS = frozenset({*DATASETS, "csv", "digits", "given", "folder", "npz"})
"""Sources that give the same for every seed; whoever registers another is asked again for each."""


def load(options: DataConfig, seed: int) -> Dataset:
    """The data set that `data.source` names, checked, with its normalisation settled (spec 10.6)."""
    where = f"data.source = {options.source!r}"
    if options.size and options.source in SEEDLESS | {"synthetic"} and options.source != "folder":
        raise RequestError(f"data.size = {options.size} is for data.source = 'folder', and {where}. Set it to 0")
    try:
        with from_outside(where, "a function of (options, seed) that returns a Dataset"):
            dataset = sources[options.source](options, seed)
    except MemoryError as error:
        raise RequestError(f"{where} does not fit into memory: {error}") from None
    dataset = checked(dataset, f"{where} (data.root = {options.root!r})" if options.root else where)
    kind = dataset.kind
    if isinstance(kind, Pixels) and (options.normalize == "statistics" or not kind.mean):
        mean, std = statistics(dataset.train.samples)
        return replace(dataset, mean=mean, std=std, input=replace(kind, mean=mean, std=std))
    if isinstance(kind, Floats) and options.normalize == "statistics":  # of the clients, once they are dealt
        return replace(dataset, mean=(), std=(), input=replace(kind, mean=(), std=()))
    return dataset
