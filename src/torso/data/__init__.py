"""Images in, clients out (spec 10)."""

from torso.data import dirichlet  # registers its partitions
from torso.data.augment import augmentations
from torso.data.federation import Federation, Shelf, Split, build, seeded
from torso.data.partitions import partitions
from torso.data.roster import Roster
from torso.data.sources import load, sources

__all__ = [
    "Federation",
    "Roster",
    "Shelf",
    "Split",
    "augmentations",
    "build",
    "dirichlet",
    "load",
    "partitions",
    "seeded",
    "sources",
]
