"""Where the data of a table lie below `--data-root`, and what to say where they do not."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torso.data.sources.idx import DEBIAN
from torso.errors import RequestError

USUAL = "data"  # where data are looked for without --data-root and TORSO_DATA


@dataclass(frozen=True)
class _Kind:
    """Any of `names` below the root (or in a folder of the source's name) will do; `usual` is looked at last."""

    names: tuple[str, ...]
    origin: str
    samples: int  # of the training set, for the estimate of time
    usual: str = ""


KINDS = {
    "cifar10": _Kind(
        ("cifar-10-batches-py", "cifar-10-python.tar.gz", "cifar10_jpeg.npz"),
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        50_000,
    ),
    "cifar100": _Kind(
        ("cifar-100-python", "cifar-100-python.tar.gz", "cifar100_jpeg.npz"),
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        50_000,
    ),
    "fashion-mnist": _Kind(
        ("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"),
        "https://github.com/zalandoresearch/fashion-mnist, or Debian's package dataset-fashion-mnist",
        60_000,
        DEBIAN,
    ),
}


def data_root(given: Path | None) -> Path:
    """--data-root, else the environment's TORSO_DATA, else ./data."""
    return given if given is not None else Path(os.environ.get("TORSO_DATA", USUAL))


def find_all(sources: Iterable[str], root: Path) -> dict[str, str]:
    """Source → `data.root`, for every source; raises RequestError that says which file is missing."""
    return {source: find(source, root) for source in dict.fromkeys(sources)}


def find(source: str, root: Path) -> str:
    kind = KINDS[source]
    for place in (root, root / source, *([Path(kind.usual)] if kind.usual else [])):
        if any((place / name).exists() for name in kind.names):
            return str(place)
    raise RequestError(
        f"the data set {source} is not below {str(root)!r}: found none of {', '.join(kind.names)}. "
        f"Get it from {kind.origin} and say where it lies with --data-root DIR"
    )
