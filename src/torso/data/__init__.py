"""Data: sources of samples, kinds of input, partitions to clients, and batches (spec 10)."""

from torso.data import dirichlet  # registers its partitions
from torso.data.augment import augmentations
from torso.data.build import DataCache, build, dealing_seed, seeded
from torso.data.federation import Federation, Split
from torso.data.images import Dataset, Images, Samples
from torso.data.inputs import Floats, Input, Pixels, Tokens
from torso.data.partitions import partitions
from torso.data.roster import Roster
from torso.data.sources import load, sources
from torso.data.wants import Wants

__all__ = [
    "DataCache",
    "Dataset",
    "Federation",
    "Floats",
    "Images",
    "Input",
    "Pixels",
    "Roster",
    "Samples",
    "Split",
    "Tokens",
    "Wants",
    "augmentations",
    "build",
    "dealing_seed",
    "dirichlet",
    "load",
    "partitions",
    "seeded",
    "sources",
]
