"""The source `given`: clients that a program has handed over (`torso.run(config, clients=…)`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torso.data.clients import SOURCE, dataset_of_handed_over
from torso.data.images import Dataset
from torso.data.sources.base import sources

if TYPE_CHECKING:
    from torso.config import DataConfig


@sources.register(SOURCE)
def given(options: DataConfig, seed: int) -> Dataset:
    """The clients that a program hands to `torso.run` as arrays, tensors or Datasets; no file is read."""
    return dataset_of_handed_over(options.root)
