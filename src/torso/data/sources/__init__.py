"""Sources of samples. Each is a function of (options, seed) that returns a Dataset; `torso datasets` lists them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torso.data.fetch_catalogue import DATASETS
from torso.data.fit_images import of_size
from torso.data.images import Dataset, checked, statistics, without_unused_categories
from torso.data.inputs import Floats, Pixels
from torso.data.keys import without_recording
from torso.data.sources import (  # registers every source
    arrays,
    cifar,
    columns,
    fetched,
    folder,
    given,
    hub,
    idx,
    jsonl,
    made,
    table,
)
from torso.data.sources.base import HF, Source, sources
from torso.data.sources.class_names import CLASS_NAMES
from torso.errors import RequestError, running_user_code

if TYPE_CHECKING:
    from torso.config import DataConfig

__all__ = [
    "SEEDLESS",
    "Source",
    "arrays",
    "cifar",
    "columns",
    "fetched",
    "folder",
    "given",
    "hub",
    "idx",
    "is_seedless",
    "jsonl",
    "load",
    "made",
    "sources",
    "table",
]


SEEDLESS = frozenset({*DATASETS, "csv", "digits", "given", "folder", "jsonl", "npz", "parquet"})
"""Sources that return the same data set for every seed. Any other source, a plugin's too, is called for each seed."""


def is_seedless(source: str) -> bool:
    return source in SEEDLESS or source.startswith(HF)


def load(options: DataConfig, seed: int) -> Dataset:
    """The data set of `data.source`, checked, with the mean and std by which its samples are normalised (spec 10.6)."""
    where = f"data.source = {options.source!r}"
    try:
        with running_user_code(where, "a function of (options, seed) that returns a Dataset"):
            dataset = sources[options.source](options, seed)
    except MemoryError as error:
        raise RequestError(f"{where} does not fit into memory: {error}") from None
    root = without_recording(options).root
    dataset = checked(dataset, f"{where} (data.root = {root!r})" if root else where)
    if dataset.columns:
        dataset = without_unused_categories(dataset)
    if options.size:
        dataset = of_size(dataset, options.size)
    if not dataset.class_names and options.source in CLASS_NAMES:
        dataset = replace(dataset, class_names=CLASS_NAMES[options.source])
    kind = dataset.kind
    if isinstance(kind, Pixels) and (options.normalize == "statistics" or not kind.mean):
        mean, std = statistics(dataset.train.samples)
        return replace(dataset, mean=mean, std=std, input=replace(kind, mean=mean, std=std))
    if isinstance(kind, Floats) and options.normalize == "statistics":  # computed later, from the clients' samples
        return replace(dataset, mean=(), std=(), input=replace(kind, mean=(), std=()))
    return dataset
