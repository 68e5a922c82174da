"""The source `hf/NAME`: data sets of the Hugging Face hub, or saved from there, read by the library `datasets`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torso.data.images import Dataset
from torso.data.sources.base import HF, HF_NAME, sources
from torso.data.sources.columns import TEST_NAMES, Columns, dataset_of_columns
from torso.errors import RequestError
from torso.logs import silent

if TYPE_CHECKING:
    from torso.config import DataConfig

_EXPECTED = (
    "the name of a data set of huggingface.co, such as hf/ylecun/mnist, or hf/NAME:SUBSET; with data.root a folder "
    "that `save_to_disk` wrote, or one of .parquet files or images"
)


@sources.register(HF_NAME)
def hub(options: DataConfig, seed: int) -> Dataset:
    """A data set of huggingface.co by its name (needs the extra `hf`), such as hf/ylecun/mnist, or from the folder
    data.root; data.csv names the label and client columns."""
    try:
        import datasets
    except ImportError:
        raise RequestError(
            f"data.source = {options.source!r} needs datasets. Install it: pip install 'torso[hf]'"
        ) from None
    name = options.source.removeprefix(HF)
    if not name or options.source == HF_NAME:
        raise RequestError(f"data.source = {options.source!r} names no data set. Expected: {_EXPECTED}")
    try:
        with silent("huggingface_hub"):  # it warns at every retry
            found = _loaded(datasets, name, options.root)
    except Exception as error:  # `datasets`, the network or a file may raise anything
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        where = f" (data.root = {options.root!r})" if options.root else ""
        raise RequestError(
            f"data.source = {options.source!r}{where} cannot be read: {reason}. Expected: {_EXPECTED}"
        ) from None
    parts = [Columns(options.source, part.with_format("arrow")[:], local=True) for part in _splits(found)]
    return dataset_of_columns(name.rpartition("/")[2].replace(":", "-"), parts, options)


def _loaded(datasets: Any, name: str, root: str) -> Any:
    """The data set from the hub, or from the folder `root` if it is not empty; a dict of splits, or one split."""
    title, _, subset = name.partition(":")
    if not root:
        return datasets.load_dataset(title, subset or None)
    folder = Path(root).expanduser()
    if (folder / "dataset_dict.json").is_file() or (folder / "dataset_info.json").is_file():
        return datasets.load_from_disk(str(folder))
    return datasets.load_dataset(str(folder), subset or None)


def _splits(found: Any) -> list[Any]:
    """The training split and, if there is one, the test split."""
    if not isinstance(found, dict):
        return [found]
    train = found.get("train") or next(iter(found.values()))
    test = next((found[name] for name in TEST_NAMES if name in found and found[name] is not train), None)
    return [train] if test is None else [train, test]
