"""Where the papers' data sets are below `--data-root`, how our files differ from the official ones, what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torso.config import Config
from torso.data.fetch_catalogue import data_home
from torso.data.sources.idx import DEBIAN
from torso.errors import RequestError


@dataclass(frozen=True)
class _DataSet:
    """A data set of the papers and the names of its files."""

    names: tuple[str, ...]  # one of these is below the root, or below a folder with the name of the source
    origin: str  # where to download it
    samples: int  # of the training set, for the estimate of time
    usual: str = ""  # a folder outside of the root, tried last
    classes: int = 10
    caveats: Mapping[str, str] = field(default_factory=dict)  # file name → how it differs from the official one


DATASETS = {
    "cifar10": _DataSet(
        ("cifar-10-batches-py", "cifar-10-python.tar.gz", "cifar10_jpeg.npz"),
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        50_000,
        caveats={"cifar10_jpeg.npz": "CIFAR-10 is re-encoded as JPEG: pixels are close to the originals, not equal."},
    ),
    "cifar100": _DataSet(
        ("cifar-100-python", "cifar-100-python.tar.gz", "cifar100_jpeg.npz"),
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        50_000,
        classes=100,
        caveats={
            "cifar100_jpeg.npz": "CIFAR-100 is re-encoded as JPEG: pixels are close to the originals, not equal. The "
            "official split was lost: 500 images of each class, drawn anew, are for training and 100 for testing."
        },
    ),
    "fashion-mnist": _DataSet(
        ("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"),
        "https://github.com/zalandoresearch/fashion-mnist, or Debian's package dataset-fashion-mnist",
        60_000,
        DEBIAN,
    ),
}


NEWS = _DataSet(
    ("ag_news_test.csv",),
    "https://huggingface.co/datasets/fancyzhx/ag_news (the test split as label, title, text, without a line of names)",
    7_600,
    classes=4,
)
FILES = {"csv": NEWS}  # sources whose data.root is a file → the file that the experiments here read
KNOWN = {**DATASETS, **FILES}


def data_root(given: Path | None) -> Path:
    """--data-root, else the environment's TORSO_DATA, else ./data."""
    return data_home(given)


def find_all(sources: Iterable[str], root: Path) -> dict[str, str]:
    """Source → `data.root` for every source. Raises a RequestError that names what is missing."""
    return {source: find(source, root) for source in dict.fromkeys(sources)}


def file_of(source: str, root: str) -> str:
    """The name of the file that a source reads below data.root; empty if it is not known."""
    place = Path(root)
    names = KNOWN[source].names if source in KNOWN else ()
    return next((name for name in names if (place / name).exists() or place.name == name), "")


def caveats_of(files: Iterable[str]) -> list[str]:
    """How these data files differ from the official ones: a text for each file that does."""
    caveats = {name: said for data in DATASETS.values() for name, said in data.caveats.items()}
    return [caveats[name] for name in dict.fromkeys(files) if name in caveats]


def roots_for(configs: Iterable[Config], given: Path | None, missing: bool = False) -> dict[str, str]:
    """Source → `data.root`, for configs that have none. `missing`: leave out data sets that are not found, instead of
    raising a RequestError."""
    needed = [config.data.source for config in configs if config.data.source in KNOWN and not config.data.root]
    if not needed:
        return {}
    return known_roots(data_root(given)) if missing else find_all(needed, data_root(given))


def rooted(config: Config, roots: Mapping[str, str]) -> Config:
    """The config with a `data.root`, if it has none yet."""
    root = roots.get(config.data.source, "")
    return config if config.data.root or not root else config.but(f"data.root={root}")


def known_roots(root: Path) -> dict[str, str]:
    """Source → `data.root`, for the data sets that are found."""
    found = {}
    for source in KNOWN:
        try:
            found[source] = find(source, root)
        except RequestError:
            continue
    return found


def find(source: str, root: Path) -> str:
    """The `data.root` of a source. Raises a RequestError if its files are not there."""
    known = KNOWN[source]
    for place in (root, root / source, *([Path(known.usual)] if known.usual else [])):
        there = next((place / name for name in known.names if (place / name).exists()), None)
        if there is not None:
            return str(there if source in FILES else place)
    if source in FILES:
        raise RequestError(
            f"{known.names[0]} is not below {str(root)!r}: get it from {known.origin} and name its folder with "
            "--data-root DIR"
        )
    raise RequestError(
        f"the data set {source} is not below {str(root)!r}: found none of {', '.join(known.names)}. "
        f"Download it with `torso data get {source} --out {root}`, or get it from {known.origin} and name its folder "
        "with --data-root DIR, or choose other numbers with --only"
    )
